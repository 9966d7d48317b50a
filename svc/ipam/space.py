"""Where new blocks may be claimed: the parts of pools that no block covers."""

import zlib
from collections.abc import Collection, Iterator

from svc._core.cidr import Cidr, CidrIndex
from svc.datastore.api import Backend
from svc.ipam import blocks
from svc.model.ipam import Block
from svc.model.keys import BlockQuery
from svc.model.pool import Pool


class Space:
    """The free blocks of one family, as one listing of the datastore shows them; each is offered once.

    A block of another size counts as well: nothing that overlaps it is free, nor what overlaps `owned`, the blocks that
    the node has an affinity to. A block that names the node as its owner and is not among them has lost its affinity:
    nobody else will ever use it, so it is offered first.
    """

    def __init__(self, backend: Backend, version: int, node: str, owned: Collection[Cidr]) -> None:
        self._node = node
        self._present: CidrIndex[None] = CidrIndex()
        self._astray: list[Cidr] = []
        self._offers: dict[str, Iterator[Cidr]] = {}
        for cidr in owned:
            self._present.insert(cidr, None)
        for entry in backend.list(BlockQuery(version)):
            assert isinstance(entry.value, Block)
            self._note(entry.value)

    def next_free(self, pool: Pool) -> Cidr | None:
        """A block of the pool that was not offered before; None when there is no other."""
        if pool.name not in self._offers:
            self._offers[pool.name] = self._free(pool)
        return next(self._offers[pool.name], None)

    def overlapping(self, cidr: Cidr) -> list[Cidr]:
        """The blocks that share addresses with this one."""
        return self._present.overlapping(cidr)

    def _note(self, block: Block) -> None:
        known = len(self._present)
        self._present.insert(block.cidr, None)
        if len(self._present) > known and block.ordinals.free and block.affinity == blocks.host_affinity(self._node):
            self._astray.append(block.cidr)

    def _free(self, pool: Pool) -> Iterator[Cidr]:
        """Starts at a place that the node's name picks, so that nodes seldom collide."""
        yield from (cidr for cidr in self._astray if cidr in pool.cidr)
        covered = {number for cidr in self.overlapping(pool.cidr) for number in _numbers(pool, cidr)}
        count = pool.cidr.block_count(pool.block_size)
        start = zlib.crc32(self._node.encode()) % count
        for place in range(count):
            number = (start + place) % count
            if number not in covered:
                yield pool.cidr.block(number, pool.block_size)


def _numbers(pool: Pool, cidr: Cidr) -> range:
    """Those of the pool's blocks that it covers, wholly or in part."""
    size = pool.cidr.size // pool.cidr.block_count(pool.block_size)
    if pool.cidr not in cidr:
        return range(pool.cidr.ordinal(cidr.first) // size, pool.cidr.ordinal(cidr.last) // size + 1)
    return range(pool.cidr.block_count(pool.block_size))
