"""What the datastore has of a host: the affinities to its blocks, and its addresses."""

from collections.abc import Iterator

from svc.controllers.nodes import kube_name
from svc.controllers.tables import Tables
from svc.datastore.api import Backend
from svc.ipam.blocks import is_windows_reserved
from svc.model.ipam import Block
from svc.model.keys import NODE as OF_NODE
from svc.model.keys import AffinityKey, BlockKey, Host, ResourceKey
from svc.names import Names
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a node: the affinities to its blocks, and the number of its addresses."""

    affinities: tuple[AffinityKey, ...] = ()
    addresses: int = 0


def read_remains(tables: Tables, store: Backend, host: str) -> Remains:
    """Read what is left of a host now. The tables know where to look. Raise StoreError."""
    present = tables.affinities[0].snapshot()
    affinities = {key: key.cidr for key in present if isinstance(key, AffinityKey) and key.host == host}
    cidrs = set(affinities.values())
    cidrs.update(entry.value.cidr for entry in tables.blocks.snapshot().values() if host in hosts_of(entry.value))
    addresses = 0
    for cidr in sorted(cidrs):
        entry = store.find(BlockKey(cidr))
        if entry is None:
            continue
        addresses += _count_addresses(entry.value, host)
        if entry.value.affinity == Host(host).affinity:
            affinities[Host(host).affinity_key(cidr)] = cidr
    return Remains(tuple(affinities), addresses)


def lacks_node(tables: Tables, names: Names, host: str) -> bool:
    """Return whether the tables have no node of Kubernetes for a host. A malformed Node is reported when it is read."""
    entry = tables.nodes.get(ResourceKey("Node", host))
    try:
        name = host if entry is None else kube_name(names, entry.value)
    except ValueError:
        return True
    return bool(name) and tables.kube_nodes.get(name) is None


def hosts_of(block: Block) -> Iterator[str]:
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
