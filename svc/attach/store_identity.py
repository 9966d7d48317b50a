"""Detection of lost data in a datastore.

A datastore is identified by the clusterGUID of its ClusterInformation, by the cluster ID of its servers, and by its revision,
which must not decrease. If one of them shows that data was lost, every node that knew the datastore delays its ADDs by 20 s.
In this time, the nodes claim the addresses of their live attachments again, before new pods can get them.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import orjson

from svc.attach.token_cache import Settings, without_secrets
from svc.datastore.api import Backend, Position, StoreError
from svc.values import asdict, dataclass, replace

HOLD_SECONDS = 20.0

_log = logging.getLogger(__name__)


class Notes(Protocol):
    """Texts by name that survive a restart, such as the journal's. `put_note` raises StoreError if they cannot be written."""

    def note(self, name: str) -> str: ...

    def notes(self, pattern: str) -> dict[str, str]: ...

    def put_note(self, name: str, text: str) -> None: ...


@dataclass(slots=True)
class Known:
    """The stored identity of a datastore. `changed` is the Unix time of the last data loss. Only `revision` is modified.

    `pending` is true if live attachments have not been claimed again since then, `without_pools` if no pool has been seen.
    `former` is the clusterGUID before that loss: a copy of the lost data has it.
    """

    guid: str
    cluster: str
    revision: int
    changed: float = 0.0
    pending: bool = False
    without_pools: bool = False
    former: str = ""

    def is_or_was(self, guid: str) -> bool:
        """Return whether the datastore has this clusterGUID, or had it before its last loss."""
        return guid != "" and guid in (self.guid, self.former)


def note_name(plugin: str, settings: Settings) -> str:
    """Return the name of a datastore's identity in the journal, without secrets, because they may change."""
    return f"datastore {plugin} {','.join(f'{name}={value}' for name, value in sorted(without_secrets(settings).items()))}"


def stored_identity(journal: Notes, name: str) -> Known | None:
    """Return the identity of this name in the journal, if any."""
    return _decoded(journal.note(name))


class StoreIdentity:
    """The identity of one datastore, shared by its sessions in this process. Thread-safe.

    The `journal` stores it under the name `key` across restarts. `others` is a pattern of the names of this kind of datastore.
    """

    def __init__(self, place: str, journal: Notes | None = None, key: str = "", others: str = "") -> None:
        self._place = place
        self._journal = journal
        self._key = key
        self._others = others
        self._lock = threading.Lock()
        self.known: Known | None = None  # once it was observed in this process
        self._setbacks: tuple[Backend | None, int] = (None, 0)
        self.changes = 0  # data losses that this process has seen

    def observe(self, backend: Backend, guid: str) -> None:
        """Compare the datastore, which has just answered, with its stored identity. Raise StoreError if this cannot be read."""
        position = backend.position()
        with self._lock:
            before = known = self.known or self._stored()
            known = known or self._under_other_settings(guid, position)
            reason = _difference(known, guid, position) or self._setback(backend, position)
            self._setbacks = (backend, position.setbacks)
            if known is None or not reason:
                self._remember(_updated(known, guid, position), before)
                return
            _log.warning("%s has lost data: %s; ADDs are held for %g s, live attachments are claimed again",
                         self._place, reason, HOLD_SECONDS)  # fmt: skip
            self.changes += 1
            former = "" if known is None else known.guid or known.former
            self._remember(Known(guid, position.cluster, position.revision, time.time(), True, True, former), before)

    def note_copy(self, of: str) -> None:
        """Treat the datastore as one that has lost data: it is a copy of another one that has attachments of this node."""
        _log.warning("%s is a copy of %s: ADDs are held for %g s, live attachments are claimed here",
                     self._place, of, HOLD_SECONDS)  # fmt: skip
        self.changes += 1
        self._change(lambda known: replace(known, changed=time.time(), pending=True, without_pools=True))

    def has_moved(self, backend: Backend) -> bool:
        """Return whether answers since the last observation show that data was lost. Sends no request."""
        before, setbacks = self._setbacks
        return backend.requires_node and before is backend and backend.position().setbacks > setbacks

    def held_seconds(self, has_pools: Callable[[], bool]) -> float:
        """Return for how many seconds, at most HOLD_SECONDS, ADDs must still wait. Raise StoreError if the datastore fails.

        If the datastore had no pools, the time begins when it has some. `has_pools` is called only after a data loss.
        """
        known = self.known
        if known is None or not known.changed:
            return 0.0
        if known.without_pools and has_pools():
            self._change(lambda known: replace(known, without_pools=False, changed=time.time()))
        elif known.changed > time.time():  # the clock was set back
            self._change(lambda known: replace(known, changed=time.time()))
        known = self.known or known
        return min(HOLD_SECONDS, max(0.0, known.changed + HOLD_SECONDS - time.time()))

    @property
    def known_held_seconds(self) -> float:
        """For how many seconds ADDs must still wait, as far as this is known without a request."""
        known = self.known
        if known is None or not known.changed:
            return 0.0
        return HOLD_SECONDS if known.without_pools else min(HOLD_SECONDS, max(0.0, known.changed + HOLD_SECONDS - time.time()))

    @property
    def guid(self) -> str:
        """The observed clusterGUID; empty if the datastore has none or has not answered yet."""
        return "" if self.known is None else self.known.guid

    @property
    def is_pending(self) -> bool:
        """Whether live attachments have not been claimed again yet."""
        return self.known is not None and self.known.pending

    def on_restored(self) -> None:
        """Record that all live attachments were claimed again."""
        self._change(lambda known: replace(known, pending=known.without_pools))

    def save(self, backend: Backend) -> None:
        """Store the last observed revision, which the next process compares. Send no request."""
        position = backend.position()
        with self._lock:
            if self.known is not None:
                moved = _difference(self.known, self.known.guid, position)
                self._remember(self.known if moved else _updated(self.known, "", position), None)

    def _change(self, change: Callable[[Known], Known]) -> None:
        with self._lock:
            if self.known is not None:
                self._remember(change(self.known), self.known)

    def _remember(self, known: Known, before: Known | None) -> None:
        """Store the identity if more than the revision has changed. The caller holds the lock."""
        self.known = known
        if before is not None and (before is known or replace(before, revision=known.revision) == known):
            return
        with suppress(StoreError):  # the journal's disk may be full: the next change is stored again
            if self._journal is not None:
                self._journal.put_note(self._key, orjson.dumps(asdict(known)).decode())

    def _stored(self) -> Known | None:
        return None if self._journal is None else stored_identity(self._journal, self._key)

    def _under_other_settings(self, guid: str, position: Position) -> Known | None:
        """Return the identity of the same datastore under its former settings, such as replaced endpoints, if any."""
        notes = self._journal.notes(self._others).values() if self._journal is not None and guid else ()
        found = (known for known in map(_decoded, notes) if known is not None and known.is_or_was(guid))
        return max(found, key=lambda each: (each.guid == guid, each.cluster == position.cluster, each.revision), default=None)

    def _setback(self, backend: Backend, position: Position) -> str:
        before, setbacks = self._setbacks
        return "its revisions ran backwards" if before is backend and position.setbacks > setbacks else ""


def _decoded(text: str) -> Known | None:
    try:
        return Known(**orjson.loads(text)) if text else None
    except (ValueError, TypeError):
        return None


def _difference(known: Known | None, guid: str, position: Position) -> str:
    """Return why this is not the known datastore, or an empty string if it may be."""
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
    """Return the identity after an observation. With each write of a call only the revision changes, so it is modified."""
    if known is None:
        return Known(guid, position.cluster, position.revision)
    known.revision = max(known.revision, position.revision)
    if guid in ("", known.guid) and position.cluster in ("", known.cluster):
        return known
    return replace(known, guid=guid or known.guid, cluster=position.cluster or known.cluster)
