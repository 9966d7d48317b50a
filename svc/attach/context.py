"""The state that all verbs share, one per process."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from svc._core import netns
from svc.attach.api_clients import ApiClientPool
from svc.attach.conflict import Conflict
from svc.attach.health import Health
from svc.attach.journal import Journal
from svc.attach.network_stores import NetworkStores
from svc.attach.record import ADDED, AttachmentId, Record, SessionKey
from svc.attach.sessions import DatastoreSession, OpenBackend, SessionPool, store_key
from svc.attach.token_cache import TokenCache
from svc.dataplane.kernel import Kernel
from svc.dataplane.reaper import Reaper
from svc.dataplane.sysctls import SYSCTLS
from svc.dataplane.wire import ForwardingSysctls
from svc.datastore.api import Backend
from svc.metrics import Metrics
from svc.model.claim import Claimant
from svc.model.errors import CallerError
from svc.names import Names

if TYPE_CHECKING:
    from svc.waits.gates import GateMonitor
    from svc.waits.policy import EndpointStatusFiles

NamesOf = Callable[[str], Names]


class Context:
    """The state that outlives a call. `close` ends its threads and closes its files.

    `names_of` returns the names of a profile, or raises CallerError if it does not exist. `resident` is true in an agent, which
    renews the claims of node names. `require_state` raises PeerError if the state directory was removed or replaced, because
    another process would then not find the journal of this one. `sysctls` is the folder for writes to those of the host.
    """

    def __init__(
        self,
        names_of: NamesOf,
        state_dir: Path,
        open_backend: OpenBackend,
        *,
        resident: bool = False,
        require_state: Callable[[], None] = lambda: None,
        sysctls: str = SYSCTLS,
    ) -> None:
        self.names_of = names_of
        self.resident = resident
        self.require_state = require_state
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.own_netns = netns.own_netns_identity()
        self.metrics = Metrics()
        self.journal = Journal(state_dir / "journal.db")
        self.sessions = SessionPool(
            partial(_open_counted, open_backend, self.metrics),
            _this_claimant(state_dir, self.boot_id),
            renews=resident,
            journal=self.journal,
        )
        self.orchestrators = ApiClientPool()
        self.tokens = TokenCache()
        self.kernel = Kernel(sysctls)
        self.forwarding = ForwardingSysctls(sysctls)
        self.reaper = Reaper(self.kernel)
        self.health = Health()
        self.restart_reason = ""  # why the agent is to be restarted, for the log of STATUS
        self.suspects_loss = False  # whether a datastore was seen without the allocation of a live attachment
        self.networks = NetworkStores(self.journal)
        self.conflicts: dict[AttachmentId, Conflict] = {}
        self.left_behind: dict[AttachmentId, str] = {}  # rows that did not follow a move to another datastore, and why
        self._gates: GateMonitor | None = None
        self._status_files: EndpointStatusFiles | None = None
        self._lock = threading.Lock()

    def session(self, key: SessionKey) -> DatastoreSession:
        """Return the session of the key; open it if necessary.

        Raise CallerError for an unknown profile or kind of datastore, StoreError if the datastore cannot be opened.
        """
        return self.sessions.get(self.names_of(key.profile), self.tokens.with_token(key.datastore), key.node)

    def gates(self) -> "GateMonitor":
        """Return the monitor of readiness gates; create it at the first call."""
        with self._lock:
            if self._gates is None:
                from svc.waits.gates import GateMonitor  # imported late: few networks have gates

                self._gates = GateMonitor()
            return self._gates

    def status_files(self) -> "EndpointStatusFiles":
        """Return the monitor of endpoint status files; create it at the first call."""
        with self._lock:
            if self._status_files is None:
                from svc.waits.policy import EndpointStatusFiles

                self._status_files = EndpointStatusFiles()
            return self._status_files

    def close_idle(self, seconds: float) -> None:
        """Close what no call has used for this time, but no session with attachments, because it keeps the node claim."""
        stores = {where.store for _, where in self.journal.datastores()}
        keep = set()
        for profile, settings in stores:
            with suppress(CallerError):  # the file of the names profile was removed, so no call uses its session
                keep.add(store_key(self.names_of(profile), self.tokens.with_token(dict(settings))))
        self.sessions.close_idle(seconds, keep)
        self.orchestrators.close_idle(seconds)

    def close_former(self, key: SessionKey, seconds: float) -> bool:
        """Close a datastore that nothing uses, after this time without a call. Return whether it is closed."""
        return self.sessions.close_store(store_key(self.names_of(key.profile), self.tokens.with_token(key.datastore)), seconds)

    def token_expires(self) -> float | None:
        """Return the Unix time at which the first token for a Kubernetes API expires; None if no token names its end."""
        sessions = [session.backend.token_expires() for session in self.sessions.open_sessions()]
        clients = [expires for _, expires in self.orchestrators.token_expiries()]
        return min((each for each in (*sessions, *clients) if each is not None), default=None)

    def is_live(self, record: Record) -> bool:
        """Return whether the attachment was added in this boot and its interface exists, if svc has made the interface."""
        if record.state != ADDED or record.boot_id != self.boot_id:
            return False
        link = self.kernel.find_link(index=record.host_index) if record.is_wired else None
        return not record.is_wired or (link is not None and link["name"] == record.host_name)

    def remove_interface(self, host_name: str) -> None:
        """Remove an interface of an earlier sandbox from the host, if it exists. Raise PeerError if it stays."""
        link = self.kernel.find_link(name=host_name)
        if link is not None:
            self.reaper.remove(link["index"], host_name)

    def close(self) -> None:
        for waits in (self._gates, self._status_files):
            if waits is not None:
                waits.close()
        self.orchestrators.close()
        self.reaper.close()
        self.kernel.close()
        self.forwarding.close()
        self.sessions.close()
        self.journal.close()


def _open_counted(open_backend: OpenBackend, metrics: Metrics, settings: dict[str, str], names: Names) -> Backend:
    """Open a datastore, and count its requests."""
    backend = open_backend(settings, names)
    metrics.add_store(settings["kind"], backend, backend.meter)
    return backend


def _this_claimant(state_dir: Path, boot: str) -> Claimant:
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return Claimant(machine, boot, str(state_dir.resolve()))
