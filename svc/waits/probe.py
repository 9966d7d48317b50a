"""One probe of a readiness gate. The status of the final response decides; redirects are followed.

Probes use sockets without a client library. All steps, including redirects, share one time budget, so a slow server takes no
longer than a silent one. No environment variable can set a proxy.
"""

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

from svc.model.field_errors import without_credentials, without_query
from svc.model.waits import MAX_URL, Gate, TlsTrust, parse_gate
from svc.values import dataclass

if TYPE_CHECKING:
    import ssl

PROBE_SECONDS: Final = 5.0
MAX_REDIRECTS: Final = 10

_MAX_HEAD: Final = 16 << 10  # bytes of a head and of interim responses before it
_STATUS: Final = re.compile(rb"HTTP/1\.\d (\d{3})(?: [^\r\n]*)?\r?\n")
_LOCATION: Final = re.compile(rb"^location:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_REDIRECTS: Final = (301, 302, 303, 307, 308)  # RFC 9110, section 15.4: the other ones have no single target

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe, with a text for users."""

    ready: bool
    text: str


UNANSWERED: Final = ProbeResult(False, "timed out without an answer")


class NotHttp(Exception):
    """The server does not speak HTTP/1."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status of a response. `location` is empty unless the response redirects."""

    status: int
    location: str = ""


class BadRedirect(Exception):
    """The gate redirects to a URL that probes do not follow; the text gives the reason."""


class Probe:
    """A probe, for one use: one thread calls `run`, and another may call `cancel` to end it soon."""

    def __init__(self, gate: Gate, trust: TlsTrust) -> None:
        self._gate = gate  # the one that is probed now
        self._first = gate
        self._trust = trust
        self._until = time.monotonic() + PROBE_SECONDS
        self._socket: socket.socket | None = None
        self._cancelled = False

    def run(self) -> ProbeResult:
        """Probe the gate. It is ready if the final response has a status from 200 to 399. A followed redirect is not final."""
        try:
            status = self._final_status()
        except NotHttp:
            return self._answer(False, "does not speak HTTP/1")
        except BadRedirect as refusal:
            return self._answer(False, str(refusal))
        except OSError as failure:
            return self._answer(False, _in_words(failure))
        finally:
            if self._socket is not None:
                self._socket.close()
        return self._answer(200 <= status < 400, f"status {status}")

    def cancel(self) -> None:
        self._cancelled = True
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # SSLSocket.shutdown would also drop the TLS state

    def _answer(self, ready: bool, text: str) -> ProbeResult:
        """Return the result. After a redirect it names the URL that answered."""
        redirected = self._gate is not self._first
        return ProbeResult(ready, f"{text} (redirected to {_shown(self._gate.url)})" if redirected else text)

    def _final_status(self) -> int:
        for _ in range(MAX_REDIRECTS + 1):
            head = self._ask()
            if not head.location:
                return head.status
            self._gate = _target(self._gate, head.location)
        raise BadRedirect(f"redirects more than {MAX_REDIRECTS} times")

    def _ask(self) -> Head:
        connection = self._connected()
        request = (
            f"GET {self._gate.target} HTTP/1.1\r\nHost: {self._gate.authority}\r\nUser-Agent: svc\r\nConnection: close\r\n\r\n"
        )
        self._timed(lambda: connection.sendall(request.encode()))
        data = b""
        while (head := parse_head(data)) is None:
            chunk = self._timed(lambda: connection.recv(4096))
            if not chunk:
                raise ConnectionResetError
            data += chunk
        return head

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
        import ssl  # few gates use TLS, and the import is slow

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


def parse_head(data: bytes) -> Head | None:
    """Return the head of the final response, or None if more must be read. Raise NotHttp.

    Statuses below 200 precede the final one (RFC 9110, section 15.2). Only of a redirect more than the first line is read.
    """
    rest, complete = data, True
    while complete and (match := _STATUS.match(rest)):
        status = int(match[1])
        head, separator, after = rest.partition(b"\r\n\r\n")
        complete = bool(separator)
        if status >= 200 and status not in _REDIRECTS:
            return Head(status)
        if status >= 200 and complete:
            found = _LOCATION.search(head)
            return Head(status, found[1].decode("latin-1") if found else "")
        if complete:
            rest = after
    if (complete and b"\n" in rest) or len(data) > _MAX_HEAD:
        raise NotHttp
    return None


def _target(gate: Gate, location: str) -> Gate:
    """Return the target of a redirect. Raise BadRedirect if it is not usable."""
    try:
        url = urljoin(gate.url, location)
    except ValueError:  # brackets without an address
        url = location
    try:
        target = parse_gate(url)
    except ValueError as problem:
        raise BadRedirect(f"redirects to {_shown(url)!r}, which {problem}") from None
    if gate.tls and not target.tls:
        raise BadRedirect(f"redirects from https to {_shown(url)!r}")
    return target


def _shown(url: str) -> str:
    """Return the URL without credentials and query."""
    return without_query(without_credentials(url[:MAX_URL]))


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


def _settings(trust: TlsTrust) -> "ssl.SSLContext":
    """Return the TLS settings. Raise OSError, which names the user's file, if the authorities cannot be read."""
    try:
        return _tls(trust, _stamp(trust))
    except OSError as failure:
        if not trust.ca_file:
            raise
        reason = getattr(failure, "reason", "") or failure.strerror or failure
        raise OSError(f"readiness_gates_ca_file {trust.ca_file!r} is of no use: {reason}") from failure


def _stamp(trust: TlsTrust) -> float:
    """Return a value that changes when the authorities' file is replaced. Raise OSError if the file cannot be read."""
    import ssl

    path = trust.ca_file or ssl.get_default_verify_paths().cafile
    return Path(path).stat().st_mtime if trust.verify and path else 0.0


@lru_cache(maxsize=8)
def _tls(trust: TlsTrust, _stamp: float) -> "ssl.SSLContext":
    """Return cached TLS settings, because loading the system's authorities takes 10 ms or more."""
    import ssl

    from svc.tls import prepare

    if trust.verify:
        context = ssl.create_default_context(cafile=trust.ca_file or None)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    prepare(context)
    return context
