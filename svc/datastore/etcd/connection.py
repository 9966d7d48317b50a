"""One gRPC channel per etcd server, with deadlines and failover.

With a channel per server, gRPC verifies each certificate against the name of its own server. All calls go to one server until
a call to it fails; the next call goes to the next server. The first server is chosen at random, to spread the nodes.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from svc import deadline
from svc.call_trace import explain
from svc.datastore.api import Forbidden, Position, StoreError
from svc.datastore.etcd.error_hints import NO_ANSWER_IN_TIME, remedy_for
from svc.datastore.etcd.messages import Message, rpc
from svc.datastore.etcd.settings import Cluster, Endpoint, Tls
from svc.datastore.etcd.sync_grpc import grpc
from svc.datastore.expired_pages import Expired
from svc.metrics import GET, LIST, WRITE, StoreMeter
from svc.model.errors import Code, SvcError
from svc.model.shortage import shortage_remedy
from svc.retry import Backoff
from svc.values import replace

_log = logging.getLogger(__name__)

CALL_SECONDS = 10.0  # for one call of a Backend, with all its attempts
TRY_SECONDS = 4.0  # for one attempt at one server
DIAL_SECONDS = 4.0  # for opening a connection
UNREACHABLE_ROUNDS = 5  # over all servers if none accepts connections: longer than gRPC's back-off, when calls fail at once
MIN_BACKOFF, MAX_BACKOFF = 0.1, 1.0  # seconds between two rounds over all servers

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # a watch detects a dead server within 15 s; etcd allows a ping every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", int(DIAL_SECONDS * 1000)),  # gRPC uses this as the timeout of a connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),  # shorter than the rounds of a call: the first call after an outage succeeds
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # the proxy in a runtime's environment is for pulling images
    ("grpc.use_local_subchannel_pool", 1),  # sessions with different credentials must not share a connection
)
PROBE = -1  # a write that is never applied, beside the operations of svc.metrics
_NO_ANSWER = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "INTERNAL", "UNKNOWN")  # status codes
_WITH_LEADER = (("hasleader", "true"),)  # without a leader the server ends the watch, instead of leaving it silent
_KNOCK = rpc.RangeRequest(key=b"\0", keys_only=True)
_NOT_CONNECTED = ("failed to connect", "errors resolving", "DNS resolution failed")

Result = TypeVar("Result")


class NoResponse(StoreError):
    """Failure to get an answer. The server may or may not have applied the request."""

    unreachable = False  # whether the connection could not be opened


class Compacted(Expired):
    """Failure because etcd has compacted the requested revision."""


class Stream:
    """Open watch. One thread calls `receive`; any thread may call `close`."""

    def __init__(self, call: Any, guarded: Callable[[Callable[[], Message]], Message], place: str) -> None:
        self._call = call
        self._place = place
        self._guarded = guarded

    def receive(self) -> Message:
        """Return the next WatchResponse. Raise NoResponse if the watch ends, Compacted if its start revision is compacted."""
        answer = self._guarded(lambda: next(self._call, None))
        if answer is None:
            raise NoResponse(f"{self._place} has ended a watch")
        if answer.compact_revision:
            raise Compacted(f"{self._place} has compacted what was before revision {answer.compact_revision}")
        if answer.canceled:
            raise NoResponse(f"{self._place} has cancelled a watch: {answer.cancel_reason or 'without a reason'}")
        return answer

    def close(self) -> None:
        self._call.cancel()


class EtcdConnection:
    """Connections to a cluster, opened when they are first used. Thread-safe. `discover` returns the present servers."""

    def __init__(self, cluster: Cluster, discover: Callable[[], Cluster], meter: StoreMeter | None = None) -> None:
        self._lock = threading.Lock()
        self._rediscovering = threading.Lock()
        self._discover = discover
        self._meter = meter or StoreMeter()
        self.position = Position()
        self.has_failed = False  # whether a call has failed at all servers since the last discovery
        self._is_undiscovered = False  # whether the last discovery failed
        self._closed = False
        self._use(cluster)

    @property
    def place(self) -> str:
        """Return the server of the next call, for errors."""
        with self._lock:
            return self._place(self._servers[self._current])

    def budget(self) -> "RetryBudget":
        """Return the time and attempt budget of one call, which starts now. Rediscover the servers if the last call failed."""
        until = time.monotonic() + deadline.remaining(CALL_SECONDS)
        if self.has_failed and self._cluster.discovered:
            self._rediscover()
        return RetryBudget(self, len(self._servers), until)

    def connect(self, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        """Connect to all servers in the background, for this time. Call `then` at the answer or timeout of each server.

        After a failed connection, gRPC fails calls at once. Many releases of gRPC reconnect only while a call waits.
        """
        with self._lock:
            servers = () if self._closed else tuple(self._servers)
        with suppress(ValueError):  # another thread has closed the channel
            for knock in [server.range.future(_KNOCK, timeout=seconds, wait_for_ready=True) for server in servers]:
                knock.add_done_callback(lambda _: then())

    def range(self, request: Message, seconds: float) -> Message:
        what, operation = ("list", LIST) if request.range_end else ("get", GET)
        return self._call(
            operation, lambda server: server.range(request, timeout=seconds), lambda: f"{what} {_text(request.key)}"
        )

    def txn(self, request: Message, seconds: float, operation: int) -> Message:
        """Return the answer to a transaction: a GET, a WRITE, or a PROBE, which is never applied.

        Do not send a WRITE after the deadline: the process may have been paused since the caller has looked.
        """
        if operation == WRITE and deadline.is_over():
            late = NoResponse(f"{_transaction(request)} was not sent to {self.place}", details="the time of the call is over")
            late.unreachable = True
            raise late
        return self._call(operation, lambda server: server.txn(request, timeout=seconds), lambda: _transaction(request))

    def compact(self, revision: int, seconds: float) -> Message:
        """Return the answer to a compaction. It is counted as a write, and is not a compare-and-swap, like a PROBE."""
        request = rpc.CompactionRequest(revision=revision)
        return self._call(PROBE, lambda server: server.compact(request, timeout=seconds), lambda: f"compact to {revision}")

    def watch(self, create: Message, seconds: float | None = None) -> Stream:
        """Open a watch; with `seconds`, it ends after that time."""
        server = self._server()
        request = rpc.WatchRequest(create_request=create)
        call = self._on(server, lambda: server.watch(request, timeout=seconds, metadata=_WITH_LEADER))
        return Stream(call, lambda step: self._on(server, step), self._place(server))

    def close(self) -> None:
        self._closed = True
        with self._lock:
            servers = tuple(self._servers)
        for server in servers:
            server.close()

    def _use(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._servers = [_Server(endpoint, cluster.tls) for endpoint in cluster.endpoints]
        self._current = random.randrange(len(cluster.endpoints))  # noqa: S311 no secret
        self.seen = 0  # revision of the latest answer

    def _rediscover(self) -> None:
        """Discover the servers again. Only one thread does it; other threads use the known servers."""
        if not self._rediscovering.acquire(blocking=False):
            return
        try:
            if not self.has_failed:
                return
            self.has_failed = False
            found = self._discover()
            self._is_undiscovered = False
            if set(found.endpoints) != set(self._cluster.endpoints):
                _log.info("etcd's servers are now %s", ", ".join(map(str, found.endpoints)))
                with self._lock:
                    left = tuple(self._servers)
                    self._use(found)
                for server in left:
                    server.close()
        except SvcError as failure:
            if not self._is_undiscovered:
                _log.warning("etcd's servers cannot be looked up again: %s", failure)
            self._is_undiscovered = True
        finally:
            self._rediscovering.release()

    def _server(self) -> "_Server":
        with self._lock:
            if self._closed:
                raise _closed()
            return self._servers[self._current]

    def _call(self, operation: int, call: Callable[["_Server"], Message], what: Callable[[], str]) -> Message:
        server, began, started = self._server(), time.monotonic(), time.perf_counter()
        before, counted = self.position.revision, WRITE if operation == PROBE else operation
        try:
            answer = self._on(server, lambda: call(server))
        except StoreError as failure:
            self._meter.failed(counted, is_up=failure.lacks_right)
            raise
        finally:
            explain(lambda: f"etcd at {server.endpoint}: {what()}: {(time.monotonic() - began) * 1000:.1f} ms")
        if operation == WRITE and not answer.succeeded:
            self._meter.conflicted()
        else:
            with self._lock:
                self._meter.ended(counted, started)
        self.seen = answer.header.revision
        self._locate(f"{answer.header.cluster_id:x}", self.seen, before)
        return answer

    def _locate(self, cluster: str, revision: int, before: int) -> None:
        """Update the position. Answers arrive in any order: one below `before`, the revision at its request, is a setback."""
        known = self.position
        if cluster == known.cluster and before <= revision <= known.revision:
            return
        with self._lock:
            known = self.position
            if revision < before <= known.revision:
                self.position = Position(cluster, revision, known.setbacks + 1)
            else:
                self.position = replace(known, cluster=cluster, revision=max(known.revision, revision))

    def _on(self, server: "_Server", step: Callable[[], Message]) -> Message:
        """Run a step at a server. Raise StoreError for an error of gRPC."""
        try:
            return step()
        except grpc.RpcError as error:
            raise self._failure(server, error.code(), str(error.details())) from error
        except ValueError as error:  # gRPC raises it if another thread has closed the channel
            raise self._failure(server, grpc.StatusCode.CANCELLED, "the connection was closed") from error

    def _failure(self, server: "_Server", code: Any, text: str) -> StoreError:
        """Return the error to raise. If the server did not answer, select the next server for the next attempt."""
        if self._closed:
            return _closed()
        if code is grpc.StatusCode.OUT_OF_RANGE:
            return Compacted(f"{self._place(server)} refused a request: {text}")
        if code.name not in _NO_ANSWER and "too many requests" not in text:
            kind = Forbidden if code is grpc.StatusCode.PERMISSION_DENIED else StoreError
            return kind(f"etcd at {server.endpoint} refused a request: {text}", details=remedy_for(text))
        with self._lock:
            if self._servers[self._current] is server:
                self._current = (self._current + 1) % len(self._servers)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = NO_ANSWER_IN_TIME
        message = f"{self._place(server)} does not answer: {text}"
        if remedy := shortage_remedy(text):
            return NoResponse(message, details=remedy, code=Code.KERNEL)
        failure = NoResponse(message, details=remedy_for(text, by_name=not server.endpoint.is_address))
        failure.unreachable = any(words in text for words in _NOT_CONNECTED)
        return failure

    def _place(self, server: "_Server") -> str:
        return f"etcd at {server.endpoint} ({self._cluster.origin})"


class RetryBudget:
    """Time and attempts of one call. Not thread-safe."""

    def __init__(self, connection: EtcdConnection, servers: int, until: float) -> None:
        self._connection = connection
        self._until = until
        self._servers = servers
        self._failed = 0
        self._unreachable = 0
        self._backoff = Backoff(MIN_BACKOFF, MAX_BACKOFF)
        self.may_have_arrived = False  # whether a server may have applied an attempt that it did not answer

    @property
    def seconds(self) -> float:
        """Return the time for the next attempt."""
        return min(TRY_SECONDS, max(0.0, self._until - time.monotonic()))

    def range(self, request: Message) -> Message:
        """Return the answer of the first server that answers. Raise NoResponse if the budget is exhausted."""
        return self.repeat(lambda seconds: self._connection.range(request, seconds))

    def txn(self, request: Message, operation: int = GET) -> Message:
        """Return the answer to an idempotent transaction. Raise NoResponse if the budget is exhausted."""
        return self.repeat(lambda seconds: self._connection.txn(request, seconds, operation))

    def repeat(self, step: Callable[[float], Result]) -> Result:
        """Retry an idempotent step until a server answers. Return its result. Raise NoResponse if the budget is exhausted."""
        while True:
            try:
                return step(self.seconds)
            except NoResponse as failure:
                self.after(failure)

    def after(self, failure: NoResponse) -> None:
        """Wait for the next attempt. Raise the failure if the time or the rounds of the call are exhausted."""
        self._failed += 1
        self._unreachable = self._unreachable + 1 if failure.unreachable else 0
        self.may_have_arrived = self.may_have_arrived or not failure.unreachable
        pause = 0.0 if self._failed % self._servers else self._backoff.next()
        if self._unreachable >= UNREACHABLE_ROUNDS * self._servers or time.monotonic() + pause >= self._until:
            self._connection.has_failed = True
            raise failure
        if pause and failure.unreachable:
            connected = threading.Event()
            self._connection.connect(pause, connected.set)
            connected.wait(pause)
        else:
            time.sleep(pause)


class _Server:
    """Channel and calls of one server."""

    def __init__(self, endpoint: Endpoint, tls: Tls | None) -> None:
        self.endpoint = endpoint
        target = f"dns:///{endpoint}"
        if tls is None:
            channel = grpc.insecure_channel(target, _OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.certificate)
            channel = grpc.secure_channel(target, credentials, _OPTIONS)
        stub = rpc.KVStub(channel)
        self.range, self.txn, self.compact, self.close = stub.Range, stub.Txn, stub.Compact, channel.close
        # The watch sends one request. A unary-stream call needs no sending thread; the generated stub would start one.
        self.watch = channel.unary_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=rpc.WatchRequest.SerializeToString,
            response_deserializer=rpc.WatchResponse.FromString,
        )


def _text(key: bytes) -> str:
    return key.decode(errors="replace")


def _transaction(request: Message) -> str:
    changes = [
        _text(each.request_put.key or each.request_delete_range.key or each.request_range.key) for each in request.success
    ]
    return f"transaction on {', '.join(changes)}"


def _closed() -> StoreError:
    return StoreError("the etcd store was closed", details="open it again")
