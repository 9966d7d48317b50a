"""Whether a datastore takes changes: its ClusterInformation says so, or somebody is migrating it.

A transaction may carry the question with it: then it is asked at the very moment of the write, and costs no call of its own.
"""

from collections.abc import Sequence

from svc.attach.node_claim import NodeNameClaim
from svc.attach.store_identity import HOLD_SECONDS, StoreIdentity
from svc.batching import Batcher
from svc.datastore.api import (
    MAX_WRITES,
    Backend,
    Check,
    Conflict,
    Damaged,
    Entry,
    Found,
    NotFound,
    StoreError,
    Watch,
    Write,
    found_by,
)
from svc.model.errors import Code
from svc.model.field_errors import json_kind, shown
from svc.model.keys import Key, NodeFenceKey, Query, ResourceKey
from svc.model.resource import Resource
from svc.retry import attempts

KEY = ResourceKey("ClusterInformation", "default")

MAX_KEYS = 7
_READERS = (MAX_WRITES - 1) // MAX_KEYS  # calls of one reading
_ATTEMPTS = 10  # of a write, against others who keep changing the flag's resource


class DatastoreLocked(StoreError):
    """The datastore answers, and says that it takes no changes."""

    code = Code.DATASTORE_LOCKED


class StoreReplaced(StoreError):
    """The datastore was seen to have lost data during the call."""

    code = Code.TRY_AGAIN

    def __init__(self) -> None:
        details = f"nodes claim the addresses of their pods again for {HOLD_SECONDS:g} s: try again then"
        super().__init__("the datastore has lost data during the call", details=details)


class Readiness:
    """Of one datastore. From any thread. With an `identity`, each reading is compared with what is known of the datastore."""

    def __init__(self, backend: Backend, identity: StoreIdentity | None = None) -> None:
        self._backend = backend
        self._identity = identity
        self._last: Entry[Resource] | None = None
        self._readers: Batcher[Sequence[Key], Sequence[Found]] = Batcher(self._read, lambda: backend.place, limit=_READERS)

    def require(self, keys: Sequence[Key] = ()) -> Sequence[Found]:
        """As the datastore says it now, with what stands at these keys (MAX_KEYS at most) at that moment. Calls that wait at
        the same time share one reading. Locked; StoreError."""
        return self._readers.run(keys)

    def require_unshared(self) -> None:
        """As `require`, in a request of its own: a caller that waits for the reading of another one may not learn in time why
        the datastore does not answer."""
        self._read([()])

    def expected(self) -> Entry[Resource]:
        """What was read last, and said that the datastore is ready: for a `Check`. Locked; StoreError."""
        if self._identity is not None and self._identity.has_moved(self._backend):
            self.forget()
        while (last := self._last) is None:
            self.require()
        return last

    @property
    def changes(self) -> int:
        """How often the datastore was seen to have lost data."""
        return 0 if self._identity is None else self._identity.changes

    def forget(self) -> None:
        """When a `Check` has failed."""
        self._last = None

    def _read(self, readers: Sequence[Sequence[Key]]) -> list[Sequence[Found]]:
        self._last = None
        wanted = dict.fromkeys(key for keys in readers for key in keys)
        ready, *others = self._backend.get_all([KEY, *wanted]) if wanted else [found_by(self._backend.get, KEY)]
        entry = _demand_ready(ready)
        if self._identity is not None:
            self._identity.observe(self._backend, str(entry.value.spec.get("clusterGUID") or ""))
        self._last = entry
        found = dict(zip(wanted, others, strict=True))
        return [[found[key] for key in keys] for keys in readers]


def _demand_ready(found: Found[Resource]) -> Entry[Resource]:
    """Locked; StoreError."""
    if isinstance(found, NotFound):
        raise _not_initialised()
    if isinstance(found, Damaged):  # for IPAM that would be one of its documents, which it goes without
        raise StoreError(found.msg, details=found.details)
    ready = found.value.spec.get("datastoreReady")
    if ready is not True:
        raise _locked() if ready is False else _not_initialised() if ready is None else _unclear(ready)
    return found


class ReadyCheckedBackend:
    """A datastore with transactions that is only written to while it is ready; Locked otherwise.

    With a `claim`, its fence is compared as well: writes of a claimant that was replaced fail (PeerError, NODE_CLAIMED).
    """

    update = Backend.update

    def __init__(self, inner: Backend, readiness: Readiness, claim: NodeNameClaim | None = None) -> None:
        assert inner.atomic
        self._inner = inner
        self._readiness = readiness
        self._claim = claim
        self.atomic = inner.atomic
        self.needs_node = inner.needs_node
        self.get = inner.get
        self.find = inner.find
        self.get_all = inner.get_all
        self.list = inner.list
        self.check_writable = inner.check_writable
        self.generations = inner.generations
        self.position = inner.position
        self.is_current = inner.is_current
        self.close = inner.close

    @property
    def place(self) -> str:
        return self._inner.place

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        ready = self._readiness.expected()
        changes = self._readiness.changes
        for _ in attempts(_ATTEMPTS):
            if self._readiness.changes != changes:
                raise StoreReplaced
            checks = [Check(ready.key, ready.revision), *(self._claim.checks() if self._claim else ())]
            try:
                return self._inner.write([*checks, *writes], durable=durable)[len(checks) :]
            except Conflict as conflict:
                if conflict.key == KEY:
                    self._readiness.forget()
                elif self._claim is not None and isinstance(conflict.key, NodeFenceKey):
                    self._claim.on_conflict()
                else:
                    raise
                ready = self._readiness.expected()
        raise StoreError(
            f"{KEY.kind} {KEY.name} or the claim of the node kept changing", details="something else writes it all the time"
        )

    def watch(self, query: Query) -> Watch:
        return self._inner.watch(query)


def _locked() -> DatastoreLocked:
    return DatastoreLocked(
        "the datastore is locked",
        details="it is being migrated: wait, or `svcctl clusterinfo unlock` (datastoreReady of ClusterInformation default)",
    )


def _not_initialised() -> DatastoreLocked:
    return DatastoreLocked(
        "the datastore is not initialised",
        details="`svcctl clusterinfo init` does that (datastoreReady of ClusterInformation default)",
    )


def _unclear(ready: object) -> DatastoreLocked:
    return DatastoreLocked(
        f"whether the datastore is locked is not clear: datastoreReady = {shown(ready)} is {json_kind(ready)}, not a boolean",
        details="`svcctl clusterinfo unlock` or `lock` puts it right (in ClusterInformation default)",
    )


def guarded(backend: Backend, readiness: Readiness, claim: NodeNameClaim | None = None) -> Backend:
    """A store without transactions is asked before the first write of a call instead."""
    return ReadyCheckedBackend(backend, readiness, claim) if backend.atomic else backend
