"""A TCP proxy on loopback that discards or delays data on demand."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from harness.enter_netns import entered
from harness.netns import Netns

_CHUNK = 1 << 16


class Proxy:
    """A proxy. `discard_requests`, `discard_replies` and `delay` can be set at any time. `cut` breaks every connection."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._pumps: list[threading.Thread] = []
        self.discard_requests = False
        self.discard_replies = False
        self.delay = 0.0  # seconds for every reply
        self.connections = 0  # all connections since the start
        self._thread = threading.Thread(target=self._accept, name="proxy")
        self._thread.start()

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def cut(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        self.cut()
        for pump in self._pumps:
            pump.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # shut down
                return
            self.connections += 1
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # data of one write arrives together
            with self._lock:
                self._connections += [client, server]
            self._pump(client, server)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        def close() -> None:
            client.close()
            server.close()

        ends = threading.Barrier(2, action=close)
        for source, sink, name in ((client, server, "discard_requests"), (server, client, "discard_replies")):
            pump = threading.Thread(target=self._move, args=(source, sink, name, ends), name=f"proxy-{name}")
            self._pumps.append(pump)
            pump.start()

    def _move(self, source: socket.socket, sink: socket.socket, name: str, ends: threading.Barrier) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if name == "discard_replies" and self.delay:
                    time.sleep(self.delay)
                    data += _waiting(source)
                if not getattr(self, name):
                    sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        ends.wait()


def _waiting(source: socket.socket) -> bytes:
    """Return whether data is waiting. Data that arrived during the delay is already late."""
    try:
        return source.recv(_CHUNK, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    running = Proxy(port)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def mute(inside: Netns | None = None) -> Iterator[str]:
    """Yield the authority of a server that accepts connections and sends nothing."""
    with entered(inside) if inside else nullcontext():
        listening = socket.create_server(("127.0.0.1", 0), backlog=64)  # the kernel completes the handshake
    with listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
