"""What the verbs work with: one context a process."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from svc._core import nsock
from svc.attach.journal import Journal
from svc.attach.session import OpenBackend, Session, Sessions
from svc.dataplane.kernel import Kernel
from svc.dataplane.reaper import Reaper
from svc.dataplane.wire import Forwarding
from svc.datastore.open import open_client
from svc.names import Names
from svc.orch.pods import Client, Pods

NamesOf = Callable[[str], Names]
OpenClient = Callable[[Mapping[str, str]], Client]


class Context:
    """Everything that outlives a call. `close` ends its threads and files.

    `names_of` knows the names of a profile by what the call, or a record, says of it; CallerError when there is none.
    """

    def __init__(
        self, names_of: NamesOf, state_dir: Path, open_backend: OpenBackend, open_client: OpenClient = open_client
    ) -> None:
        self.names_of = names_of
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.own_netns = nsock.own_netns_identity()
        self.journal = Journal(state_dir / "journal.db")
        self.sessions = Sessions(open_backend)
        self.kernel = Kernel()
        self.forwarding = Forwarding()
        self.reaper = Reaper(self.kernel)
        self._open_client = open_client
        self._orchestrators: dict[tuple[tuple[str, str], ...], Pods] = {}
        self._lock = threading.Lock()

    def session(self, profile: str, settings: dict[str, str], node: str) -> Session:
        """CallerError for a profile that cannot be loaded or a kind of store that is not served; StoreError."""
        return self.sessions.get(self.names_of(profile), settings, node)

    def pods(self, access: tuple[tuple[str, str], ...]) -> Pods:
        """Those of the API server that is reached so. CallerError for settings that lead nowhere."""
        with self._lock:
            if access not in self._orchestrators:
                self._orchestrators[access] = Pods(self._open_client(dict(access)))
            return self._orchestrators[access]

    def close(self) -> None:
        for pods in self._orchestrators.values():
            pods.close()
        self.reaper.close()
        self.kernel.close()
        self.forwarding.close()
        self.sessions.close()
        self.journal.close()
