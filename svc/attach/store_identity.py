"""Whether a datastore still has the data that this node has written to it.

A datastore is known by the clusterGUID of its ClusterInformation, by the servers' own name for their data, and by its revision,
which must not run backwards. If one of them shows that data was lost, every node that knew the datastore holds its ADDs for
20 s: the nodes claim the addresses of their live attachments again before new pods can get them.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Protocol

import orjson

from svc.datastore.api import Backend, Position, StoreError
from svc.values import dataclass

HOLD_SECONDS = 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of a datastore. `changed` is when data was lost last (Unix time). `pending`: live attachments have not
    been claimed again since. `without_pools`: no pool has been seen since."""

    guid: str
    cluster: str
    revision: int
    changed: float = 0.0
    pending: bool = False
    without_pools: bool = False


class Memory(Protocol):
    """Where it is kept across restarts."""

    def read(self) -> str:
        """Return what was written last; empty if there is nothing. Raise StoreError."""

    def write(self, text: str) -> None:
        """Raise StoreError."""


class StoreIdentity:
    """Of one datastore of this process, across its sessions. Thread-safe."""

    def __init__(self, memory: Memory, name: str) -> None:
        self._memory = memory
        self._name = name
        self._lock = threading.Lock()
        self._known: Known | None = None
        self._setbacks: tuple[Backend | None, int] = (None, 0)
        self.changes = 0  # how often data was lost, as far as this process has seen

    def observe(self, backend: Backend, guid: str) -> None:
        """Compare the datastore, which has just answered, with what is remembered of it. Raise StoreError."""
        position = backend.position()
        with self._lock:
            known = self._known or _decoded(self._memory.read())
            reason = _difference(known, guid, position) or self._setback(backend, position)
            self._setbacks = (backend, position.setbacks)
            if known is None or not reason:
                self._remember(_updated(known, guid, position), known)
                return
            _log.warning("%s has lost data: %s; ADDs are held for %g s, live attachments are claimed again",
                         self._name, reason, HOLD_SECONDS)  # fmt: skip
            self.changes += 1
            self._remember(Known(guid, position.cluster, position.revision, time.time(), True, True), known)

    def is_undisturbed(self, backend: Backend) -> bool:
        """Return whether the datastore is known and has never lost data, as far as its answers show. Asks no server."""
        known = self._known
        return known is not None and not known.changed and not self.has_moved(backend)

    def has_moved(self, backend: Backend) -> bool:
        """Return whether answers since the last observation show that data was lost. Asks no server."""
        before, setbacks = self._setbacks
        return backend.needs_node and before is backend and backend.position().setbacks > setbacks

    def held_seconds(self, has_pools: Callable[[], bool]) -> float:
        """Return for how long ADDs are still held. A datastore without pools is held once it has some; `has_pools` is asked
        only for one that has lost its data. Raise StoreError."""
        known = self._known
        if known is None or not known.changed:
            return 0.0
        if known.without_pools and has_pools():
            self._change(lambda known: replace(known, without_pools=False, changed=time.time()))
        known = self._known or known
        return min(HOLD_SECONDS, max(0.0, known.changed + HOLD_SECONDS - time.time()))

    @property
    def is_known(self) -> bool:
        """Whether the datastore was observed in this process."""
        return self._known is not None

    @property
    def is_pending(self) -> bool:
        """Whether live attachments are still to be claimed again."""
        return self._known is not None and self._known.pending

    def on_restored(self) -> None:
        """Note that all live attachments were claimed again."""
        self._change(lambda known: replace(known, pending=known.without_pools))

    def save(self) -> None:
        """Note the revision that was seen last, which the next process compares."""
        self._change(lambda known: known, always=True)

    def _change(self, change: Callable[[Known], Known], *, always: bool = False) -> None:
        with self._lock:
            if self._known is not None:
                self._remember(change(self._known), None if always else self._known)

    def _remember(self, known: Known, before: Known | None) -> None:
        """Write it where more than the revision has changed. The caller holds the lock."""
        self._known = known
        if before is not None and (before is known or replace(before, revision=known.revision) == known):
            return
        with suppress(StoreError):  # the journal's disk may be full: the next change is another chance
            self._memory.write(orjson.dumps(asdict(known)).decode())

    def _setback(self, backend: Backend, position: Position) -> str:
        before, setbacks = self._setbacks
        return "its revisions ran backwards" if before is backend and position.setbacks > setbacks else ""


def _difference(known: Known | None, guid: str, position: Position) -> str:
    """Why this is not the datastore that is known; empty if it may be."""
    if known is None:
        return ""
    if known.guid and known.guid != guid:
        return f"clusterGUID is {guid!r}, it was {known.guid!r}" if guid else f"clusterGUID {known.guid!r} is gone"
    if known.cluster and position.cluster and known.cluster != position.cluster:
        return f"the cluster id of the servers is {position.cluster}, it was {known.cluster}"
    if position.revision < known.revision:
        return f"it is at revision {position.revision}, and was at {known.revision}"
    return ""


def _updated(known: Known | None, guid: str, position: Position) -> Known:
    if known is None:
        return Known(guid, position.cluster, position.revision)
    revision = max(known.revision, position.revision)
    same = guid in ("", known.guid) and position.cluster in ("", known.cluster)
    if same and revision == known.revision:
        return known
    return replace(known, guid=guid or known.guid, cluster=position.cluster or known.cluster, revision=revision)


def _decoded(text: str) -> Known | None:
    try:
        return Known(**orjson.loads(text)) if text else None
    except (ValueError, TypeError):
        return None
