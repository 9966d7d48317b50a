"""Datastore session of the controllers: it writes only while this process leads and the datastore is ready, and is counted."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from svc import deadline
from svc.attach.datastore_ready import KEY, DatastoreReadiness, ready_checked
from svc.datastore.api import Backend, Check, Create, Entry, PartialWrite, Write
from svc.leader.election import Election

READY_SECONDS = 0.5  # for which one read of the readiness counts


def guarded(store: Backend, election: Election) -> Backend:
    """Return a session whose writes raise NotLeading unless this process leads, and DatastoreLocked unless it is ready.

    The resource that says so can be created before."""
    leading = LeaderStore(store, election)
    readiness = DatastoreReadiness(leading)
    return InitialisableStore(ready_checked(readiness) if store.atomic else ReadyReadStore(readiness), leading)


class LeaderStore:
    """Datastore session whose writes raise NotLeading unless this process leads."""

    def __init__(self, inner: Backend, election: Election) -> None:
        self._inner = inner
        self._election = election

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner session."""
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        """Apply the writes. Neither send nor repeat them after the end of the lead."""
        with deadline.limit(self._election.require()):
            return self._inner.write(writes, durable=durable)


class ReadyReadStore:
    """Session with a datastore without transactions, which reads before a write whether the datastore is ready.

    Writes of READY_SECONDS share one read. A lock can be set between a read and a write anyway.
    """

    update = Backend.update

    def __init__(self, readiness: DatastoreReadiness, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner = readiness.backend
        self._readiness = readiness
        self._clock = clock
        self._read_at = -math.inf

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner session."""
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        now = self._clock()
        if now - self._read_at >= READY_SECONDS:
            self._readiness.require()
            self._read_at = now
        return self._inner.write(writes, durable=durable)


class InitialisableStore:
    """Session that passes the creation of ClusterInformation to the session `uninitialised`, and all else to `inner`."""

    update = Backend.update

    def __init__(self, inner: Backend, uninitialised: LeaderStore) -> None:
        self._inner = inner
        self._uninitialised = uninitialised

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner session."""
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        creates = len(writes) == 1 and isinstance(writes[0], Create) and writes[0].key == KEY
        return (self._uninitialised if creates else self._inner).write(writes, durable=durable)


class CountedStore:
    """Session that calls `count` with the number of objects which each write has created, updated or deleted."""

    update = Backend.update

    def __init__(self, inner: Backend, count: Callable[[int], None]) -> None:
        self._inner = inner
        self._count = count

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner session."""
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        """Apply the writes. Do not count one without an answer: nothing says whether it was applied."""
        try:
            done = self._inner.write(writes, durable=durable)
        except PartialWrite as partial:
            self._count(_changes(writes[: len(partial.done)]))
            raise
        self._count(_changes(writes))
        return done


def _changes(writes: Sequence[Write]) -> int:
    return sum(not isinstance(write, Check) for write in writes)
