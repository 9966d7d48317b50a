"""Clients of the Kubernetes API, from which an ADD reads pods, namespaces and nodes."""

import threading
import time
from typing import TYPE_CHECKING

from svc.attach.places import orchestrator_place
from svc.batching import Batcher
from svc.datastore.open import open_client
from svc.imports import whole_imports

if TYPE_CHECKING:
    from svc.orch.pods import PodReader

Access = tuple[tuple[str, str], ...]


class _Client:
    """One API client, opened at first use. Concurrent callers share one attempt."""

    def __init__(self, access: Access) -> None:
        self.used = 0.0
        self.pods: PodReader | None = None
        self.opening: Batcher[None, PodReader] = Batcher(
            lambda waiting: [self._open(access)] * len(waiting), lambda: orchestrator_place(dict(access))
        )

    def _open(self, access: Access) -> "PodReader":
        """Open the client. A kubeconfig may execute a program, so no lock of the pool is held."""
        if self.pods is None:
            client = open_client(dict(access))
            with whole_imports():
                from svc.orch.pods import PodReader  # imported late: it loads the package of the client

            self.pods = PodReader(client)
        return self.pods


class ApiClientPool:
    """API clients by their access settings, of which a token is a part. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Access, _Client] = {}

    def pods(self, access: Access) -> "PodReader":
        """Return the client; open it at first use. Raise CallerError if the settings are invalid."""
        with self._lock:
            client = self._clients.get(access)
            if client is None:
                client = self._clients[access] = _Client(access)
            client.used = time.monotonic()
        return client.pods or client.opening.run(None)

    def token_expiries(self) -> list[tuple[str, float | None]]:
        """Return each open API server, with the Unix time at which its token expires, or None."""
        with self._lock:
            clients = tuple(self._clients.values())
        return [(client.pods.place, client.pods.token_expires()) for client in clients if client.pods is not None]

    def close_idle(self, seconds: float) -> None:
        """Close the clients that no call has requested for this time, which must exceed the duration of any call."""
        since = time.monotonic() - seconds
        with self._lock:
            idle = [access for access, client in self._clients.items() if client.used <= since]
            closing = [self._clients.pop(access) for access in idle]
        for client in closing:
            if client.pods is not None:
                client.pods.close()

    def close(self) -> None:
        """Close all clients. No call may be in flight."""
        self.close_idle(0.0)
