"""Warm clients of the orchestrator's API, for what an ADD learns of pods, namespaces and nodes there."""

import threading
import time
from typing import TYPE_CHECKING

from svc.attach.places import orchestrator_place
from svc.batching import Batcher
from svc.datastore.open import open_client
from svc.imports import whole_imports

if TYPE_CHECKING:
    from svc.orch.pods import Pods

Access = tuple[tuple[str, str], ...]


class ApiClientPool:
    """By how they are reached, from any thread. A network with a new token has a new client: those of old ones go, with their
    threads, once no call asks for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening: dict[Access, Batcher[None, Pods]] = {}
        self._pods: dict[Access, Pods] = {}
        self._used: dict[Access, float] = {}

    def pods(self, access: Access) -> "Pods":
        """CallerError for settings that lead nowhere."""
        with self._lock:
            self._used[access] = time.monotonic()
            if access in self._pods:
                return self._pods[access]
            opening = self._opening.setdefault(access, self._new_opening(access))
        return opening.run(None)

    def _new_opening(self, access: Access) -> "Batcher[None, Pods]":
        return Batcher(
            lambda waiting: [self._open(access)] * len(waiting),
            lambda: orchestrator_place(dict(access)),
        )

    def _open(self, access: Access) -> "Pods":
        """A kubeconfig may have a program executed: nobody else waits for it."""
        if access not in self._pods:
            client = open_client(dict(access))
            with whole_imports():
                from svc.orch.pods import Pods  # only here: it loads that client's package

            self._pods[access] = Pods(client)
        return self._pods[access]

    def close_idle(self, seconds: float) -> None:
        """Closes what nobody has asked for this long: no call may take longer."""
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
        """When no call is under way any more."""
        self.close_idle(0.0)
