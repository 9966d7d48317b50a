"""A model of a remote datastore that several nodes share.

It applies writes atomically (etcd) or key by key (the Kubernetes API).
"""

import math
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from typing import NoReturn

from simulation.blocking import Current
from simulation.scheduler import Killed, Process
from svc.datastore.api import (
    Backend,
    Check,
    Conflict,
    Create,
    Delete,
    Entries,
    Entry,
    Event,
    Found,
    NotFound,
    PartialWrite,
    Position,
    StoreError,
    Update,
    Watch,
    Write,
    found_by,
)
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.keys import Key, Query, ResourceKey, counted_kind
from svc.model.kv_codec import Codec, matches
from svc.model.resource import Resource
from svc.names import DEFAULT

CODEC = Codec(DEFAULT)
NETWORK = Process("network", "")
_FAULTS_OF_PODS = (
    "kill",
    "refused",
    "lost",
)  # in the Kubernetes API an endpoint is an annotation of its pod, and is deleted with it
_FAULTS = (*_FAULTS_OF_PODS, "late", "kill-late")
Document = tuple[Key, bytes, int]  # the stored document of a path, and its revision
Request = tuple[Write, bytes]  # a write, and its document at the time when it is sent


class Cluster:
    """The servers and their data. `changes` counts the changes, and `wipes` counts the losses of all data."""

    def __init__(self, writes: Sequence[Request]) -> None:
        self.data: dict[str, Document] = {}
        self.down = False
        self.changes = 0
        self.wipes = 0
        self._first = tuple(writes)
        self._revision = 0
        self._generations: dict[str, int] = {}
        self.initialise()

    def initialise(self) -> None:
        """Initialise the empty datastore as an administrator does. It gets a new identity each time."""
        self.apply([_identity(self.wipes), *self._first])

    def wipe(self) -> None:
        """Lose all data. The revisions start again."""
        self.data.clear()
        self.wipes += 1
        self._revision = self.wipes  # etcd's cluster id, which tells equal revisions apart, is not modelled
        self._generations = {kind: number + 1000 for kind, number in self._generations.items()}
        self.initialise()

    def apply(self, requests: Sequence[Request]) -> list[str]:
        """Apply all writes at one revision, or none."""
        for write, _ in requests:
            self._demand(write)
        if any(not isinstance(write, Check) for write, _ in requests):
            self._revision += 1
            self.changes += 1
        for write, data in requests:
            self._apply(write, data)
        return [str(self._revision)] * len(requests)

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return tuple(self._generations.get(kind, 0) for kind in kinds)

    def read(self, key: Key) -> Entry:
        """Return the entry. Raise NotFound if it does not exist."""
        found = self.data.get(CODEC.path(key))
        if found is None:
            raise NotFound(key)
        return Entry(key, CODEC.decode(key, found[1]), str(found[2]))

    def entries(self, query: Query) -> Entries:
        found = sorted((path, document) for path, document in self.data.items() if matches(query, document[0]))
        return Entries(Entry(key, CODEC.decode(key, data), str(revision)) for _, (key, data, revision) in found)

    def _demand(self, write: Write) -> None:
        found = self.data.get(CODEC.path(write.key))
        if isinstance(write, Create):
            if found is not None:
                raise Conflict(write.key)
        elif found is None:
            raise Conflict(write.key) if isinstance(write, Check) else NotFound(write.key)
        elif write.revision is not None and str(found[2]) != write.revision:
            raise Conflict(write.key)

    def _apply(self, write: Write, data: bytes) -> None:
        if isinstance(write, Check):
            return
        path = CODEC.path(write.key)
        kind = counted_kind(write.key)
        if kind:
            self._generations[kind] = self._generations.get(kind, 0) + 1
        if isinstance(write, Delete):
            del self.data[path]
        else:
            self.data[path] = write.key, data, self._revision


class NoWatch:
    """A watch without any event."""

    interrupted_since: float | None = None
    longest_gap = math.inf
    failure = ""

    def __iter__(self) -> "NoWatch":
        return self

    def __next__(self) -> Event:
        Current.scheduler.block("watches", lambda: False)
        raise StopIteration

    def close(self) -> None:
        return


class RemoteStore(Backend):
    """A process's session with the cluster."""

    atomic = True
    requires_node = True
    place = "the simulated cluster"

    def __init__(self, cluster: Cluster, *, atomic: bool) -> None:
        self.cluster = cluster
        self.atomic = atomic

    def get(self, key: Key) -> Entry:
        self._step(f"get {_text(key)}")
        return self.cluster.read(key)

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        self._step(f"get {', '.join(map(_text, keys))}")
        return [found_by(self.cluster.read, key) for key in keys]

    def check_writable(self) -> None:
        return

    def list(self, query: Query) -> Entries:
        self._step(f"list {_text(query)}")
        return self.cluster.entries(query)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        if not writes:
            return ()
        if self.atomic:
            return self._request(writes)
        return self._one_by_one(writes)

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return self.cluster.generations(kinds)

    def position(self) -> Position:
        return Position()

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> Watch:
        return NoWatch()

    def is_current(self) -> bool:
        return True

    def close(self) -> None:
        return

    def _one_by_one(self, writes: Sequence[Write]) -> Sequence[Entry | None]:
        for write in writes:
            if isinstance(write, Check):
                self._request([write])
        done: list[Entry | None] = []
        for write in writes:
            try:
                done += [None] if isinstance(write, Check) else self._request([write])
            except StoreError as cause:
                if len(writes) == 1:
                    raise
                raise PartialWrite(done, cause) from cause
        return done

    def _request(self, writes: Sequence[Write]) -> Sequence[Entry | None]:
        """Send one write, which the server applies as a whole. Its values are copied at this moment."""
        requests = [request(write) for write in writes]
        text = "; ".join(f"{type(write).__name__.lower()} {_text(write.key)}" for write in writes)
        faults = _FAULTS if self.atomic or not any(_is_endpoint(write) for write in writes) else _FAULTS_OF_PODS
        fault = Current.scheduler.step(f"store: {text}", *faults)
        if self.cluster.down or fault == "refused":
            raise unanswered()
        if fault in ("late", "kill-late"):
            self._send_late(requests, killed=fault == "kill-late")
        revisions = self.cluster.apply(requests)
        if fault == "lost":
            raise unanswered()
        return [_entry(*each, revision) for each, revision in zip(requests, revisions, strict=True)]

    def _send_late(self, requests: Sequence[Request], *, killed: bool) -> NoReturn:
        """Send a write that is in flight when the session gives up or its process is killed."""
        scheduler = Current.scheduler
        scheduler.spawn(NETWORK, "network", lambda: self._land(requests))
        if killed:
            scheduler.kill(scheduler.current.process)
            raise Killed
        raise unanswered()

    def _land(self, requests: Sequence[Request]) -> None:
        Current.scheduler.step("a late write arrives")
        try:
            self.cluster.apply(requests)
        except StoreError as refusal:
            Current.scheduler.note(f"a late write was refused: {refusal}")
        else:
            Current.scheduler.note(f"a late write was applied: {'; '.join(str(write.key) for write, _ in requests)}")

    def _step(self, text: str) -> None:
        fault = Current.scheduler.step(f"store: {text}", "kill", "refused")
        if self.cluster.down or fault:
            raise unanswered()


_text = cache(str)  # of the few keys


def _is_endpoint(write: Write) -> bool:
    return isinstance(write.key, ResourceKey) and write.key.kind == ENDPOINT


def unanswered() -> StoreError:
    """Return the exception that a session raises if no server has replied."""
    return StoreError("no server answered", details="by order of the schedule")


def request(write: Write) -> Request:
    """Return the write with its document as it is now."""
    return write, CODEC.encode(write.value) if isinstance(write, Create | Update) else b""


def _entry(write: Write, data: bytes, revision: str) -> Entry | None:
    return Entry(write.key, CODEC.decode(write.key, data), revision) if data else None


@cache
def _identity(wipes: int) -> Request:
    spec = {"clusterGUID": uuid.UUID(int=wipes + 1).hex, "datastoreReady": True}
    ready = Resource("ClusterInformation", {"name": "default"}, spec)
    return request(Create(ResourceKey("ClusterInformation", "default"), ready))
