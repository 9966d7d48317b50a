"""How full the pools are: what `ipam show` tells, and what a controller exports."""

from collections.abc import Iterable, Sequence

from svc._core.cidr import Cidr
from svc.datastore.api import Backend
from svc.ipam import blocks, errors
from svc.ipam.blocks import Rest
from svc.ipam.reserved import Reserved
from svc.ipam.settings import read_settings, rest_of
from svc.ipam.view import read_blocks, read_pools, read_reserved
from svc.values import dataclass

ORPHANS = "orphaned blocks"
_EVERYTHING = (Cidr("0.0.0.0/0"), Cidr("::/0"))


@dataclass(frozen=True, slots=True)
class BlockUsage:
    """Addresses of one block. What rests is in use; `available` is free and not reserved."""

    cidr: Cidr
    affinity: str | None
    capacity: int
    reserved: int
    in_use: int
    available: int


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Addresses of one pool, with those in no block yet; or of the blocks that are in no pool (`ORPHANS`)."""

    name: str
    cidr: Cidr
    capacity: int
    reserved: int
    in_use: int
    available: int
    blocks: tuple[BlockUsage, ...]


def usage(backend: Backend, names: Sequence[str] = ()) -> tuple[PoolUsage, ...]:
    """One row for each pool in name order, then one for the orphans of each family that has any; or, with `names` (or CIDRs),
    one for each of those pools. CallerError when there is no such pool."""
    pools, reserved = read_pools(backend).all, read_reserved(backend)
    present = _present(backend, reserved, rest_of(read_settings(backend)))
    by_pool = {pool.name: [block for block in present if block.cidr in pool.cidr] for pool in pools}
    rows = {pool.name: _row(pool.name, pool.cidr, by_pool[pool.name], reserved) for pool in pools}
    if names:
        by_text = {text: rows[pool.name] for pool in pools for text in (pool.name, str(pool.cidr))}
        return tuple(_named(by_text, name) for name in names)
    known = {block.cidr for found in by_pool.values() for block in found}
    return (*rows.values(), *_orphans([block for block in present if block.cidr not in known]))


def _present(backend: Backend, reserved: Reserved, rest: Rest) -> list[BlockUsage]:
    found = []
    for block in read_blocks(backend):
        blocks.collect(block, rest)
        ordinals, aside = block.ordinals, reserved.count(block.cidr)
        available = ordinals.available(reserved.mask(block.cidr))
        found.append(BlockUsage(block.cidr, block.affinity, ordinals.size, aside, ordinals.used, available))
    return found


def _row(name: str, cidr: Cidr, present: Sequence[BlockUsage], reserved: Reserved) -> PoolUsage:
    capacity, aside = cidr.size, reserved.count(cidr)
    outside = capacity - sum(block.capacity for block in present)
    outside -= aside - sum(block.reserved for block in present)
    available = outside + sum(block.available for block in present)
    return PoolUsage(name, cidr, capacity, aside, sum(block.in_use for block in present), available, tuple(present))


def _orphans(lost: Sequence[BlockUsage]) -> Iterable[PoolUsage]:
    """Their capacity is that of the blocks: no pool is behind them that could have more."""
    for everything in _EVERYTHING:
        found = tuple(block for block in lost if block.cidr in everything)
        if found:
            yield PoolUsage(
                ORPHANS,
                everything,
                sum(block.capacity for block in found),
                sum(block.reserved for block in found),
                sum(block.in_use for block in found),
                sum(block.available for block in found),
                found,
            )


def _named(rows: dict[str, PoolUsage], name: str) -> PoolUsage:
    if name not in rows:
        raise errors.pool_missing(name)
    return rows[name]
