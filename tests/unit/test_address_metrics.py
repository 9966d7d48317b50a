"""Metrics of addresses by pool and node: each name, and counts that agree with a plain look at each address."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.blocks import NOW
from svc._core.cidr import Cidr
from svc.controllers.node.addresses.held import Held
from svc.controllers.node.addresses.metrics import NO_AFFINITY, NO_POOL, UNKNOWN_NODE, families
from svc.ipam import blocks
from svc.ipam.blocks import RESERVED_HANDLE
from svc.ipam.pools import Reserved
from svc.model.ipam import Attribute, Block
from svc.model.pool import Pool
from svc.model.resource import Resource

POOL = Pool.from_resource(Resource("IPPool", {"name": "pool4"}, {"cidr": "10.0.0.0/24", "blockSize": 29}))
RESERVED = Reserved([Cidr("10.0.0.0/30"), Cidr("10.9.0.0/16")])


def block(cidr: str, owner: str | None, *attributes: Attribute) -> Block:
    made = blocks.new_block(Cidr(cidr), "host:x", NOW)
    made.affinity = owner and f"host:{owner}"
    for each in attributes:
        blocks.assign(made, each)
    return made


def of(node: str) -> Attribute:
    return Attribute(f"pods.c-{node}", {"node": node} if node else {"pod": "x"})


def values(*given_blocks: Block, candidates: Sequence[Held] = (), **options: Any) -> dict[tuple[str, ...], float]:
    found = families(given_blocks, [POOL], RESERVED, candidates, **options)
    return {(name, *(text for _, text in labels)): value for name, labels, value in found}


def test_each_metric() -> None:
    held = Held("10.0.0.1", "pods.c1", 1, "pod", "node1", "default/web", "t")
    first = block(
        "10.0.0.0/29",
        "node1",
        of("node1"),
        of("node1"),
        of("node2"),
        of(""),
        Attribute(RESERVED_HANDLE, {"note": "windows host rsvd"}),
        Attribute(released_at="2026-01-01T00:00:00Z"),
    )
    found = values(first, block("10.1.0.0/29", None, of("node2")), candidates=[held], reclaimed={("10.0.0.5", "node3"): 2})
    assert found == {
        ("ipam_allocations_in_use", "pool4", "node1"): 2,
        ("ipam_allocations_in_use", "pool4", "node2"): 1,
        ("ipam_allocations_in_use", "pool4", UNKNOWN_NODE): 1,
        ("ipam_allocations_in_use", NO_POOL, "node2"): 1,
        ("ipam_allocations_per_node", "node1"): 2,
        ("ipam_allocations_per_node", "node2"): 2,
        ("ipam_allocations_per_node", UNKNOWN_NODE): 1,
        ("ipam_allocations_borrowed", "pool4", "node2"): 1,
        ("ipam_allocations_borrowed", NO_POOL, "node2"): 1,
        ("ipam_allocations_borrowed_per_node", "node2"): 2,
        ("ipam_blocks", "pool4", "node1"): 1,
        ("ipam_blocks", NO_POOL, NO_AFFINITY): 1,
        ("ipam_blocks_per_node", "node1"): 1,
        ("ipam_blocks_per_node", NO_AFFINITY): 1,
        ("ipam_allocations_gc_candidates", "pool4", "node1"): 1,
        ("ipam_allocations_gc_reclamations", "pool4", "node3"): 2,
        ("ipam_ippool_size", "pool4"): 256,
        ("ipam_ippool_reserved", "pool4"): 4,
    }


NODES = st.sampled_from(["node1", "node2", ""])
BLOCKS = st.lists(st.tuples(st.sampled_from(["node1", "node2", None]), st.lists(NODES, max_size=8)), max_size=4)


@given(BLOCKS)
def test_sums_are_those_of_the_single_addresses(given_blocks: list[tuple[str | None, list[str]]]) -> None:
    made = [block(f"10.0.0.{8 * number}/29", owner, *map(of, nodes)) for number, (owner, nodes) in enumerate(given_blocks)]
    in_use, borrowed = Counter[str](), Counter[str]()
    for each in made:
        for ordinal in range(each.cidr.size):
            tag = each.ordinals.allocations()[ordinal]
            if tag is None:
                continue
            assert each.attributes
            node = (each.attributes[tag].secondary or {}).get("node", UNKNOWN_NODE)
            in_use[node] += 1
            borrowed[node] += node != UNKNOWN_NODE and each.affinity != f"host:{node}"
    found = values(*made)
    assert {key[1]: value for key, value in found.items() if key[0] == "ipam_allocations_per_node"} == in_use
    assert {key[1]: value for key, value in found.items() if key[0] == "ipam_allocations_borrowed_per_node"} == +borrowed
