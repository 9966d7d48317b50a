"""HTTP servers on a loopback address that act as readiness gates, with correct and faulty behaviour."""

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

from harness.enter_netns import entered
from harness.netns import Netns

Behaviour = Callable[["GateServer", socket.socket], None]


class GateServer:
    """A server that answers as `behaviour` says. A test may replace `behaviour` at any time.

    Each connection gets a thread. `connection_count` is the number of connections, and `heads` holds the requests.
    """

    def __init__(
        self, behaviour: Behaviour, *, inside: Netns | None = None, host: str = "127.0.0.1", port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self.behaviour = behaviour
        self.connection_count = 0
        self.heads: list[str] = []
        self.over = threading.Event()
        self._tls = tls
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with entered(inside) if inside else nullcontext():
            self._listening = socket.create_server((host, port), family=family, backlog=512)
        self.port = int(self._listening.getsockname()[1])
        authority = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.url = f"{'https' if tls else 'http'}://{authority}/ready"
        self._thread = threading.Thread(target=self._accept, name="gate-server")
        self._thread.start()

    def close(self) -> None:
        self.over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # shut down
                return
            self.connection_count += 1
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self._tls is None:
                self.behaviour(self, connection)
                return
            with self._tls.wrap_socket(connection, server_side=True) as secured:
                self.behaviour(self, secured)


@contextmanager
def serving(
    behaviour: Behaviour,
    *,
    inside: Netns | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> Iterator[GateServer]:
    server = GateServer(behaviour, inside=inside, host=host, port=port, tls=tls)
    try:
        yield server
    finally:
        server.close()


def free_port(inside: Netns | None = None) -> int:
    """Return a port without a listener."""
    with entered(inside) if inside else nullcontext(), socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def status(code: int, *headers: str) -> Behaviour:
    """Answer every request with this status."""

    def answer(server: GateServer, connection: socket.socket) -> None:
        head = _head(connection)
        server.heads.append(head)
        lines = [f"HTTP/1.1 {code} Whatever", *headers, "Content-Length: 0", "", ""]
        connection.sendall("\r\n".join(lines).encode())

    return answer


def to_itself(server: GateServer, connection: socket.socket) -> None:
    """Redirect to the same URL."""
    status(302, f"Location: {server.url}")(server, connection)


def raw(answer: bytes) -> Behaviour:
    """Send these bytes and close the connection."""

    def say(server: GateServer, connection: socket.socket) -> None:
        _head(connection)
        connection.sendall(answer)

    return say


def silent(server: GateServer, connection: socket.socket) -> None:
    """Read the request and send nothing."""
    while connection.recv(4096):
        pass


def dribbling(server: GateServer, connection: socket.socket) -> None:
    """Send one byte at a time, slowly."""
    for number in range(200):
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: "[number : number + 1] or b"x")
        if server.over.wait(0.3):
            return


def resetting(server: GateServer, connection: socket.socket) -> None:
    """Reset every connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _head(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(4096)
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return data.decode()
