"""Which nodes are gone: neither Kubernetes has them, nor does their agent run.

An agent keeps the claim on the name of its node for as long as it runs. So a claim that moves shows a live machine, also if
its Node was deleted, or if this process reads the nodes of another cluster.
"""

import time
from collections.abc import Callable, Collection
from threading import Lock
from typing import NamedTuple

from svc.controllers.nodes import read_kube_name, read_kube_node
from svc.datastore.api import Backend, StoreError
from svc.datastore.orch.client import Client
from svc.model.keys import NodeClaimKey
from svc.names import Names

QUIET_SECONDS = 600.0  # time without a change of the claim after which a node that Kubernetes lacks is gone


class _Observation(NamedTuple):
    """The revision of a claim, empty without a claim, since when it has it, and the name of the node in Kubernetes."""

    claim: str
    since: float
    kube_name: str


class GoneNodes:
    """Judge nodes by live reads, and by how long this process has seen their claims without a change. Thread-safe.

    Names are those of the datastore: of its Nodes, and in the affinities of blocks and the attributes of allocations. The first
    question about a name begins the observation of its claim, so that a caller repeats its question with each full round. All
    parts share the observations: `Tables.gone_nodes` reports nodes that exist again.
    """

    def __init__(self, client: Client, store: Backend, names: Names, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._store = store
        self._names = names
        self._clock = clock
        self._lock = Lock()
        self._seen: dict[str, _Observation] = {}

    def is_gone(self, name: str) -> bool:
        """Return whether Kubernetes has no such node, and its claim has not moved for 10 minutes of observation.

        A Node of the datastore without a node of Kubernetes in `orchRefs` is never gone. Raise StoreError if anything cannot be
        read, and PeerError if the Node is malformed.
        """
        return self.claim_if_gone(name) is not None

    def claim_if_gone(self, name: str) -> str | None:
        """Return None if the node is not gone, else the revision of its claim, empty without a claim. As `is_gone` otherwise.

        A part that removes something of the node deletes the claim of this revision first: that fails if the agent is back.
        """
        asked = self._clock()
        try:
            claim = self._revision_of_claim(name)
        except StoreError:  # the agent cannot renew its claim either, so that this time shows nothing
            with self._lock:
                self._seen.pop(name, None)
            raise
        kube_name = read_kube_name(self._names, self._store, name)
        # read last: a node that was created again in the meantime is not gone
        is_missing = bool(kube_name) and read_kube_node(self._client, kube_name) is None
        with self._lock:
            before = self._seen.pop(name, None)
            if not is_missing:
                return None
            since = self._clock() if before is None or before.claim != claim else before.since
            self._seen[name] = _Observation(claim, since, kube_name)
        return claim if asked - since >= QUIET_SECONDS else None

    def note_deleted_claim(self, name: str, claim: str) -> None:
        """Note that this process has deleted the claim of a node that is gone. The deletion shows no life."""
        with self._lock:
            if (before := self._seen.get(name)) is not None and before.claim == claim:
                self._seen[name] = before._replace(claim="")

    def note_present(self, kube_names: Collection[str]) -> None:
        """End the observation of nodes that Kubernetes has. The next question begins another one."""
        with self._lock:
            self._seen = {name: seen for name, seen in self._seen.items() if seen.kube_name not in kube_names}

    def keep(self, names: Collection[str]) -> None:
        """End the observation of all other names."""
        with self._lock:
            self._seen = {name: seen for name, seen in self._seen.items() if name in names}

    def _revision_of_claim(self, name: str) -> str:
        """Return the revision of the claim; empty without a claim, as of a node without an agent of svc."""
        entry = self._store.find(NodeClaimKey(name))
        return "" if entry is None else entry.revision
