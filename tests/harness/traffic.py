"""TCP between network namespaces, from the test's own process."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from harness.enter_netns import Place, entered
from harness.netns import Netns, run

TIMEOUT_SECONDS = 20.0
_CHUNK = 1 << 16
_WINDOW_SECONDS = 1.0
_FEW = 50e6  # bits per second: far fewer than an unlimited link transfers


@contextmanager
def server(netns: Place, port: int) -> Iterator[None]:
    """Run a server on every address of the namespace. It returns the data of a client after the client has sent all."""
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
            connection.settimeout(TIMEOUT_SECONDS)
            connection.sendall(_read_all(connection))


def answers(netns: Place, address: str, port: int) -> bool:
    """Return whether a client inside the namespace reaches the server there."""
    try:
        return exchange(netns, address, port, b"hello", timeout=2) == b"hello"
    except OSError:
        return False


def exchange(netns: Place, address: str, port: int, data: bytes, *, timeout: float = TIMEOUT_SECONDS) -> bytes:
    with entered(netns):
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with client:
        client.settimeout(timeout)
        client.connect((address, port))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return _read_all(client)


def seconds(netns: Place, address: str, port: int, size: int) -> float:
    """Return the time to send so many bytes and to receive them back."""
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
    """Make a namespace on the node's network that has no route to pods."""
    with Netns("neighbour") as netns:
        port = "to-neighbour"
        run("ip", "-n", node.name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", netns.name)
        run("ip", "-n", node.name, "link", "set", port, "master", bridge, "up")
        run("ip", "-n", netns.name, "address", "add", address, "dev", "eth0")
        run("ip", "-n", netns.name, "link", "set", "eth0", "up")
        yield netns
        run("ip", "-n", node.name, "link", "delete", port)


def steady_rate(source: Place, sink: Place, address: str, port: int = 9000) -> float:
    """Return the bits per second from a namespace to another one's address, after the initial burst."""
    with entered(sink):
        listening = socket.create_server((address, port))
    with listening:
        with entered(source):
            client = socket.create_connection((address, port), timeout=TIMEOUT_SECONDS)
        with client, closing(listening.accept()[0]) as connection:
            thread = threading.Thread(target=_flood, args=(client,), name="flood")
            thread.start()
            try:
                return _settled(connection)
            finally:
                connection.shutdown(socket.SHUT_RDWR)
                client.shutdown(socket.SHUT_RDWR)
                thread.join()


def _flood(connection: socket.socket) -> None:
    data = bytes(_CHUNK)
    with suppress(OSError):
        while True:
            connection.sendall(data)


def _settled(connection: socket.socket) -> float:
    """Return the rate of the first second with little data, or at the timeout that of the last second."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        started, received = time.monotonic(), 0
        while time.monotonic() < started + _WINDOW_SECONDS:
            received += len(connection.recv(_CHUNK))
        rate = received * 8 / (time.monotonic() - started)
        if rate < _FEW or time.monotonic() > until:
            return rate
