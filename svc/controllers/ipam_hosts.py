"""What nodes that are gone leave behind: their blocks, and the claims on their names.

They go when no address of the node is left. Another part releases the addresses of its pods and tunnels before. An address that
only an agent of the node can judge, such as that of a container which is no pod, keeps the node until an administrator releases
it. A node that is created again starts without anything, and claims new blocks.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from threading import Lock

from svc.admin.block_release import delete_claim, remove_host
from svc.controllers.controller import Controller, Shared
from svc.controllers.gone_nodes import GoneNodes
from svc.controllers.nodes import kube_name
from svc.controllers.settings import NODE
from svc.datastore.api import Conflict
from svc.ipam.blocks import is_windows_reserved
from svc.model.ipam import Block
from svc.model.keys import NODE as OF_NODE
from svc.model.keys import AffinityKey, BlockKey, Host, ResourceKey
from svc.values import dataclass

log = logging.getLogger("svc.controllers")


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a node: the affinities to its blocks, and the number of its addresses."""

    affinities: tuple[AffinityKey, ...] = ()
    addresses: int = 0


class IpamHosts(Controller[str]):
    """Removes hosts that are gone. The items are names in the datastore."""

    name = NODE

    def __init__(self, shared: Shared, clock: Callable[[], float] = time.monotonic) -> None:
        tables = shared.tables
        self._blocks, self._affinities = tables.blocks, tables.affinities[0]
        self._nodes, self._kube_nodes = tables.nodes, tables.kube_nodes
        self._gone = GoneNodes(shared.client, shared.store, shared.names, clock)
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
            known.update(_hosts(entry.value))
        missing = {host for host in known if self._is_missing(host)}
        for host in known - missing:  # one that was away for a time is observed anew when it is missing again
            self._gone.forget(host)
        return sorted(missing)

    def settle(self, item: str) -> None:
        """Remove the host if it is gone and its addresses are. Otherwise the next round looks again."""
        if not self._gone.is_gone(item):
            return
        remains = self._read(item)
        if remains.addresses:
            log.debug("controller %s: node %s is gone, and has %d addresses", self.name, item, remains.addresses)
            return
        try:  # first: it fails if the agent of the node has renewed its claim since
            claim = self._gone.claim_of(item)
            delete_claim(self.shared.store, item, claim)
        except Conflict:
            return
        self._gone.note_deleted_claim(item)
        if claim or remains.affinities:
            remove_host(self.shared.store, item, remains.affinities)
            log.info("controller %s: node %s is gone: %d blocks are released", self.name, item, len(remains.affinities))
        self._gone.forget(item)
        with self._lock:
            self._deleted.discard(item)

    def shown(self, item: str) -> str:
        return f"node {item}"

    def _note_deleted(self, names: Collection[str]) -> None:
        with self._lock:
            for name in names:
                if self._kube_nodes.get(name) is None:
                    self._deleted.add(name)

    def _is_missing(self, host: str) -> bool:
        """Return whether the tables have no node of Kubernetes for the host. A malformed Node is reported when it is read."""
        entry = self._nodes.get(ResourceKey("Node", host))
        try:
            name = host if entry is None else kube_name(self.shared.names, entry.value)
        except ValueError:
            return True
        return bool(name) and self._kube_nodes.get(name) is None

    def _read(self, host: str) -> Remains:
        """Read what is left of a host now. The tables know where to look."""
        affinities = {key: key.cidr for key in self._affinities.snapshot() if isinstance(key, AffinityKey) and key.host == host}
        cidrs = set(affinities.values())
        cidrs.update(entry.value.cidr for entry in self._blocks.snapshot().values() if host in _hosts(entry.value))
        addresses = 0
        for cidr in sorted(cidrs):
            entry = self.shared.store.find(BlockKey(cidr))
            if entry is None:
                continue
            addresses += _count_addresses(entry.value, host)
            if entry.value.affinity == Host(host).affinity:
                affinities[Host(host).affinity_key(cidr)] = cidr
        return Remains(tuple(affinities), addresses)


def _hosts(block: Block) -> Iterator[str]:
    """Yield the node that has the block, and the nodes that have addresses in it."""
    host = Host.of(block.affinity)
    if host is not None and host.kind == OF_NODE:
        yield host.name
    for attribute in block.attributes or ():
        if node := (attribute.secondary or {}).get("node"):
            yield node


def _count_addresses(block: Block, host: str) -> int:
    """Count the addresses that a node holds. One without a node belongs to the node that has the block."""
    count = 0
    for tag, attribute in enumerate(block.attributes or ()):
        if attribute.released_at or is_windows_reserved(attribute):
            continue
        node = (attribute.secondary or {}).get("node")
        if node == host or (node is None and block.affinity == Host(host).affinity):
            count += len(list(block.ordinals.tagged(tag)))
    return count
