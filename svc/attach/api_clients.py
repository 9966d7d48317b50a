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


class ApiClientPool:
    """API clients by their access settings. Thread-safe.

    A network with a new token gets a new client. `close_idle` closes the unused ones with their threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening: dict[Access, Batcher[None, PodReader]] = {}
        self._pods: dict[Access, PodReader] = {}
        self._used: dict[Access, float] = {}

    def pods(self, access: Access) -> "PodReader":
        """Return the client; open it at first use. Raise CallerError if the settings are invalid."""
        with self._lock:
            self._used[access] = time.monotonic()
            if access in self._pods:
                return self._pods[access]
            opening = self._opening.setdefault(access, self._new_opening(access))
        return opening.run(None)

    def _new_opening(self, access: Access) -> "Batcher[None, PodReader]":
        return Batcher(
            lambda waiting: [self._open(access)] * len(waiting),
            lambda: orchestrator_place(dict(access)),
        )

    def _open(self, access: Access) -> "PodReader":
        """Open the client. A kubeconfig may execute a program, so no lock of the pool is held."""
        if access not in self._pods:
            client = open_client(dict(access))
            with whole_imports():
                from svc.orch.pods import PodReader  # imported late: it loads the package of the client

            self._pods[access] = PodReader(client)
        return self._pods[access]

    def close_idle(self, seconds: float) -> None:
        """Close the clients that no call has requested for this time, which must exceed the duration of any call."""
        since = time.monotonic() - seconds
        with self._lock:
            idle = [access for access, used in self._used.items() if used <= since]
            closing = [self._pods.pop(access, None) for access in idle]
            for access in idle:
                del self._used[access]
                self._opening.pop(access, None)
        for pods in filter(None, closing):
            pods.close()

    def close(self) -> None:
        """Close all clients. No call may be in flight."""
        self.close_idle(0.0)
