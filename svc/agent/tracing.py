"""Spans of calls as OTLP/JSON, to a file or a collector. Imported only if traces are enabled.

A worker only appends a finished call to a bounded buffer. One thread encodes and delivers. Calls that do not fit into the
buffer, or that the receiver does not take, are dropped, and their spans are counted.
"""

import http.client
import logging
import os
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

import svc
from svc import tls
from svc.call_trace import CallTrace
from svc.logs.log_file import append
from svc.logs.rotation import prune
from svc.model.field_errors import without_query
from svc.values import dataclass

MAX_CALLS: Final = 4096  # in the buffer; a call takes some 2 KB
BATCH_CALLS: Final = 256
PERIOD_SECONDS: Final = 1.0  # between deliveries
SEND_SECONDS: Final = 5.0  # limit for each step of a request to a collector
CLOSE_SECONDS: Final = 2.0  # limit of the last delivery, at the end of the agent
FILE_BYTES: Final = 16 << 20  # a larger file is rotated
_FILE_DAYS, _FILE_COUNT = 7, 4  # rotated files that are kept
_SERVER, _INTERNAL = 2, 1  # span kinds of OTLP
_OK, _ERROR = 1, 2  # status codes of OTLP
_DEFAULT_PATH: Final = "/v1/traces"  # of OTLP over HTTP
_ANSWER_BYTES: Final = 65536
_MESSAGE_CHARACTERS: Final = 200  # of a collector, in the log
_ATTRIBUTES: Final = {
    "verb": "cni.verb",
    "container": "cni.container_id",
    "ifname": "cni.ifname",
    "network": "cni.network",
    "pod": "cni.pod",
}

_AGENT: Final = f"svc-agent/{svc.__version__}"

Json = dict[str, Any]
_Rejected = tuple[int, str]
"""Number of spans that a receiver has rejected, and its reason."""

log = logging.getLogger("svc.agent")


@dataclass(frozen=True, slots=True)
class _Call:
    """A finished call. Its times are those of `time.perf_counter`."""

    trace: CallTrace
    status: int
    arrived: float
    ended: float

    @property
    def spans(self) -> int:
        return 2 + len(self.trace.spans or ())


class Tracer:
    """Delivery of the spans to `target`, a path or a URL, until `close`. Raise OSError if the file cannot be written.

    `dropped` receives the number of spans that are lost.
    """

    def __init__(self, target: str, dropped: Callable[[int], None]) -> None:
        self._deliver: Callable[[bytes], _Rejected] = _Collector(target).send if "://" in target else _File(target).write
        self._target = without_query(target)
        self._dropped = dropped
        self._calls: deque[_Call] = deque()
        self._wake = threading.Event()
        self._is_stopping = False
        self._is_failing = False
        self._resource = _resource()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def add(self, trace: CallTrace, status: int, arrived: float) -> None:
        """Add a call that is answered. If its caller's trace is not sampled, ignore it."""
        if trace.fields.get("traceparent", "-01")[-1] not in "13579bdf":
            return
        call = _Call(trace, status, arrived, time.perf_counter())
        if len(self._calls) >= MAX_CALLS:
            self._dropped(call.spans)
            return
        self._calls.append(call)
        if len(self._calls) >= BATCH_CALLS:
            self._wake.set()

    def close(self) -> None:
        """Deliver the rest, for at most CLOSE_SECONDS. Drop what remains."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)
        if left := sum(call.spans for call in self._calls):
            log.warning("%d spans were not delivered to %s", left, self._target)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(PERIOD_SECONDS)
            self._wake.clear()
            is_last = self._is_stopping  # read before the buffer, so that no call of before `close` is left
            while self._calls:
                self._flush()

    def _flush(self) -> None:
        batch = [self._calls.popleft() for _ in range(min(BATCH_CALLS, len(self._calls)))]
        try:
            rejected, reason = self._deliver(_encoded(batch, self._resource))
        except Exception as failure:  # one batch must not end the thread
            rejected, reason = sum(call.spans for call in batch), str(failure) or type(failure).__name__
        if rejected:
            self._dropped(rejected)
        self._report(reason if rejected else "")

    def _report(self, reason: str) -> None:
        """Log when the receiver begins to refuse spans, and when it takes them again."""
        if reason and not self._is_failing:
            log.warning("traces are dropped: %s does not take them: %s", self._target, reason)
        elif self._is_failing and not reason:
            log.info("traces are delivered to %s again", self._target)
        self._is_failing = bool(reason)


class _File:
    """A file with one request of OTLP on each line."""

    def __init__(self, path: str) -> None:
        self._path = path
        append(path, b"", FILE_BYTES)

    def write(self, data: bytes) -> _Rejected:
        if append(self._path, data + b"\n", FILE_BYTES):
            prune(self._path, _FILE_DAYS, _FILE_COUNT)
        return 0, ""


class _Collector:
    """A collector at a URL. Each request has its own connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if is_secure else 80)
        path = parts.path if parts.path.strip("/") else _DEFAULT_PATH
        self._path = path + (f"?{parts.query}" if parts.query else "")
        self._tls: ssl.SSLContext | None = None
        if is_secure:
            self._tls = ssl.create_default_context()
            tls.prepare(self._tls)

    def send(self, data: bytes) -> _Rejected:
        """Send a request. Raise OSError or HTTPException if the collector does not accept it."""
        with closing(self._connection()) as connection:
            connection.request("POST", self._path, data, {"Content-Type": "application/json", "User-Agent": _AGENT})
            answer = connection.getresponse()
            fields = _fields(answer.read(_ANSWER_BYTES))
            if answer.status >= 300:
                raise OSError(f"it answered {answer.status} {answer.reason}{_message(': ', fields.get('message'))}")
        partial = fields.get("partialSuccess")
        if not isinstance(partial, dict):
            return 0, ""
        return int(partial.get("rejectedSpans") or 0), f"it rejected spans{_message(': ', partial.get('errorMessage'))}"

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=SEND_SECONDS)
        return http.client.HTTPSConnection(self._host, self._port, timeout=SEND_SECONDS, context=self._tls)


def _fields(answer: bytes) -> Json:
    """Return the fields of an answer in JSON; none if it is not an object."""
    try:
        found = orjson.loads(answer)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(separator: str, text: object) -> str:
    """Return the message of a collector on one line; empty if it sent none."""
    return separator + " ".join(str(text).split())[:_MESSAGE_CHARACTERS] if text else ""


def _resource() -> Json:
    names = {"service.name": "svc-agent", "service.version": svc.__version__, "host.name": socket.gethostname()}
    process = {"key": "process.pid", "value": {"intValue": str(os.getpid())}}
    return {"attributes": [*(_attribute(*pair) for pair in names.items()), process]}


def _encoded(calls: Sequence[_Call], resource: Json) -> bytes:
    """Return an ExportTraceServiceRequest."""
    offset = time.time_ns() - time.perf_counter_ns()
    spans = [span for call in calls for span in _spans(call, offset)]
    scope = {"scope": {"name": "svc.agent", "version": svc.__version__}, "spans": spans}
    return orjson.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def _spans(call: _Call, offset: int) -> Iterator[Json]:
    """Yield the span of a call, then those of its phases. `offset` is added to times for Unix time."""
    trace = call.trace
    _, trace_id, parent, _ = f"{trace.fields.get('traceparent', '')}---".split("-")[:4]
    trace_id, own = trace_id or secrets.token_hex(16), secrets.token_hex(8)
    verb = trace.fields.get("verb", "")
    span = _span((trace_id, own, parent), f"CNI {verb}".rstrip(), (call.arrived, call.ended), offset)
    found = {_ATTRIBUTES[name]: text for name, text in trace.fields.items() if name in _ATTRIBUTES}
    span["attributes"] = [_attribute(*pair) for pair in {**found, "svc.request": trace.request_id}.items()]
    span["kind"], span["status"] = _SERVER, _status(call)
    yield span
    queue = ("queue", call.arrived, call.arrived + trace.phases.get("queue", 0.0) / 1000)
    for name, began, ended in (queue, *(trace.spans or ())):
        yield _span((trace_id, secrets.token_hex(8), own), name, (began, ended), offset)


def _span(ids: tuple[str, str, str], name: str, times: tuple[float, float], offset: int) -> Json:
    began, ended = (str(int(moment * 1e9) + offset) for moment in times)
    trace, own, parent = ids
    found = {"traceId": trace, "spanId": own, "name": name, "kind": _INTERNAL}
    return found | ({"parentSpanId": parent} if parent else {}) | {"startTimeUnixNano": began, "endTimeUnixNano": ended}


def _status(call: _Call) -> Json:
    if not call.status:
        return {"code": _OK}
    text = next((text for level, text in call.trace.messages if level >= logging.ERROR), "")
    _, code, message = text.partition(" code ")  # before it are the request ID and the fields
    return {"code": _ERROR, "message": _printable((code + message).strip())}


def _attribute(name: str, text: str) -> Json:
    return {"key": name, "value": {"stringValue": _printable(text)}}


def _printable(text: str) -> str:
    """Return the text with escapes for bytes that are not UTF-8, which JSON cannot have."""
    return text.encode(errors="backslashreplace").decode()
