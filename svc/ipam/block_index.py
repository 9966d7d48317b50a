"""Index of a family's blocks: free ranges, idle blocks and blocks to borrow from.

The index is built from one listing, and offers each free block once. The name of a host determines where in a pool its search
begins, so hosts seldom claim the same block.
"""

import zlib
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta, timezone

from svc._core.cidr import Cidr, CidrIndex
from svc.datastore.api import Backend
from svc.datastore.expired_pages import repeated
from svc.ipam import blocks
from svc.ipam.blocks import Cooldown
from svc.ipam.cache import read_blocks
from svc.ipam.pools import Reserved
from svc.model.ipam import Block
from svc.model.keys import Host
from svc.model.pool import Pool
from svc.values import dataclass

IDLE = timedelta(seconds=60)  # minimum age of an idle block's claim; one dated further in the future also counts (wrong clock)


@dataclass(frozen=True, slots=True)
class Listed:
    """What an index keeps of a block. A cluster has thousands of blocks, and the owners of one take up to 200 KiB."""

    cidr: Cidr
    affinity: str | None
    sequence: int
    is_idle: bool  # empty and not reserved, and its claim is not new
    is_borrowable: bool  # it has a free address, and Windows does not use it


class BlockIndex:
    """The blocks of one family from one listing of the datastore, and the free ranges between them. For one thread.

    A range is free if it overlaps neither a block of any size nor a block in `owned`. These are the blocks of the host's
    affinities. A block may name the host although its affinity is missing. No other host claims such a block, so it is offered
    first.
    """

    def __init__(
        self, backend: Backend, version: int, host: Host, owned: Collection[Cidr], reserved: Reserved, cooldown: Cooldown
    ) -> None:
        self._host = host
        self._reserved = reserved
        self._now = cooldown.now
        self._offers: dict[str, Iterator[Cidr]] = {}
        repeated(lambda: self._fill(backend, version, owned, cooldown))

    def next_free_range(self, pool: Pool) -> Cidr | None:
        """Return a free block of the pool that was not offered before, or None."""
        if pool.name not in self._offers:
            self._offers[pool.name] = self._free(pool)
        return next(self._offers[pool.name], None)

    def overlapping(self, cidr: Cidr) -> list[Cidr]:
        """Return the blocks that share addresses with this CIDR."""
        return self._present.overlapping(cidr)

    def idle(self, pool: Pool) -> list[Listed]:
        """Return the idle blocks of the pool that this host may reclaim, without its own."""
        return [block for block in self._others(pool) if block.cidr.length == pool.block_size and block.is_idle]

    def borrowable(self, pool: Pool) -> list[Cidr]:
        """Return the blocks with a free address that this host may borrow from, in this host's search order."""
        return [block.cidr for block in self._others(pool) if block.is_borrowable]

    def _fill(self, backend: Backend, version: int, owned: Collection[Cidr], cooldown: Cooldown) -> None:
        self._present: CidrIndex[Listed | None] = CidrIndex()
        self._without_affinity: list[Cidr] = []
        for cidr in owned:
            self._present.insert(cidr, None)
        for block in read_blocks(backend, version):
            blocks.free_expired(block, cooldown)
            self._add(block)

    def _add(self, block: Block) -> None:
        known, has_free = len(self._present), block.ordinals.available(self._reserved.mask(block.cidr)) > 0
        is_borrowable = has_free and not blocks.is_of_windows(block)
        listed = Listed(block.cidr, block.affinity, block.sequence, self._is_idle(block), is_borrowable)
        self._present.insert(block.cidr, listed)
        if len(self._present) > known and has_free and block.affinity == self._host.affinity:
            self._without_affinity.append(block.cidr)

    def _others(self, pool: Pool) -> Sequence[Listed]:
        found = [self._present.exact(cidr) for cidr in self.overlapping(pool.cidr) if cidr in pool.cidr]
        others = [block for block in found if block is not None and block.affinity != self._host.affinity]
        start, count = self._start(pool), pool.cidr.block_count(pool.block_size)
        return sorted(others, key=lambda block: (_numbers(pool, block.cidr)[0] - start) % count)

    def _is_idle(self, block: Block) -> bool:
        if not blocks.is_empty(block):  # most are not, and all are asked
            return False
        claimed = blocks.parse_time(block.claimed_at) or datetime.min.replace(tzinfo=timezone.utc)
        return abs(self._now - claimed) > IDLE and not self._reserved.covers(block.cidr)

    def _start(self, pool: Pool) -> int:
        return zlib.crc32(self._host.name.encode()) % pool.cidr.block_count(pool.block_size)

    def _free(self, pool: Pool) -> Iterator[Cidr]:
        """Yield the free blocks of a pool. Skip each reserved range in one step: it may contain too many blocks to iterate."""
        yield from (cidr for cidr in self._without_affinity if cidr in pool.cidr)
        covered = {number for cidr in self.overlapping(pool.cidr) for number in _numbers(pool, cidr)}
        reserved = [_numbers(pool, cidr) for cidr in self._reserved.ranges_in(pool.cidr) if cidr.length <= pool.block_size]
        count, start, step = pool.cidr.block_count(pool.block_size), self._start(pool), 0
        while step < count:
            number = (start + step) % count
            passed = next((numbers for numbers in reserved if number in numbers), range(number, number + 1))
            step += passed.stop - number
            cidr = pool.cidr.block(number, pool.block_size)
            if number not in covered and not self._reserved.covers(cidr):
                yield cidr


def _numbers(pool: Pool, cidr: Cidr) -> range:
    """Return the numbers of the pool's blocks that the CIDR overlaps."""
    size = pool.cidr.size // pool.cidr.block_count(pool.block_size)
    if pool.cidr not in cidr:
        return range(pool.cidr.ordinal(cidr.first) // size, pool.cidr.ordinal(cidr.last) // size + 1)
    return range(pool.cidr.block_count(pool.block_size))
