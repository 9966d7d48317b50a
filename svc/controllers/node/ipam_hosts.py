"""What nodes that are gone leave behind: their blocks, and the claims on their names.

They go when no address of the node is left. Another part releases the addresses of its pods and tunnels before. An address that
only an agent of the node can judge, such as that of a container without a pod, keeps the node until an administrator releases
it. A node that is created again starts without anything, and claims new blocks.
"""

import logging
from collections.abc import Collection, Iterable
from threading import Lock

from svc.admin.block_release import delete_claim, remove_host
from svc.controllers.controller import Controller, Shared
from svc.controllers.node.host_remains import hosts_of, lacks_node, read_remains
from svc.controllers.settings import NODE
from svc.datastore.api import Conflict
from svc.model.keys import AffinityKey, ResourceKey

log = logging.getLogger("svc.controllers")


class IpamHosts(Controller[str]):
    """Removes hosts that are gone. The items are names in the datastore."""

    name = NODE

    def __init__(self, shared: Shared) -> None:
        tables = shared.tables
        self._blocks, self._affinities = tables.blocks, tables.affinities[0]
        self._nodes, self._kube_nodes = tables.nodes, tables.kube_nodes
        self._gone = tables.gone_nodes
        self._lock = Lock()
        self._deleted: set[str] = set()  # nodes whose deletion this process has seen, so that their claims go as well
        super().__init__(shared, (self._blocks, self._affinities, self._nodes, self._kube_nodes))
        self._kube_nodes.on_change(self._note_deleted)

    def round_items(self) -> Iterable[str]:
        with self._lock:
            known = set(self._deleted)
        known |= {key.host for key in self._affinities.snapshot() if isinstance(key, AffinityKey)}
        known |= {key.name for key in self._nodes.snapshot() if isinstance(key, ResourceKey)}
        for entry in self._blocks.snapshot().values():
            known.update(hosts_of(entry.value))
        missing = {host for host in known if lacks_node(self.shared.tables, self.shared.names, host)}
        self._gone.keep(missing)  # no part asks about a node of which nothing is left
        return sorted(missing)

    def settle(self, item: str) -> None:
        """Remove the host if it is gone and its addresses are. Otherwise the next round looks again."""
        claim = self._gone.claim_if_gone(item)
        if claim is None:
            return
        remains = read_remains(self.shared.tables, self.shared.store, item)
        if remains.addresses:
            log.debug("controller %s: node %s is gone, and has %d addresses", self.name, item, remains.addresses)
            return
        try:  # first: it fails if the agent of the node has renewed its claim since
            delete_claim(self.shared.store, item, claim)
        except Conflict:
            return
        self._gone.note_deleted_claim(item, claim)
        if claim or remains.affinities:
            remove_host(self.shared.store, item, remains.affinities)
            log.info("controller %s: node %s is gone: %d blocks are released", self.name, item, len(remains.affinities))
        with self._lock:
            self._deleted.discard(item)

    def shown(self, item: str) -> str:
        return f"node {item}"

    def _note_deleted(self, names: Collection[str]) -> None:
        with self._lock:
            for name in names:
                if self._kube_nodes.get(name) is None:
                    self._deleted.add(name)
