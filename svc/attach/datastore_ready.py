"""Check whether a datastore accepts changes, by its ClusterInformation. A migration locks it.

In a store with transactions, each write compares the revision of the ClusterInformation, so no extra request is needed.
"""

from collections.abc import Sequence
from typing import Any

from svc.attach.node_claim import NodeNameClaim
from svc.attach.store_identity import HOLD_SECONDS, StoreIdentity
from svc.batching import Batcher
from svc.datastore.api import (
    MAX_WRITES,
    Backend,
    Check,
    Conflict,
    Entry,
    Found,
    NotFound,
    StoreError,
    UndecodableEntry,
    Write,
    found_by,
)
from svc.model.errors import Code
from svc.model.field_errors import display, json_kind
from svc.model.keys import Key, NodeFenceKey, ResourceKey
from svc.model.move_mark import ARRIVING, LEAVING, LEFT, any_mark
from svc.model.resource import Resource
from svc.retry import attempts

KEY = ResourceKey("ClusterInformation", "default")

MAX_KEYS = 7
_READERS = (MAX_WRITES - 1) // MAX_KEYS  # maximum number of callers that share one read
_ATTEMPTS = 10  # of a write, if other writers keep changing ClusterInformation or the claim


class DatastoreLocked(StoreError):
    """The error if the datastore answers, but does not accept changes. `has_left` is whether its content has moved."""

    code = Code.DATASTORE_LOCKED
    has_left = False


class StoreReplaced(StoreError):
    """The error if the datastore has lost data during the call."""

    code = Code.TRY_AGAIN

    def __init__(self) -> None:
        details = f"nodes claim the addresses of their pods again for {HOLD_SECONDS:g} s: try again then"
        super().__init__("the datastore has lost data during the call", details=details)


class DatastoreReadiness:
    """The readiness of one datastore. Thread-safe. Each read is compared with the `identity`."""

    def __init__(self, backend: Backend, identity: StoreIdentity | None = None) -> None:
        self.backend = backend
        self.identity = identity or StoreIdentity(backend.place)
        self._last: Entry[Resource] | None = None
        self._readers: Batcher[Sequence[Key], Sequence[Found]] = Batcher(self._read, lambda: backend.place, limit=_READERS)

    def require(self, keys: Sequence[Key] = ()) -> Sequence[Found]:
        """Read the readiness, and return the entries at `keys` (at most MAX_KEYS) from the same read.

        Concurrent calls share one read. Raise DatastoreLocked if the datastore does not accept changes, StoreError if it fails.
        """
        return self._readers.run(keys)

    def require_by_own_read(self) -> None:
        """Do as `require` without keys, but with a separate read. The failure of a shared read may come too late for STATUS."""
        self._read([()])

    def expected(self) -> Entry[Resource]:
        """Return the cached ClusterInformation of a ready datastore for a `Check`; read it if necessary.

        Raise DatastoreLocked if the datastore does not accept changes, StoreError if it fails.
        """
        if self.identity.has_moved(self.backend):
            self.invalidate()
        while (last := self._last) is None:
            self.require()
        return last

    @property
    def was_ready(self) -> bool:
        """Whether the last read has found that the datastore accepts changes. Sends no request."""
        return self._last is not None

    def invalidate(self) -> None:
        """Invalidate the cache after a `Check` has failed."""
        self._last = None

    def _read(self, readers: Sequence[Sequence[Key]]) -> list[Sequence[Found]]:
        self._last = None
        wanted = dict.fromkeys(key for keys in readers for key in keys)
        ready, *others = self.backend.get_all([KEY, *wanted]) if wanted else [found_by(self.backend.get, KEY)]
        entry = _require_ready(ready)
        self.identity.observe(self.backend, str(entry.value.spec.get("clusterGUID") or ""))
        self._last = entry
        found = dict(zip(wanted, others, strict=True))
        return [[found[key] for key in keys] for keys in readers]


def _require_ready(found: Found[Resource]) -> Entry[Resource]:
    """Return the entry if it says ready. Raise DatastoreLocked if it does not, StoreError if it is damaged."""
    if isinstance(found, UndecodableEntry):  # not raised as UndecodableEntry, because IPAM skips damaged documents
        raise StoreError(found.msg, details=found.details)
    ready = None if isinstance(found, NotFound) else found.value.spec.get("datastoreReady")
    if ready is True and isinstance(found, Entry):
        return found
    where = "datastoreReady of ClusterInformation default"
    if ready is None:
        raise DatastoreLocked("the datastore is not initialised", details=f"`svcctl clusterinfo init` does that ({where})")
    if ready is False:
        raise _locked(found.value if isinstance(found, Entry) else None, where)
    raise DatastoreLocked(
        f"whether the datastore is locked is not clear: datastoreReady = {display(ready)} is {json_kind(ready)}, not a boolean",
        details="`svcctl clusterinfo unlock` or `lock` puts it right (in ClusterInformation default)",
    )


def _locked(info: Resource | None, where: str) -> DatastoreLocked:
    """Return the error about a locked datastore. If a move has locked it, the error says where its content is, or will be."""
    mark = info and any_mark(info.metadata)
    if mark and mark.state == LEFT:
        details = "this node still uses the former one: `svcctl install` with the network configuration of the new one"
        error = DatastoreLocked(f"the datastore is locked: its content has moved to {mark.other}", details=details)
        error.has_left = True
        return error
    if mark and mark.state == LEAVING:
        details = "wait until the move has ended; the node then gets the network configuration of the new datastore"
        return DatastoreLocked(f"the datastore is locked: it is being moved to {mark.other}", details=details)
    if mark and mark.state == ARRIVING:
        details = "wait until the move has ended: `svcctl upgrade status`"
        return DatastoreLocked(f"the datastore is locked: the move from {mark.other} to it has not ended", details=details)
    return DatastoreLocked(
        "the datastore is locked", details=f"it is being migrated: wait, or `svcctl clusterinfo unlock` ({where})"
    )


class ReadyCheckedBackend:
    """A datastore with transactions whose writes raise DatastoreLocked if it is not ready.

    With a `claim`, writes compare its fence as well: those of a replaced claimant raise PeerError (NODE_CLAIMED).
    """

    update = Backend.update

    def __init__(self, readiness: DatastoreReadiness, claim: NodeNameClaim | None) -> None:
        self._inner = readiness.backend
        self._readiness = readiness
        self._claim = claim
        self.atomic = True

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner datastore. Keep a method, so that its next call costs no second look-up."""
        found = getattr(self._inner, name)
        if callable(found):
            setattr(self, name, found)
        return found

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        ready = self._readiness.expected()
        changes = self._readiness.identity.changes
        for _ in attempts(_ATTEMPTS):
            if self._readiness.identity.changes != changes:
                raise StoreReplaced
            checks = [Check(ready.key, ready.revision), *(self._claim.checks() if self._claim else ())]
            try:
                return self._inner.write([*checks, *writes], durable=durable)[len(checks) :]
            except Conflict as conflict:
                if conflict.key == KEY:
                    self._readiness.invalidate()
                elif self._claim is not None and isinstance(conflict.key, NodeFenceKey):
                    self._claim.on_conflict()
                else:
                    raise
                ready = self._readiness.expected()
        raise StoreError(
            f"{KEY.kind} {KEY.name} or the claim of the node kept changing", details="something else writes it all the time"
        )


def ready_checked(readiness: DatastoreReadiness, claim: NodeNameClaim | None = None) -> Backend:
    """Return a backend that checks readiness with each write; a store without transactions unchanged."""
    return ReadyCheckedBackend(readiness, claim) if readiness.backend.atomic else readiness.backend
