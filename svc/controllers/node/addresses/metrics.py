"""Metrics of address management in the whole cluster, by pool and node. Pure: they are computed when they are read."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache

from svc._core.cidr import Address, Cidr
from svc.controllers.node.addresses.held import Held
from svc.datastore.api import Entry
from svc.ipam import blocks as block_rules
from svc.ipam.pools import Reserved, read_entries
from svc.metrics import Sample
from svc.model.ipam import Block
from svc.model.keys import Host
from svc.model.pool import Pool
from svc.model.resource import Resource

NO_POOL, NO_AFFINITY, UNKNOWN_NODE = "no_ippool", "no_affinity", "unknown_node"
_PER_NODE = {  # the same numbers of all pools together, under names that older dashboards have
    "ipam_allocations_in_use": "ipam_allocations_per_node",
    "ipam_allocations_borrowed": "ipam_allocations_borrowed_per_node",
    "ipam_blocks": "ipam_blocks_per_node",
}

Numbers = Mapping[tuple[str, str], int]  # by pool and node


def families(
    blocks: Iterable[Block],
    pools: Sequence[Pool],
    reserved: Reserved,
    candidates: Iterable[Held] = (),
    reclaimed: Mapping[tuple[str, str], int] | None = None,
) -> Iterator[Sample]:
    """Yield the samples. `reclaimed` counts the addresses that were released, by address and node."""
    pool_of = _finder(pools)
    counts: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in _PER_NODE}
    for block in blocks:
        _count(block, pool_of(block.cidr), counts)
    for name, numbers in counts.items():
        yield from _samples(name, numbers)
        yield from _summed(_PER_NODE[name], numbers)
    waiting = Counter((pool_of(Address(each.address).host()), each.node or UNKNOWN_NODE) for each in candidates)
    yield from _samples("ipam_allocations_gc_candidates", waiting)
    released: Counter[tuple[str, str]] = Counter()
    for (address, node), number in (reclaimed or {}).items():
        released[pool_of(Address(address).host()), node or UNKNOWN_NODE] += number
    yield from _samples("ipam_allocations_gc_reclamations", released)
    for pool in sorted(pools, key=lambda each: each.name):
        label = (("ippool", pool.name),)
        yield "ipam_ippool_size", label, float(pool.cidr.size)
        yield "ipam_ippool_reserved", label, float(reserved.count(pool.cidr))


def read_pools(pools: Iterable[Entry[Resource]], reservations: Iterable[Entry[Resource]]) -> tuple[list[Pool], Reserved]:
    """Return the pools and the reserved ranges of entries. Leave out what is malformed."""
    found: list[Pool] = []
    for entry in pools:
        with suppress(ValueError):
            found.append(Pool.from_resource(entry.value))
    return found, Reserved(cidr for entry in reservations for cidr in read_entries(entry.value)[0])


def _finder(pools: Sequence[Pool]) -> Callable[[Cidr], str]:
    """Return a function that finds the name of the pool with a CIDR."""

    @cache
    def found(cidr: Cidr) -> str:
        return next((pool.name for pool in pools if cidr in pool.cidr), NO_POOL)

    return found


def _count(block: Block, pool: str, counts: Mapping[str, Counter[tuple[str, str]]]) -> None:
    """Add a block. What is in cooldown is not in use, and what Windows sets aside neither."""
    host = Host.of(block.affinity)
    owner = host.name if host else NO_AFFINITY
    counts["ipam_blocks"][pool, owner] += 1
    for tag, attribute in enumerate(block.attributes or ()):
        if attribute.released_at or block_rules.is_windows_reserved(attribute):
            continue
        node, number = (attribute.secondary or {}).get("node") or UNKNOWN_NODE, len(block.ordinals.tagged(tag))
        if not number:
            continue
        counts["ipam_allocations_in_use"][pool, node] += number
        if node not in (UNKNOWN_NODE, owner):
            counts["ipam_allocations_borrowed"][pool, node] += number


def _samples(name: str, numbers: Numbers) -> Iterator[Sample]:
    for (pool, node), number in sorted(numbers.items()):
        yield name, (("ippool", pool), ("node", node)), float(number)


def _summed(name: str, numbers: Numbers) -> Iterator[Sample]:
    sums: Counter[str] = Counter()
    for (_, node), number in numbers.items():
        sums[node] += number
    for node, number in sorted(sums.items()):
        yield name, (("node", node),), float(number)
