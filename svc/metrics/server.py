"""Text over HTTP, such as the metrics of a program. Imported only if a program serves one.

One thread serves all connections, and none of them blocks it. A client that sends or reads slowly occupies its connection and
a copy of the text until its deadline. A connection serves one request.
"""

import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from svc.values import dataclass

CLIENT_SECONDS: Final = 5.0  # limit for a client to send its request and to read the reply
MAX_CLIENTS: Final = 32  # the oldest one is dropped for a further one
MAX_REQUEST_BYTES: Final = 16384
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_BACKLOG: Final = 64
_CHUNK: Final = 1 << 16

log = logging.getLogger("svc.metrics")


@dataclass(slots=True)
class _Client:
    """A connection: what it has sent, and what is still to be sent to it."""

    socket: socket.socket
    deadline: float  # monotonic time
    request: bytes = b""
    reply: memoryview = memoryview(b"")


class TextServer:
    """Server for `GET` of one path on some addresses, until `close`. `write` returns the text; it must not wait.

    `name` is that of its thread. On Unix sockets it serves root and the user of this process alone.
    """

    def __init__(self, write: Callable[[], str], path: str = "/metrics", name: str = "metrics") -> None:
        self._write = write
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._clients: dict[int, _Client] = {}
        self._stop_read, self._stop_write = socket.socketpair()
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def listen_on(self, host: str, port: int) -> socket.socket:
        """Listen on a TCP address. Call it before `start`. Return the socket. Raise OSError."""
        return self.add(_listen((host, port)))

    def add(self, listening: socket.socket) -> socket.socket:
        """Serve the clients of a socket that listens, and return it. Call it before `start`."""
        self._listeners.append(listening)
        self._selector.register(listening, selectors.EVENT_READ)
        return listening

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread if it runs, and all connections. A second call does nothing."""
        if self._stop_write.fileno() < 0:
            return
        self._stop_write.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.close()
        for each in (*self._listeners, self._stop_read, self._stop_write):
            each.close()

    def _serve(self) -> None:
        while True:
            events = self._selector.select(self._until_next_deadline())
            if any(key.fileobj is self._stop_read for key, _ in events):
                return
            for key, _ in events:
                if key.data is None:
                    self._accept(key.fileobj)  # type: ignore[arg-type]  # a socket
                elif key.fd in self._clients:
                    self._continue(key.data)
            self._drop_late()

    def _until_next_deadline(self) -> float | None:
        if not self._clients:
            return None
        return max(0.0, min(client.deadline for client in self._clients.values()) - time.monotonic())

    def _drop_late(self) -> None:
        now = time.monotonic()
        for client in [client for client in self._clients.values() if client.deadline <= now]:
            self._drop(client)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:  # the client is gone, or no descriptor is left
            time.sleep(0.01)
            return
        if listening.family == socket.AF_UNIX and _user(connection) not in (0, os.geteuid()):
            connection.close()
            return
        connection.setblocking(False)
        if len(self._clients) >= MAX_CLIENTS:
            self._drop(next(iter(self._clients.values())))
        client = _Client(connection, time.monotonic() + CLIENT_SECONDS)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _continue(self, client: _Client) -> None:
        try:
            is_done = self._send(client) if client.reply else self._receive(client)
        except BlockingIOError:
            return
        except OSError:
            is_done = True
        if is_done:
            self._drop(client)

    def _receive(self, client: _Client) -> bool:
        """Read from a client, and begin the reply to a complete request. Return whether the connection is done."""
        data = client.socket.recv(_CHUNK)
        client.request += data
        if not data:
            return True
        if b"\r\n\r\n" not in client.request and b"\n\n" not in client.request and len(client.request) < MAX_REQUEST_BYTES:
            return False
        client.reply = memoryview(self._reply(client.request))
        self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
        return self._send(client)

    def _send(self, client: _Client) -> bool:
        """Send what the connection accepts now. Return whether that was the rest."""
        client.reply = client.reply[client.socket.send(client.reply) :]
        return not client.reply

    def _reply(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r")[0].partition(b" ")
        if len(request) >= MAX_REQUEST_BYTES:
            return _message("431 Request Header Fields Too Large", "the request is too long\n")
        if method not in (b"GET", b"HEAD"):
            return _message("405 Method Not Allowed", "use GET\n", ("Allow: GET, HEAD",))
        if rest.split(b" ")[0].split(b"?")[0] != self._path.encode():
            return _message("404 Not Found", f"see {self._path}\n")
        try:
            return _message("200 OK", self._write(), is_head=method == b"HEAD")
        except Exception:
            log.exception("the text of %s cannot be computed", self._path)
            return _message("500 Internal Server Error", "see the log of the program\n")

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.socket.fileno(), None)
        self._selector.unregister(client.socket)
        with suppress(OSError):  # so that unread bytes of the request do not reset the connection before the reply is read
            client.socket.shutdown(socket.SHUT_WR)
        client.socket.close()


def _listen(address: tuple[str, int]) -> socket.socket:
    """Listen on a TCP address. Raise OSError. `socket.create_server` adds the address to the text of its errors."""
    listening = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listening.family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _message(status: str, body: str, headers: Iterable[str] = (), *, is_head: bool = False) -> bytes:
    data = body.encode()
    own = (f"Content-Type: {CONTENT_TYPE}", f"Content-Length: {len(data)}", "Connection: close")
    head = "\r\n".join((f"HTTP/1.1 {status}", *own, *headers, "", ""))
    return head.encode() + (b"" if is_head else data)


def _user(connection: socket.socket) -> int:
    """Return the user ID of the client."""
    return int(_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])
