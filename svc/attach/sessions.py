"""Datastore sessions, one for each combination of datastore, names and node, opened at first use."""

import threading
import time
from collections.abc import Callable, Collection, Sequence

from svc.attach.datastore_ready import DatastoreReadiness, ready_checked
from svc.attach.journal import Journal
from svc.attach.node_claim import NodeNameClaim
from svc.attach.places import datastore_place
from svc.attach.store_identity import StoreIdentity, note_name
from svc.attach.token_cache import Settings
from svc.batching import Batcher
from svc.datastore.api import Backend, Found
from svc.ipam.service import IpamService
from svc.model.claim import Claimant
from svc.model.keys import Key
from svc.names import Names
from svc.values import dataclass, field

OpenBackend = Callable[[Settings, Names], Backend]
StoreKey = tuple[Names, tuple[tuple[str, str], ...]]
"""The key of a datastore: names, and its settings."""


def store_key(names: Names, settings: Settings) -> StoreKey:
    """Return the key of a datastore."""
    return names, tuple(sorted(settings.items()))


@dataclass(slots=True)
class Rows:
    """The last restoration of journal rows in a session."""

    restored_after: int = -1  # the journal's `losses` at that time
    left: frozenset[str] = frozenset()  # host interfaces that got no row


@dataclass(frozen=True, slots=True)
class DatastoreSession:
    """An open datastore with the names of one deployment, and the IPAM of one node in it."""

    names: Names
    settings: Settings
    node: str
    backend: Backend
    readiness: DatastoreReadiness
    ipam: IpamService
    identity: StoreIdentity
    claim: NodeNameClaim | None = None  # None if the datastore belongs to one node
    profiles: set[str] = field(default_factory=set)  # policy profiles that exist
    rows: Rows = field(default_factory=Rows)

    def held_seconds(self) -> float:
        """Return for how many seconds ADDs must wait because the datastore has lost data. Raise StoreError if it fails."""
        if self.identity.known is None:
            self.readiness.expected()
        elif self.identity.has_moved(self.backend):
            self.readiness.require()
        return self.identity.held_seconds(self.ipam.has_pools)

    def require_claim(self) -> None:
        """Return if this machine may assign addresses under the node's name.

        Raise PeerError if it may not or that is not known yet, StoreError if the claim cannot be read.
        """
        if self.claim is not None:
            self.claim.require()

    def fence(self) -> None:
        """Make earlier in-flight writes of this node fail, if the datastore has transactions. Raise StoreError if it fails."""
        if self.claim is not None:
            self.claim.fence()

    def require_ready(self, keys: Sequence[Key] = ()) -> Sequence[Found]:
        """Read whether the datastore accepts changes. Return the entries at `keys` from the same read.

        Raise DatastoreLocked if it is locked or not initialised, StoreError if it fails.
        """
        return self.readiness.require(keys)

    def expect_ready(self) -> None:
        """Do as `require_ready`, but use a cached answer if the datastore has transactions: each write compares it."""
        if self.backend.atomic:
            self.readiness.expected()
        else:
            self.readiness.require()


@dataclass(slots=True)
class _Store:
    """One datastore. Its backend is opened at first use; concurrent callers share one attempt."""

    opening: Batcher[None, DatastoreReadiness]
    identity: StoreIdentity
    opened: DatastoreReadiness | None = None
    used: float = field(default_factory=time.monotonic)


class SessionPool:
    """Sessions by names, settings and node. Thread-safe. A session that opens slowly does not delay the others.

    In a datastore that nodes share, `claimant` claims the node names; without a claimant, no name is claimed. `renews` is true
    in an agent: its open sessions renew their claims. `journal` stores the identities of datastores.
    """

    def __init__(
        self,
        open_backend: OpenBackend,
        claimant: Claimant | None = None,
        *,
        renews: bool = False,
        journal: Journal | None = None,
    ) -> None:
        self._open_backend = open_backend
        self._journal = journal
        self._claimant = claimant
        self._renews = renews
        self._lock = threading.Lock()
        self._stores: dict[StoreKey, _Store] = {}
        self._replaced: list[tuple[float, Backend]] = []  # with the monotonic time of the replacement
        self._sessions: dict[tuple[StoreKey, str], DatastoreSession] = {}

    def get(self, names: Names, settings: Settings, node: str) -> DatastoreSession:
        """Return the session. Raise CallerError if the settings are invalid, StoreError if the datastore cannot be opened."""
        key = store_key(names, settings)
        session = self._sessions.get((key, node))
        store = self._stores.get(key)
        if session is None or store is None or not session.backend.is_current():
            return self._open(key, node)
        store.used = time.monotonic()
        return session

    def open_sessions(self) -> tuple[DatastoreSession, ...]:
        """Return the open sessions."""
        with self._lock:
            return tuple(self._sessions.values())

    def _open(self, key: StoreKey, node: str) -> DatastoreSession:
        with self._lock:
            store = self._stores.get(key)
            if store is None:
                store = self._stores[key] = self._new_store(key)
            store.used = time.monotonic()
        opened = store.opened
        if opened is None or not opened.backend.is_current():
            opened = store.opening.run(None)
        return self._session(key, node, opened)

    def _new_store(self, key: StoreKey) -> _Store:
        names, settings = key[0], dict(key[1])

        def open_store(waiting: Sequence[None]) -> list[DatastoreReadiness]:
            opened = store.opened
            if opened is None or not (opened.backend.is_current() or opened.backend.write_back()):
                backend = self._open_backend(settings, names)
                if opened is not None:
                    self._replaced.append((time.monotonic(), opened.backend))  # calls in flight may still use it
                opened = store.opened = DatastoreReadiness(backend, store.identity)
            return [opened] * len(waiting)

        kind, plugin = settings["kind"], names.plugin
        name, others = note_name(plugin, settings), f"datastore {plugin} *kind={kind}*"
        identity = StoreIdentity(f"datastore {kind}", self._journal, name, others)
        store = _Store(Batcher(open_store, lambda: datastore_place(settings)), identity)
        return store

    def _session(self, key: StoreKey, node: str, opened: DatastoreReadiness) -> DatastoreSession:
        backend = opened.backend
        with self._lock:
            session = self._sessions.get((key, node))
            if session is None or session.backend is not backend:
                if session is not None and session.claim is not None:
                    session.claim.close()
                claim = None
                if self._claimant is not None and backend.requires_node:
                    claim = NodeNameClaim(backend, node, self._claimant, renews=self._renews)
                ipam = IpamService(ready_checked(opened, claim), node)
                session = DatastoreSession(key[0], dict(key[1]), node, backend, opened, ipam, opened.identity, claim)
                self._sessions[key, node] = session
            return session

    def write_back(self) -> None:
        """Save what only the open sessions have of their datastores. Raise StoreError if that fails."""
        with self._lock:
            opened = [store.opened for store in self._stores.values() if store.opened is not None]
        for each in opened:
            if not each.backend.is_current():
                each.backend.write_back()

    def close_idle(self, seconds: float, keep: Collection[StoreKey] = ()) -> None:
        """Close the sessions and backends that no call has requested for this time, which must exceed the duration of any call.

        Stores in `keep` stay open, and their node claims stay renewed.
        """
        since = time.monotonic() - seconds
        with self._lock:
            idle = {key for key, store in self._stores.items() if store.used <= since and key not in keep}
            stores = [self._stores.pop(key) for key in idle]
            sessions = [self._sessions.pop(key) for key in list(self._sessions) if key[0] in idle]
            replaced = [backend for replaced, backend in self._replaced if replaced <= since]
            self._replaced = [(replaced, backend) for replaced, backend in self._replaced if replaced > since]
        claims = [session.claim for session in sessions if session.claim is not None]
        for claim in claims:
            claim.close()
        for store in stores:
            if store.opened is not None:
                store.opened.backend.close()
                store.identity.save(store.opened.backend)
        for backend in replaced:
            backend.close()
        for claim in claims:
            claim.join()

    def close_store(self, key: StoreKey, seconds: float) -> bool:
        """Close one datastore as `close_idle` does. Return whether it is closed."""
        with self._lock:
            others = self._stores.keys() - {key}
        self.close_idle(seconds, others)
        return key not in self._stores

    def close(self) -> None:
        """Close all sessions. No call may be in flight."""
        self.close_idle(0.0)
