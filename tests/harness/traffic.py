"""TCP between network namespaces, from the test's own process."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.inside import entered
from harness.netns import Netns, run

PATIENCE = 20.0  # seconds
_CHUNK = 1 << 16


@contextmanager
def server(netns: Netns, port: int) -> Iterator[None]:
    """Answers every connection on every address of the namespace with what came in, once the client has said all."""
    with entered(netns):
        listening = socket.create_server(("", port))
    thread = threading.Thread(target=_serve, args=(listening,), name=f"server-{port}")
    thread.start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


def _serve(listening: socket.socket) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # shut down
            return
        with connection, suppress(OSError):
            connection.settimeout(PATIENCE)
            connection.sendall(_read_all(connection))


def answers(netns: Netns, address: str, port: int) -> bool:
    """Whether somebody inside the namespace reaches the server there."""
    try:
        return exchange(netns, address, port, b"hello", timeout=2) == b"hello"
    except OSError:
        return False


def exchange(netns: Netns, address: str, port: int, data: bytes, *, timeout: float = PATIENCE) -> bytes:
    with entered(netns):
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with client:
        client.settimeout(timeout)
        client.connect((address, port))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return _read_all(client)


def seconds(netns: Netns, address: str, port: int, size: int) -> float:
    """How long it takes to send so many bytes there and to have them back."""
    started = time.monotonic()
    assert exchange(netns, address, port, bytes(size)) == bytes(size)
    return time.monotonic() - started


def _read_all(connection: socket.socket) -> bytes:
    received = bytearray()
    while data := connection.recv(_CHUNK):
        received += data
    return bytes(received)


@contextmanager
def neighbour(node: Netns, bridge: str, address: str) -> Iterator[Netns]:
    """A namespace on the node's network, which knows nothing of pods."""
    with Netns("neighbour") as netns:
        port = "to-neighbour"
        run("ip", "-n", node.name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", netns.name)
        run("ip", "-n", node.name, "link", "set", port, "master", bridge, "up")
        run("ip", "-n", netns.name, "address", "add", address, "dev", "eth0")
        run("ip", "-n", netns.name, "link", "set", "eth0", "up")
        yield netns
        run("ip", "-n", node.name, "link", "delete", port)
