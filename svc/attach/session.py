"""Warm sessions: one for each distinct datastore, names and node; opened at first use and kept."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from svc.attach.ready import Readiness, guarded
from svc.datastore.api import Backend
from svc.ipam.allocator import Ipam
from svc.names import Names

Settings = dict[str, str]
OpenBackend = Callable[[Settings, Names], Backend]
_StoreKey = tuple[Names, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Session:
    """A warm datastore, as one deployment names what is in it, and the addresses of one node there."""

    names: Names
    settings: Settings
    node: str
    backend: Backend
    readiness: Readiness
    ipam: Ipam
    profiles: set[str] = field(default_factory=set)  # that are known to exist

    def require_ready(self) -> None:
        """Locked when the datastore says, right now, that it takes no changes; StoreError."""
        self.readiness.require()

    def expect_ready(self) -> None:
        """As `require_ready`; where the first write asks again, what was read last is good enough."""
        if self.backend.atomic:
            self.readiness.expected()
        else:
            self.readiness.require()


@dataclass(slots=True)
class _Store:
    """One datastore: its backend, once somebody has needed it. The lock is held while it is opened."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    backend: Backend | None = None
    readiness: Readiness | None = None
    used: float = field(default_factory=time.monotonic)


class Sessions:
    """Sessions by names, settings and node. From any thread; one that is slow to open keeps nobody from the others."""

    def __init__(self, open_backend: OpenBackend) -> None:
        self._open_backend = open_backend
        self._lock = threading.Lock()
        self._stores: dict[_StoreKey, _Store] = {}
        self._replaced: list[tuple[float, Backend]] = []  # and since when
        self._sessions: dict[tuple[_StoreKey, str], Session] = {}

    def get(self, names: Names, settings: Settings, node: str) -> Session:
        """CallerError for settings that lead nowhere; StoreError."""
        key = (names, tuple(sorted(settings.items())))
        session = self._sessions.get((key, node))
        store = self._stores.get(key)
        if session is None or store is None or not session.backend.is_current():
            return self._open(key, node)
        store.used = time.monotonic()
        return session

    def _open(self, key: _StoreKey, node: str) -> Session:
        names, settings = key[0], dict(key[1])
        with self._lock:
            store = self._stores.setdefault(key, _Store())
            store.used = time.monotonic()
        with store.lock:
            if store.backend is None or not store.backend.is_current():
                backend = self._open_backend(settings, names)
                if store.backend is not None:
                    self._replaced.append((time.monotonic(), store.backend))  # calls under way may still use it
                store.backend, store.readiness = backend, Readiness(backend)
            session = self._sessions.get((key, node))
            if session is None or session.backend is not store.backend:
                assert store.readiness is not None
                ipam = Ipam(guarded(store.backend, store.readiness), node)
                session = Session(names, settings, node, store.backend, store.readiness, ipam)
                self._sessions[key, node] = session
            return session

    def close_idle(self, seconds: float) -> None:
        """Closes what nobody has asked for this long: no call may take longer."""
        since = time.monotonic() - seconds
        with self._lock:
            idle = {key for key, store in self._stores.items() if store.used <= since}
            stores = [self._stores.pop(key) for key in idle]
            for key in [key for key in self._sessions if key[0] in idle]:
                del self._sessions[key]
            replaced = [backend for replaced, backend in self._replaced if replaced <= since]
            self._replaced = [(replaced, backend) for replaced, backend in self._replaced if replaced > since]
        for backend in [*replaced, *(store.backend for store in stores)]:
            if backend is not None:
                backend.close()

    def close(self) -> None:
        """When no call is under way any more."""
        self.close_idle(0.0)
