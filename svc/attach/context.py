"""What the verbs work with: one context a process, one session for each distinct datastore and node."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from svc._core import nsock
from svc.attach.journal import Journal
from svc.dataplane.kernel import Kernel
from svc.dataplane.reaper import Reaper
from svc.dataplane.wire import Forwarding
from svc.datastore.api import Backend, NotFound
from svc.ipam.allocator import Ipam
from svc.model.errors import Code, PeerError
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import Names

OpenBackend = Callable[[dict[str, str]], Backend]
_SettingsKey = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Session:
    """A warm datastore, and the addresses of one node in it."""

    settings: dict[str, str]
    node: str
    backend: Backend
    ipam: Ipam

    def require_ready(self) -> None:
        """A datastore that says it is locked, or does not say, takes no changes: somebody is migrating it."""
        try:
            entry = self.backend.get(ResourceKey("ClusterInformation", "default"))
        except NotFound:
            ready = None
        else:
            assert isinstance(entry.value, Resource)
            ready = entry.value.spec.get("datastoreReady")
        if ready is not True:
            raise PeerError(
                "the datastore is locked" if ready is False else "the datastore is not initialised",
                details="it is being migrated: wait, or set datastoreReady of ClusterInformation default to true",
                code=Code.DATASTORE_LOCKED,
            )


class Sessions:
    """Sessions by settings and node, opened at first use and kept. From any thread."""

    def __init__(self, open_backend: OpenBackend) -> None:
        self._open_backend = open_backend
        self._lock = threading.Lock()
        self._backends: dict[_SettingsKey, Backend] = {}
        self._replaced: list[Backend] = []
        self._sessions: dict[tuple[_SettingsKey, str], Session] = {}

    def get(self, settings: dict[str, str], node: str) -> Session:
        key = tuple(sorted(settings.items()))
        with self._lock:
            session = self._sessions.get((key, node))
            if session is None or not session.backend.is_current():
                backend = self._current_backend(key, settings)
                session = self._sessions[key, node] = Session(settings, node, backend, Ipam(backend, node))
            return session

    def _current_backend(self, key: _SettingsKey, settings: dict[str, str]) -> Backend:
        backend = self._backends.get(key)
        if backend is not None and backend.is_current():
            return backend
        if backend is not None:
            self._replaced.append(backend)  # calls under way may still use it
        self._backends[key] = self._open_backend(settings)
        return self._backends[key]

    def close(self) -> None:
        with self._lock:
            backends = [*self._backends.values(), *self._replaced]
            self._backends.clear()
            self._sessions.clear()
        for backend in backends:
            backend.close()


class Context:
    """Everything that outlives a call. `close` ends its threads and files."""

    def __init__(self, names: Names, state_dir: Path, open_backend: OpenBackend) -> None:
        self.names = names
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.own_netns = nsock.own_netns_identity()
        self.journal = Journal(state_dir / "journal.db")
        self.sessions = Sessions(open_backend)
        self.kernel = Kernel()
        self.forwarding = Forwarding()
        self.reaper = Reaper(self.kernel)

    def close(self) -> None:
        self.reaper.close()
        self.kernel.close()
        self.forwarding.close()
        self.sessions.close()
        self.journal.close()
