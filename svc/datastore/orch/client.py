"""Requests to the API server: paths and JSON in, JSON out.

1. Every request has a deadline. Every connection and every read has a timeout.
2. Until the deadline, the client retries requests that the server did not apply: refused connections, 429 and 503 after the
   delay that the server requests, and 401 once with reloaded credentials. It also retries reads whose answer is lost.
3. A write whose answer is lost raises Unreachable with `maybe_applied`. The caller has to determine the outcome.
"""

import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import orjson
import urllib3
from urllib3 import exceptions as failures

from svc import __version__, deadline
from svc.call_trace import explain
from svc.datastore.api import StoreError
from svc.datastore.orch.answers import objects_in, require_object
from svc.datastore.orch.auth import ApiAuth, Credentials
from svc.datastore.orch.broken_connections import reason_of_break
from svc.datastore.orch.error_hints import remedy_for
from svc.metrics import GET, LIST, WRITE, StoreMeter
from svc.retry import Backoff
from svc.values import dataclass

Json = dict[str, Any]
Params = Mapping[str, str]

CALL_SECONDS = 10.0  # for a call with all its retries
UNREACHABLE_SECONDS = 2.0  # for retries at a server that does not answer
PAGE = 500  # objects per request of a list
SMALL_PAGE = 200  # the same if the caller reads page by page to save memory: a pod or node takes up to 100 KiB
WATCH_SECONDS = 240  # after which the server ends a watch; this bounds a watch on a dead connection
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

_CONNECT_SECONDS = 3.0
_SHORTEST_SECONDS = 0.1  # minimum timeout of a request close to the deadline
_MIN_BACKOFF, _MAX_BACKOFF = 0.05, 2.0
_WAIT = (429, 503)  # the server requests a retry
_UNCERTAIN = (500, 502, 504)  # for a write: the server may have applied it
_JSON = "application/json"
_APPLY_PATCH = "application/apply-patch+yaml"


class ApiError(StoreError):
    """Refusal by the server: the `reason` of its Status (such as `AlreadyExists`, or empty) and the `fields` that it names."""

    def __init__(
        self, status: int, reason: str, message: str, *, call: str, fields: frozenset[str] = frozenset(), remedy: str = ""
    ) -> None:
        details = remedy or remedy_for(status, call)
        super().__init__(f"{call}: {status} {message.removeprefix(f'{status} ')}", details=details)
        self.status = status
        self.lacks_right = status == 403
        self.reason = reason
        self.fields = fields

    @property
    def is_missing(self) -> bool:
        """Whether the object does not exist. With another reason of 404, a proxy has answered, or the kind is not served."""
        return self.status == 404 and self.reason == "NotFound"


class Unreachable(StoreError):
    """Failure to get an answer. `maybe_applied` is true if the server may have applied the request."""

    def __init__(self, msg: str, *, details: str, maybe_applied: bool) -> None:
        super().__init__(msg, details=details)
        self.maybe_applied = maybe_applied


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a list, and the revision from which a watch continues."""

    items: list[Json]
    revision: str


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    operation: int  # of svc.metrics

    @property
    def is_read(self) -> bool:
        return self.method == "GET"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    data: bytes
    retry_after: str


class Client:
    """Session with one API server. Thread-safe. Paths are absolute, such as /api/v1/nodes/NAME.

    `right_remedy` is the fix for every missing right, in a program whose rights are not those of the plugin.
    """

    def __init__(self, auth: ApiAuth, right_remedy: str = "") -> None:
        self.meter = StoreMeter()
        self._auth, self.settings = auth, auth.settings
        self._right_remedy = right_remedy
        self._metering = threading.Lock()
        self._closed = threading.Event()

    @property
    def place(self) -> str:
        return self._auth.place

    def token_expires(self) -> float | None:
        """Return the Unix time at which the token expires; None without a token, or if the token does not name its end."""
        return self._auth.token_expires()

    def get(self, path: str, **params: str) -> Json:
        return self._call("GET", path, params=params)

    def text(self, path: str, **params: str) -> str:
        """Return an answer that is not JSON, such as a log."""
        request = _Request("GET", _with_params(path, params), None, {}, GET)
        answer = self._answer(request)
        if answer.status >= 300:
            raise self._refusal(request, answer)
        return answer.data.decode(errors="replace")

    def get_if_served(self, path: str) -> Json | None:
        """Return an answer; None if the server has no object at the path, or does not serve it."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def list(self, path: str, **params: str) -> Listing:
        """Return all objects, read in pages. If the server answers 410 for an expired page, list again."""
        until = time.monotonic() + deadline.remaining(CALL_SECONDS)
        while True:
            try:
                pages = list(self.pages(path, **params))
                return Listing([item for page in pages for item in page.items], pages[-1].revision)
            except ApiError as error:
                if error.status != 410 or time.monotonic() > until:
                    raise

    def pages(self, path: str, accept: str = _JSON, **params: str) -> Iterator[Listing]:
        """Yield the objects in pages of `limit`. Raise ApiError 410 for an expired page.

        A caller that empties each page holds only one of them.
        """
        wanted = {"limit": str(PAGE)} | params
        while True:
            answer = self._call("GET", path, params=wanted, accept=accept)
            metadata, items = answer.get("metadata") or {}, objects_in(answer, "items", f"GET {path}")
            yield Listing(items, str(metadata.get("resourceVersion") or ""))
            if not metadata.get("continue"):
                return
            wanted["continue"] = metadata["continue"]

    def create(self, path: str, body: Json, **params: str) -> Json:
        return self._call("POST", path, body, params=params)

    def replace(self, path: str, body: Json, **params: str) -> Json:
        return self._call("PUT", path, body, params=params)

    def patch(self, path: str, body: Any, content_type: str, **params: str) -> Json:
        return self._call("PATCH", path, body, content_type, params)

    def apply(self, path: str, body: Json, manager: str, **params: str) -> Json:
        """Send a server-side apply. `manager` becomes the owner of every field of the body."""
        return self.patch(path, body, _APPLY_PATCH, fieldManager=manager, force="true", **params)

    def delete(self, path: str, **preconditions: str | None) -> Json:
        """Delete an object. A precondition that is None does not apply."""
        wanted = {name: text for name, text in preconditions.items() if text is not None}
        return self._call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": wanted})

    def watch(self, path: str, revision: str, *, accept: str = _JSON, **params: str) -> urllib3.BaseHTTPResponse:
        """Return the changes after a revision as a reply, a JSON document a line, for WATCH_SECONDS. The caller closes it."""
        wanted = {"watch": "true", "resourceVersion": revision, "allowWatchBookmarks": "true"}
        wanted["timeoutSeconds"] = str(WATCH_SECONDS)
        request = _Request("GET", _with_params(path, wanted | params), None, {"Accept": accept}, LIST)
        reply = self._send(request, time.monotonic() + CALL_SECONDS, self._auth.current())  # for the start of the answer
        if reply.status == 401:
            reply.drain_conn()
            renewed = self._auth.renewed(self._auth.current())
            reply = self._send(request, time.monotonic() + CALL_SECONDS, renewed)
        if reply.status != 200:
            with reply:
                raise self._refusal(request, _Answer(reply.status, reply.data, ""))
        return reply

    def close(self) -> None:
        """End the waits of threads that retry. Streams stay open: their callers close them."""
        self._closed.set()
        self._auth.close()

    def _call(
        self, method: str, path: str, body: Any = None, kind: str = _JSON, params: Params | None = None, accept: str = _JSON
    ) -> Json:
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": kind})
        data = None if body is None else orjson.dumps(body)
        operation = WRITE if method != "GET" else LIST if params and "limit" in params else GET
        request = _Request(method, _with_params(path, params or {}), data, headers, operation)
        answer = self._answer(request)
        if answer.status >= 300:
            raise self._refusal(request, answer)
        try:
            return require_object(orjson.loads(answer.data), str(request))
        except ValueError:
            raise ApiError(answer.status, "", "the answer is not JSON", call=str(request)) from None

    def _answer(self, request: _Request) -> _Answer:
        """Return the first final answer; at the deadline, return a 429 or 503. Raise Unreachable if no answer comes."""
        start, backoff, renewed = time.monotonic(), Backoff(_MIN_BACKOFF, _MAX_BACKOFF), False
        until = start + deadline.remaining(CALL_SECONDS)
        while True:
            credentials = self._auth.current()
            began, started = time.monotonic(), time.perf_counter()
            try:
                answer = self._attempt(request, credentials, until)
                self._count(request, answer.status, started)
                explain(partial(_described, request, str(answer.status), began))
            except Unreachable as error:
                self.meter.failed(request.operation)
                explain(partial(_described, request, error.msg, began))
                again = request.is_read or not error.maybe_applied
                delay = backoff.next()
                left = min(until - delay, start + UNREACHABLE_SECONDS) - time.monotonic()  # a retry needs time for its answer
                if not again or delay > left or self._closed.wait(delay):
                    raise
                continue
            if answer.status == 401 and not renewed:
                self._auth.renewed(credentials)
                renewed = True
                continue
            if answer.status not in _WAIT:
                return answer
            delay = float(answer.retry_after) if answer.retry_after.isdecimal() else backoff.next()
            if delay > until - time.monotonic() or self._closed.wait(delay):
                return answer

    def _count(self, request: _Request, status: int, started: float) -> None:
        """Count an answered request. A missing object is not a failure, and a conflict is the answer to a write."""
        if status < 300 or status == 404:
            with self._metering:
                self.meter.ended(request.operation, started)
        elif status == 409:
            self.meter.conflicted()
        else:
            self.meter.failed(request.operation, is_up=status < 500 and status not in (401, 429))

    def _attempt(self, request: _Request, credentials: Credentials, until: float) -> _Answer:
        if not request.is_read and deadline.is_over():  # the process may have been paused since the caller has looked
            raise Unreachable(f"{request} was not sent", details="the time of the call is over", maybe_applied=False)
        with self._send(request, until, credentials) as reply:
            try:
                answer = _Answer(reply.status, reply.data, reply.headers.get("Retry-After", ""))
            except (failures.HTTPError, OSError) as error:
                raise _unreachable(credentials, error) from None
        if answer.status in _UNCERTAIN and not request.is_read:
            raise Unreachable(
                f"{request}: {answer.status} {_message(answer)}", details="see the API server's log", maybe_applied=True
            )
        return answer

    def _refusal(self, request: _Request, answer: _Answer) -> ApiError:
        status = _status(answer)
        reason = str(status.get("reason") or "")
        causes = (status.get("details") or {}).get("causes") or ()
        fields = frozenset(str(cause.get("field")) for cause in causes)
        remedy = self._right_remedy if answer.status == 403 else ""
        return ApiError(answer.status, reason, _message(answer), call=str(request), fields=fields, remedy=remedy)

    def _send(self, request: _Request, until: float, credentials: Credentials) -> urllib3.BaseHTTPResponse:
        if self._closed.is_set():
            raise Unreachable(f"{request} was not sent", details="the store was closed: open it again", maybe_applied=False)
        headers = {"User-Agent": f"svc/{__version__}", **request.headers}
        try:
            if authorization := credentials.authorization():
                headers["Authorization"] = authorization
            seconds = max(until - time.monotonic(), _SHORTEST_SECONDS)  # renewing the credentials may have taken time
            return credentials.pool.request(
                request.method,
                credentials.root + request.path,
                body=request.body,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(_CONNECT_SECONDS, seconds), read=seconds),
                retries=False,
                preload_content=False,
            )
        except (failures.HTTPError, OSError) as error:
            raise _unreachable(credentials, error) from None
        except ValueError:  # the message of urllib3 may quote a token
            details = "the token, or the server's URL, has characters that no header can have"
            raise Unreachable(f"{request} cannot be sent", details=details, maybe_applied=False) from None


def _described(request: _Request, outcome: str, began: float) -> str:
    return f"API server: {request}: {outcome}: {(time.monotonic() - began) * 1000:.1f} ms"


def segment(name: str) -> str:
    """Return a name, quoted as a segment of a path."""
    return quote(name, safe="")


def _with_params(path: str, params: Params) -> str:
    return f"{path}?{urlencode(params)}" if params else path


def _status(answer: _Answer) -> Json:
    """Return the Status object of an answer; {} if the answer is not from an API server."""
    try:
        status = orjson.loads(answer.data)
    except ValueError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}


def _message(answer: _Answer) -> str:
    """Return the message of the Status, or the first line if the answer is not from an API server."""
    first_line = (answer.data.decode(errors="replace").splitlines() or [""])[0][:200]
    return str(_status(answer).get("message") or first_line)


def _unreachable(credentials: Credentials, error: Exception) -> Unreachable:
    details = "see whether the API server runs there, and is reached from here"
    never_sent = isinstance(error, failures.NewConnectionError | failures.ConnectTimeoutError)
    if isinstance(error, failures.SSLError) and isinstance(error.args[0], ssl.SSLCertVerificationError):
        never_sent = True  # other errors of TLS can occur after the request was sent
        details = "its certificate is not signed by the certificate-authority of the kubeconfig: give the right one"
    reason = f"{credentials.place} does not answer: {reason_of_break(error)}"
    return Unreachable(reason, details=details, maybe_applied=not never_sent)
