"""One question to one readiness gate. Only the status line of the answer is read: nothing else decides.

Sockets without a client library: every step has the rest of one budget, so that a server that dribbles costs no more than
one that is silent; no variable of the environment leads to a proxy; redirects are answers, not directions.
"""

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from svc.model.gate import Gate
from svc.model.hold import Trust

if TYPE_CHECKING:
    import ssl

PROBE_SECONDS: Final = 5.0
_HEAD_LIMIT: Final = 16 << 10  # bytes, of a status line and of interim answers before it
_STATUS: Final = re.compile(rb"HTTP/1\.\d (\d{3})(?: [^\r\n]*)?\r?\n")

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a probe, in words for a user."""

    ready: bool
    text: str


UNANSWERED: Final = Answer(False, "timed out without an answer")


class NotHttp(Exception):
    """The server says something else."""


class Probe:
    """Use once: `run` on one thread; `cancel` from another ends it soon."""

    def __init__(self, gate: Gate, trust: Trust) -> None:
        self._gate = gate
        self._trust = trust
        self._until = time.monotonic() + PROBE_SECONDS
        self._socket: socket.socket | None = None
        self._cancelled = False

    def run(self) -> Answer:
        """Ready is a status from 200 to 399."""
        try:
            status = self._status()
        except NotHttp:
            return Answer(False, "does not speak HTTP/1")
        except OSError as failure:
            return Answer(False, _in_words(failure))
        finally:
            if self._socket is not None:
                self._socket.close()
        return Answer(200 <= status < 400, f"status {status}")

    def cancel(self) -> None:
        self._cancelled = True
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # below TLS, which would take part in it

    def _status(self) -> int:
        connection = self._connected()
        request = (
            f"GET {self._gate.target} HTTP/1.1\r\nHost: {self._gate.authority}\r\nUser-Agent: svc\r\nConnection: close\r\n\r\n"
        )
        self._timed(lambda: connection.sendall(request.encode()))
        data = b""
        while (status := _final_status(data)) is None:
            chunk = self._timed(lambda: connection.recv(4096))
            if not chunk:
                raise ConnectionResetError
            data += chunk
        return status

    def _connected(self) -> socket.socket:
        found = socket.getaddrinfo(self._gate.host, self._gate.port, type=socket.SOCK_STREAM)
        last: OSError = OSError("no address")
        for number, (family, kind, protocol, _, address) in enumerate(found):
            share = (self._until - time.monotonic()) / (len(found) - number)
            try:
                return self._secured(self._connect(family, kind, protocol, address, share))
            except OSError as failure:
                last = failure
        raise last

    def _connect(self, family: int, kind: int, protocol: int, address: Address, seconds: float) -> socket.socket:
        self._use(socket.socket(family, kind, protocol))
        assert self._socket is not None
        if seconds <= 0:
            raise TimeoutError
        self._socket.settimeout(seconds)
        self._socket.connect(address)
        return self._socket

    def _secured(self, connection: socket.socket) -> socket.socket:
        if not self._gate.tls:
            return connection
        import ssl  # few gates need it, and it is slow to load

        secured = _settings(self._trust).wrap_socket(connection, server_hostname=self._gate.host, do_handshake_on_connect=False)
        assert isinstance(secured, ssl.SSLSocket)
        self._use(secured)
        self._timed(secured.do_handshake)
        return secured

    def _use(self, connection: socket.socket) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = connection
        if self._cancelled:
            raise TimeoutError

    def _timed(self, step: Callable[[], "bytes | None"]) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0 or self._socket is None:
            raise TimeoutError
        self._socket.settimeout(left)
        return step() or b""


def _final_status(data: bytes) -> int | None:
    """None while more must be read; answers below 200 only come before the real one (RFC 9110, section 15.2)."""
    rest, whole = data, b"yes"
    while whole and (match := _STATUS.match(rest)):
        if (status := int(match[1])) >= 200:
            return status
        _, whole, rest = rest.partition(b"\r\n\r\n")
    if whole and b"\n" in rest:
        raise NotHttp
    if len(data) > _HEAD_LIMIT:
        raise NotHttp
    return None


def _in_words(failure: OSError) -> str:
    if reason := getattr(failure, "verify_message", ""):
        return f"certificate is not trusted: {reason}"
    if isinstance(failure, TimeoutError):
        return UNANSWERED.text
    if isinstance(failure, ConnectionRefusedError):
        return "connection refused"
    if isinstance(failure, ConnectionResetError | BrokenPipeError):
        return "connection closed without an answer"
    if isinstance(failure, socket.gaierror):
        return f"name does not resolve: {failure.strerror}"
    if reason := getattr(failure, "reason", ""):
        return f"TLS failed: {reason}"
    return failure.strerror or str(failure)


def _settings(trust: Trust) -> "ssl.SSLContext":
    """OSError when the authorities cannot be read; the user's own file is named."""
    try:
        return _tls(trust, _stamp(trust))
    except OSError as failure:
        if not trust.ca_file:
            raise
        reason = getattr(failure, "reason", "") or failure.strerror or failure
        raise OSError(f"readiness_gates_ca_file {trust.ca_file!r} is of no use: {reason}") from failure


def _stamp(trust: Trust) -> float:
    """Changes when the authorities' file is replaced. OSError when it cannot be read."""
    import ssl

    path = trust.ca_file or ssl.get_default_verify_paths().cafile
    return Path(path).stat().st_mtime if trust.verify and path else 0.0


@lru_cache(maxsize=8)
def _tls(trust: Trust, _stamp: float) -> "ssl.SSLContext":
    """Loading the system's authorities takes 10 ms and more."""
    import ssl

    from svc.tls import prepare

    if trust.verify:
        context = ssl.create_default_context(cafile=trust.ca_file or None)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    prepare(context)
    return context
