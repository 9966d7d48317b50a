"""Datastore session of the controllers: it writes only while this process leads and the datastore is ready."""

from collections.abc import Sequence
from typing import Any

from svc import deadline
from svc.attach.datastore_ready import DatastoreReadiness, ready_checked
from svc.controllers.election import Election
from svc.datastore.api import Backend, Entry, Write


def guarded(store: Backend, election: Election) -> Backend:
    """Return a session whose writes raise NotLeading unless this process leads, and DatastoreLocked unless it is ready."""
    readiness = DatastoreReadiness(LeaderStore(store, election))
    return ready_checked(readiness) if store.atomic else ReadyReadStore(readiness)


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
    """Session with a datastore without transactions, which reads before each write whether the datastore is ready."""

    update = Backend.update

    def __init__(self, readiness: DatastoreReadiness) -> None:
        self._inner = readiness.backend
        self._readiness = readiness

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner session."""
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        self._readiness.require()
        return self._inner.write(writes, durable=durable)
