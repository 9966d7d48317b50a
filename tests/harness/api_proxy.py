"""An HTTP proxy for an API server, which counts requests and fails some on demand."""

import http.client
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from harness.kube import Kube


class Fate(Enum):
    """The treatment of a request."""

    ANSWERED = "answered"  # the proxy answers; the API server does not get the request
    NEVER_SENT = "never sent"  # the connection breaks before the API server gets the request
    REPLY_LOST = "reply lost"  # the connection breaks after the API server has executed the request
    LATE = "late"  # the API server executes the request, and its answer takes `seconds` longer


@dataclass
class Order:
    """The fate of the next `times` requests whose `METHOD path` matches the pattern."""

    fate: Fate
    pattern: str
    times: int = 1
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0


class ApiProxy:
    """An API proxy, which listens inside the `with` block.

    `calls` lists the requests so far as `METHOD path`, without the query. `forbidden` lists those that the API server refused
    for lack of a right.
    """

    def __init__(self, kube: Kube, token: str = "") -> None:
        """`token` is for clients that send theirs over TLS only."""
        self._kube = kube
        self.token = token
        self._lock = threading.Lock()
        self._orders: list[Order] = []
        self._sockets: set[socket.socket] = set()
        self._context = ssl.create_default_context(cafile=str(kube.authority))
        self.calls: list[str] = []
        self.forbidden: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def arm(self, order: Order) -> None:
        with self._lock:
            self._orders.append(order)

    def disarm(self) -> None:
        """Let all further requests pass."""
        with self._lock:
            self._orders.clear()

    def __enter__(self) -> "ApiProxy":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self.hang_up()
        self._server.server_close()

    def hang_up(self) -> None:
        """Break every connection."""
        with self._lock:
            connections = tuple(self._sockets)
        for one in connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def hold(self, one: socket.socket, *, kept: bool) -> None:
        with self._lock:
            (self._sockets.add if kept else self._sockets.discard)(one)

    def note(self, method: str, path: str) -> Order | None:
        """Count a request. Return the order that matches it, or None."""
        with self._lock:
            self.calls.append(f"{method} {path.partition('?')[0]}")
            for order in self._orders:
                if order.times and re.search(order.pattern, f"{method} {path}"):
                    order.times -= 1
                    return order
        return None

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self._kube.port, context=self._context, timeout=60)


class _Handler(BaseHTTPRequestHandler):
    """A connection of a client. It has one to the API server, which it keeps: handshakes would take most of the time."""

    proxy: ApiProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.upstream = self.proxy.connect()
        self.proxy.hold(self.connection, kept=True)

    def handle(self) -> None:
        with suppress(ConnectionResetError):  # of a client that was killed
            super().handle()

    def finish(self) -> None:
        self.proxy.hold(self.connection, kept=False)
        self.upstream.close()
        with suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its parent's name
        """Log nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        order = self.proxy.note(self.command, self.path)
        try:
            if order is None:
                self._pass_on(body)
            elif order.fate is Fate.ANSWERED:
                self._answer(order.status, order.headers, order.body)
            elif order.fate is Fate.LATE:
                self._pass_on(body, order.seconds)
            else:
                if order.fate is Fate.REPLY_LOST:
                    self._carry_out(body)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
        except (OSError, http.client.HTTPException):
            self.upstream.close()  # it may have a reply that was not read to its end

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 as the parent finds them

    def _carry_out(self, body: bytes) -> None:
        self._forward(body).read()

    def _pass_on(self, body: bytes, late_seconds: float = 0.0) -> None:
        reply = self._forward(body)
        time.sleep(late_seconds)
        if "watch=true" in self.path:
            self._stream(reply)
        else:
            self._answer(reply.status, {"Content-Type": reply.headers["Content-Type"]}, reply.read())

    def _forward(self, body: bytes) -> http.client.HTTPResponse:
        headers = {
            name: text for name, text in self.headers.items() if name not in ("Host", "Content-Length", "Accept-Encoding")
        }
        if self.proxy.token:
            headers["Authorization"] = f"Bearer {self.proxy.token}"
        if self.upstream.sock is not None and select.select([self.upstream.sock], [], [], 0)[0]:
            self.upstream.close()  # the API server has closed it; the next request opens it again
        self.upstream.request(self.command, self.path, body or None, headers)
        reply = self.upstream.getresponse()
        if reply.status == HTTPStatus.FORBIDDEN:
            self.proxy.forbidden.append(f"{self.command} {self.path}")
        return reply

    def _stream(self, reply: http.client.HTTPResponse) -> None:
        assert self.upstream.sock is not None
        upstream = self.upstream.sock
        self.proxy.hold(upstream, kept=True)
        self.send_response(reply.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while chunk := reply.read1(65536):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            self.proxy.hold(upstream, kept=False)

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
