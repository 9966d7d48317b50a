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

NamesOf = Callable[[str], Names]
OpenBackend = Callable[[dict[str, str], Names], Backend]
_StoreKey = tuple[Names, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Session:
    """A warm datastore, as one deployment names what is in it, and the addresses of one node there."""

    names: Names
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
            raise _locked() if ready is False else _not_initialised()


class Sessions:
    """Sessions by names, settings and node, opened at first use and kept. From any thread."""

    def __init__(self, open_backend: OpenBackend) -> None:
        self._open_backend = open_backend
        self._lock = threading.Lock()
        self._backends: dict[_StoreKey, Backend] = {}
        self._replaced: list[Backend] = []
        self._sessions: dict[tuple[_StoreKey, str], Session] = {}

    def get(self, names: Names, settings: dict[str, str], node: str) -> Session:
        key = (names, tuple(sorted(settings.items())))
        with self._lock:
            session = self._sessions.get((key, node))
            if session is None or not session.backend.is_current():
                backend = self._current_backend(key, settings)
                session = self._sessions[key, node] = Session(names, settings, node, backend, Ipam(backend, node))
            return session

    def _current_backend(self, key: _StoreKey, settings: dict[str, str]) -> Backend:
        backend = self._backends.get(key)
        if backend is not None and backend.is_current():
            return backend
        if backend is not None:
            self._replaced.append(backend)  # calls under way may still use it
        self._backends[key] = self._open_backend(settings, key[0])
        return self._backends[key]

    def close(self) -> None:
        with self._lock:
            backends = [*self._backends.values(), *self._replaced]
            self._backends.clear()
            self._sessions.clear()
        for backend in backends:
            backend.close()


class Context:
    """Everything that outlives a call. `close` ends its threads and files.

    `names_of` knows the names of a profile by what the call, or a record, says of it; CallerError when there is none.
    """

    def __init__(self, names_of: NamesOf, state_dir: Path, open_backend: OpenBackend) -> None:
        self.names_of = names_of
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.own_netns = nsock.own_netns_identity()
        self.journal = Journal(state_dir / "journal.db")
        self.sessions = Sessions(open_backend)
        self.kernel = Kernel()
        self.forwarding = Forwarding()
        self.reaper = Reaper(self.kernel)

    def session(self, profile: str, settings: dict[str, str], node: str) -> Session:
        """CallerError for a profile that cannot be loaded or a kind of store that is not served; StoreError."""
        return self.sessions.get(self.names_of(profile), settings, node)

    def close(self) -> None:
        self.reaper.close()
        self.kernel.close()
        self.forwarding.close()
        self.sessions.close()
        self.journal.close()


def _locked() -> PeerError:
    return PeerError(
        "the datastore is locked",
        details="it is being migrated: wait, or `svcctl clusterinfo unlock` (datastoreReady of ClusterInformation default)",
        code=Code.DATASTORE_LOCKED,
    )


def _not_initialised() -> PeerError:
    return PeerError(
        "the datastore is not initialised",
        details="`svcctl clusterinfo init` does that (datastoreReady of ClusterInformation default)",
        code=Code.DATASTORE_LOCKED,
    )
