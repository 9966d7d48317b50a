"""Calls to a cluster over gRPC: a channel for each server, deadlines, and who is asked next when one does not answer.

Each server has a channel of its own, so each is held to the name in its own certificate. All calls go to one server until it
fails a call; then the next one is asked. The first is chosen at random, or all nodes would ask the same.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would print is in the errors that calls raise
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")  # the system's, which knows /etc/hosts

import grpc

from svc import deadline
from svc.call_trace import explain
from svc.datastore.api import Forbidden, Position, StoreError
from svc.datastore.etcd.messages import KVStub, Message, RangeRequest, WatchRequest, WatchResponse
from svc.datastore.etcd.refusals import NO_ANSWER_IN_TIME, remedy_for
from svc.datastore.etcd.settings import Cluster, Endpoint
from svc.datastore.etcd.tls import Tls
from svc.model.errors import SvcError
from svc.retry import Backoff

_log = logging.getLogger(__name__)

CALL_SECONDS = 10.0  # for everything that one call of a Backend does
TRY_SECONDS = 4.0  # for one server's answer, before the next one is asked
DIAL_SECONDS = 4.0  # for a connection
DEAF_ROUNDS = 5  # how often all servers are tried where nobody listens; the pauses outlast gRPC's own, which answers by memory
MIN_BACKOFF, MAX_BACKOFF = 0.1, 1.0  # seconds after all servers have failed

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # a watch learns of a dead server within 15 s; etcd allows a ping every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", int(DIAL_SECONDS * 1000)),  # this is the time for a connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),  # less than the rounds of a call take: after an outage the first call succeeds
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # what the environment of a runtime names is for images
    ("grpc.use_local_subchannel_pool", 1),  # sessions with other credentials share no connection
)
_NO_ANSWER = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
_WITH_LEADER = (("hasleader", "true"),)  # a server that has lost its cluster ends the watch, where it would be silent
_KNOCK = RangeRequest(key=b"\0", keys_only=True)
_NOT_CONNECTED = ("failed to connect", "errors resolving", "DNS resolution failed")


Result = TypeVar("Result")


class Unanswered(StoreError):
    """No server has answered: whether the request was carried out is not known."""

    deaf = False  # whether there was no connection at all


class Compacted(StoreError):
    """The revision asked for is forgotten."""


class Stream:
    """A watch that is open. `receive` in one thread, `close` from any."""

    def __init__(self, call: Any, guarded: Callable[[Callable[[], Message]], Message], place: str) -> None:
        self._call = call
        self._place = place
        self._guarded = guarded

    def receive(self) -> Message:
        """The next WatchResponse. Unanswered when the watch has ended or cannot go on, Compacted when it was too late."""
        answer = self._guarded(lambda: next(self._call, None))
        if answer is None:
            raise Unanswered(f"{self._place} has ended a watch")
        if answer.compact_revision:
            raise Compacted(f"{self._place} has compacted what was before revision {answer.compact_revision}")
        if answer.canceled:
            raise Unanswered(f"{self._place} has cancelled a watch: {answer.cancel_reason or 'without a reason'}")
        return answer

    def close(self) -> None:
        self._call.cancel()


class Link:
    """Connections to a cluster, made when they are first used. From any thread.

    `rediscover` says where the cluster is now; it is asked after all servers have failed a call.
    """

    def __init__(self, cluster: Cluster, rediscover: Callable[[], Cluster] | None = None) -> None:
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        self._rediscover = rediscover
        self.position = Position()
        self._failed = False  # whether a call has been given up since the last look-up
        self._closed = False
        self._use(cluster)

    @property
    def place(self) -> str:
        """Return the server that the next call asks."""
        with self._lock:
            return self._place(self._servers[self._current])

    def tries(self) -> "Tries":
        """For one call; its time begins now."""
        until = time.monotonic() + deadline.remaining(CALL_SECONDS)
        if self._failed and self._rediscover is not None:
            self._move(self._rediscover)
        return Tries(self, len(self._servers), until)

    def connect(self, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        """Tries to reach the servers in the background for so long, and calls `then` when one answers, or none has in time.

        Calls fail at once where the last connection has failed, and many releases of gRPC connect only while a call waits.
        """
        with self._lock:
            servers = () if self._closed else tuple(self._servers)
        with suppress(ValueError):  # closed meanwhile
            for knock in [server.range.future(_KNOCK, timeout=seconds, wait_for_ready=True) for server in servers]:
                knock.add_done_callback(lambda _: then())

    def give_up(self) -> None:
        """A call has tried all servers in vain."""
        self._failed = True

    def range(self, request: Message, seconds: float) -> Message:
        what = "list" if request.range_end else "get"
        return self._call(lambda server: server.range(request, timeout=seconds), lambda: f"{what} {_text(request.key)}")

    def txn(self, request: Message, seconds: float) -> Message:
        return self._call(lambda server: server.txn(request, timeout=seconds), lambda: _transaction(request))

    def watch(self, create: Message, seconds: float | None = None) -> Stream:
        """With `seconds`, it ends then."""
        server = self._server()
        request = WatchRequest(create_request=create)
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
        self.seen = 0  # the revision in the latest answer

    def _move(self, rediscover: Callable[[], Cluster]) -> None:
        """One call looks the servers up; the others go on with those that are known."""
        if not self._moving.acquire(blocking=False):
            return
        try:
            if self._failed:
                self._failed = False
                self._use_found(rediscover())
        except SvcError as failure:
            _log.warning("etcd's servers cannot be looked up again: %s", failure)
        finally:
            self._moving.release()

    def _use_found(self, cluster: Cluster) -> None:
        if set(cluster.endpoints) == set(self._cluster.endpoints):
            return
        _log.info("etcd's servers are now %s", ", ".join(map(str, cluster.endpoints)))
        with self._lock:
            left = tuple(self._servers)
            self._use(cluster)
        for server in left:
            server.close()

    def _server(self) -> "_Server":
        with self._lock:
            if self._closed:
                raise _closed()
            return self._servers[self._current]

    def _call(self, call: Callable[["_Server"], Message], what: Callable[[], str]) -> Message:
        server, began = self._server(), time.monotonic()
        before = self.position.revision
        try:
            answer = self._on(server, lambda: call(server))
        finally:
            explain(lambda: f"etcd at {server.endpoint}: {what()}: {(time.monotonic() - began) * 1000:.1f} ms")
        self.seen = answer.header.revision
        self._locate(f"{answer.header.cluster_id:x}", self.seen, before)
        return answer

    def _locate(self, cluster: str, revision: int, before: int) -> None:
        """Note which data answers. Answers come in any order, but none is older than what was seen before its request."""
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
        """Carries out a step with one of the servers, and puts our errors in place of gRPC's."""
        try:
            return step()
        except grpc.RpcError as error:
            raise self._failure(server, error.code(), str(error.details())) from error
        except ValueError as error:  # gRPC's word for a channel that was closed meanwhile
            raise self._failure(server, grpc.StatusCode.CANCELLED, "the connection was closed") from error

    def _failure(self, server: "_Server", code: Any, text: str) -> StoreError:
        """What to raise. The next server is for the next call, when this one has not answered."""
        if self._closed:
            return _closed()
        if code is grpc.StatusCode.OUT_OF_RANGE:
            return Compacted(f"{self._place(server)} refused a request: {text}")
        if code not in _NO_ANSWER and "too many requests" not in text:
            kind = Forbidden if code is grpc.StatusCode.PERMISSION_DENIED else StoreError
            return kind(f"etcd at {server.endpoint} refused a request: {text}", details=remedy_for(text))
        self._pass_over(server)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = NO_ANSWER_IN_TIME
        message = f"{self._place(server)} does not answer: {text}"
        failure = Unanswered(message, details=remedy_for(text, by_name=not server.endpoint.is_address))
        failure.deaf = any(words in text for words in _NOT_CONNECTED)
        return failure

    def _place(self, server: "_Server") -> str:
        return f"etcd at {server.endpoint} ({self._cluster.origin})"

    def _pass_over(self, server: "_Server") -> None:
        with self._lock:
            if self._servers[self._current] is server:
                self._current = (self._current + 1) % len(self._servers)


class Tries:
    """The time that one call has, and whether another try is worth it."""

    def __init__(self, link: Link, servers: int, until: float) -> None:
        self._link = link
        self._until = until
        self._servers = servers
        self._failed = 0
        self._deaf = 0
        self._backoff = Backoff(MIN_BACKOFF, MAX_BACKOFF)
        self.may_have_arrived = False  # at a server that has not answered

    @property
    def seconds(self) -> float:
        """For the next try."""
        return min(TRY_SECONDS, max(0.0, self._until - time.monotonic()))

    def repeat(self, step: Callable[[float], Result]) -> Result:
        """Until it is answered; what may be done twice."""
        while True:
            try:
                return step(self.seconds)
            except Unanswered as failure:
                self.after(failure)

    def after(self, failure: Unanswered) -> None:
        """Returns when it is time for another try; raises the failure when there is none left."""
        self._failed += 1
        self._deaf = self._deaf + 1 if failure.deaf else 0
        self.may_have_arrived = self.may_have_arrived or not failure.deaf
        pause = 0.0 if self._failed % self._servers else self._backoff.next()
        if self._deaf >= DEAF_ROUNDS * self._servers or time.monotonic() + pause >= self._until:
            self._link.give_up()
            raise failure
        if pause and failure.deaf:
            connected = threading.Event()
            self._link.connect(pause, connected.set)
            connected.wait(pause)
        else:
            time.sleep(pause)


class _Server:
    """The calls of one server."""

    def __init__(self, endpoint: Endpoint, tls: Tls | None) -> None:
        self.endpoint = endpoint
        target = f"dns:///{endpoint}"
        if tls is None:
            channel = grpc.insecure_channel(target, _OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.certificate)
            channel = grpc.secure_channel(target, credentials, _OPTIONS)
        stub = KVStub(channel)
        self.range, self.txn, self.close = stub.Range, stub.Txn, channel.close
        # One request a stream, so there need be no thread that feeds it, as there would be behind the generated stub.
        self.watch = channel.unary_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=WatchRequest.SerializeToString,
            response_deserializer=WatchResponse.FromString,
        )


def _text(key: bytes) -> str:
    return key.decode(errors="replace")


def _transaction(request: Message) -> str:
    """Its keys."""
    changes = [
        _text(each.request_put.key or each.request_delete_range.key or each.request_range.key) for each in request.success
    ]
    return f"transaction on {', '.join(changes)}"


def _closed() -> StoreError:
    return StoreError("the etcd store was closed", details="open it again")
