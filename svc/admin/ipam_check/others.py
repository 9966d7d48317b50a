"""Findings on nodes, pools and documents."""

from collections import defaultdict
from collections.abc import Iterator

from svc._core.cidr import CidrIndex
from svc.admin.ipam_check.findings import SETTLE_SECONDS, Candidate, candidate
from svc.admin.ipam_check.observation import Observation
from svc.model.keys import NODE, Host


def check(found: Observation) -> Iterator[Candidate]:
    """Yield the findings on nodes, pools and documents."""
    yield from (candidate("undecodable", path, error) for path, error in found.undecodable.items())
    yield from _overlapping_pools(found)
    if found.place.backend.requires_node:
        yield from _missing_nodes(found)


def _overlapping_pools(found: Observation) -> Iterator[Candidate]:
    index: CidrIndex[str] = CidrIndex()
    for pool in found.pools.all:
        for cidr in index.overlapping(pool.cidr):
            objects = f"{index.exact(cidr)} and {pool.name}"
            problem = f"{cidr} and {pool.cidr} overlap" if cidr != pool.cidr else f"both have {cidr}"
            yield candidate("pools-overlap", objects, problem, evidence=problem, wait=SETTLE_SECONDS)  # during a split
        index.insert(pool.cidr, pool.name)


def _missing_nodes(found: Observation) -> Iterator[Candidate]:
    """Yield the nodes that do not exist. What a node has got since the nodes were read does not count."""
    addresses: dict[str, list[str]] = defaultdict(list)
    blocks: dict[str, int] = defaultdict(int)
    for affinity in found.affinities:
        if affinity.key.kind == NODE:
            blocks[affinity.key.host] += 1
    for allocation in found.allocations():
        if allocation.is_held and allocation.is_stable and (node := allocation.owner.get("node")):
            addresses[node].append(str(allocation.address))
    stable = (Host.of(block.block.affinity) for block in found.blocks.values() if block.is_stable)
    hosts = {host.name for host in stable if host is not None and host.kind == NODE}
    for node in sorted({*blocks, *addresses, *hosts} - found.nodes):
        problem = f"it has {blocks.get(node, 0)} blocks and {len(addresses.get(node, ()))} addresses"
        held = tuple(addresses.get(node, ()))
        yield candidate("node-gone", node, problem, addresses=held, node=node, wait=SETTLE_SECONDS)
