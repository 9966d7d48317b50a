"""Which nodes are gone: neither Kubernetes has them, nor does their agent run.

An agent keeps the claim on the name of its node for as long as it runs. So a claim that moves shows a live machine, also if
somebody has deleted its Node, or if this process reads the nodes of another cluster.
"""

import time
from collections.abc import Callable
from threading import Lock

from svc.controllers.nodes import read_kube_name, read_kube_node
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client
from svc.model.keys import NodeClaimKey
from svc.names import Names

QUIET_SECONDS = 600.0  # time without a change of the claim after which a node that Kubernetes lacks is gone


class GoneNodes:
    """Judge nodes by live reads, and by how long this process has seen their claims without a change. Thread-safe.

    Names are those of the datastore: of its Nodes, and in the affinities of blocks and the attributes of allocations. The first
    question about a name begins the observation of its claim, so that a caller repeats its question with each full round.
    """

    def __init__(self, client: Client, store: Backend, names: Names, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._store = store
        self._names = names
        self._clock = clock
        self._lock = Lock()
        self._seen: dict[str, tuple[str, float]] = {}  # by name: the revision of the claim, and since when it has it

    def is_gone(self, name: str) -> bool:
        """Return whether Kubernetes has no such node, and its claim has not moved for 10 minutes of observation.

        A Node of the datastore that is none of Kubernetes is never gone. Raise StoreError if anything cannot be read, and
        PeerError if the Node is malformed.
        """
        asked = self._clock()
        revision = self._revision_of_claim(name)
        is_missing = self._is_missing(name)  # read last: a node that was created again in the meantime is not gone
        with self._lock:
            before = self._seen.pop(name, None)
            if not is_missing:
                return False
            if before is None or before[0] != revision:
                before = (revision, self._clock())
            self._seen[name] = before
        return asked - before[1] >= QUIET_SECONDS

    def claim_of(self, name: str) -> str:
        """Return the revision of the claim that `is_gone` has last seen; empty without a claim."""
        with self._lock:
            return self._seen.get(name, ("", 0.0))[0]

    def note_deleted_claim(self, name: str) -> None:
        """Note that this process has deleted the claim of a node that is gone. That is no sign of life."""
        with self._lock:
            if name in self._seen:
                self._seen[name] = ("", self._seen[name][1])

    def forget(self, name: str) -> None:
        """End the observation of a node of which nothing is left."""
        with self._lock:
            self._seen.pop(name, None)

    def _revision_of_claim(self, name: str) -> str:
        """Return the revision of the claim; empty without a claim, as of a node without an agent of svc."""
        entry = self._store.find(NodeClaimKey(name))
        return "" if entry is None else entry.revision

    def _is_missing(self, name: str) -> bool:
        known = read_kube_name(self._names, self._store, name)
        return bool(known) and read_kube_node(self._client, known) is None
