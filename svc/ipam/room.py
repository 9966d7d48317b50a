"""Where a node finds room: in the blocks that are its own, in one whose claim it can finish, in one that it claims anew.

The affinities say which blocks to look at, the blocks say whose they are. An affinity that was not confirmed is in doubt:
before such a block is used its claim is finished, or dropped where the block is somebody else's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Damaged, NotFound
from svc.ipam import blocks, errors
from svc.ipam.claim import ClaimLost, claim, own_block
from svc.ipam.space import Space
from svc.ipam.view import View
from svc.model.errors import PeerError
from svc.model.ipam import Block
from svc.model.pool import Pool

Peek = Callable[[Cidr], Block]  # a block as a draft has it, to read only; NotFound, Damaged


class Room:
    """Blocks for the requests of one plan. A block that cannot be decoded gives no address and stops nobody."""

    def __init__(self, backend: Backend, view: View, node: str) -> None:
        self._backend = backend
        self._view = view
        self._node = node
        self._mine = blocks.host_affinity(node)
        self._spaces: dict[int, Space] = {}

    def block_with_room(self, peek: Peek, version: int, pools: Sequence[Pool]) -> Cidr:
        """One of the node's own blocks, claimed if need be. PeerError when the pools are exhausted."""
        own = next((cidr for pool in pools for cidr in self._own(pool) if self._has_room(peek, cidr)), None)
        if own is not None:
            return own
        for pool in pools:
            while (cidr := self._space(version).next_free(pool)) is not None:
                with suppress(ClaimLost, Damaged):
                    self._view.own(claim(self._backend, cidr, self._node))
                    if peek(cidr).ordinals.free:  # another process of this node may have made it, and filled it
                        return cidr
        raise self._exhausted(peek, version, pools)

    def block_at(self, peek: Peek, address: Address) -> Cidr:
        """The block that has the address, whoever owns it; claimed where nobody does. CallerError; ClaimLost, Damaged."""
        cidr = self._view.pools().block_of(address)
        with suppress(NotFound):
            peek(cidr)
            return cidr
        others = self._overlapping(cidr)
        if others:
            return _holding(others, address)
        self._view.own(claim(self._backend, cidr, self._node))
        return cidr

    def check(self, peek: Peek, version: int, pools: Sequence[Pool]) -> None:
        """PeerError when `block_with_room` would raise it. Writes nothing."""
        if not any(self._may_have_room(peek, pool) for pool in pools):
            raise self._exhausted(peek, version, pools)

    def _own(self, pool: Pool) -> Iterator[Cidr]:
        return (cidr for cidr in self._view.own_blocks(pool.cidr.version) if cidr in pool.cidr)

    def _has_room(self, peek: Peek, cidr: Cidr) -> bool:
        try:
            block = None if self._view.is_doubtful(cidr) else self._found(peek, cidr)
            if block is None or not self._is_own(block):
                block = self._repaired(peek, cidr)
        except Damaged:
            return False
        return block is not None and block.ordinals.free > 0

    def _repaired(self, peek: Peek, cidr: Cidr) -> Block | None:
        """The node's own block after its claim was finished; None when it is lost."""
        try:
            if self._overlapping(cidr):
                raise ClaimLost
            self._view.own(own_block(self._backend, cidr, self._node))
        except ClaimLost:
            self._view.disown(cidr)
            return None
        return peek(cidr)

    def _may_have_room(self, peek: Peek, pool: Pool) -> bool:
        """As `_has_room` of any block, with nothing repaired: a block that is missing can be made."""
        for cidr in self._own(pool):
            with suppress(Damaged):
                block = self._found(peek, cidr)
                if block is None or (self._is_own(block) and block.ordinals.free > 0):
                    return True
        return self._space(pool.cidr.version).next_free(pool) is not None

    def _found(self, peek: Peek, cidr: Cidr) -> Block | None:
        """Damaged."""
        try:
            return peek(cidr)
        except NotFound:
            return None

    def _is_own(self, block: Block) -> bool:
        return block.affinity == self._mine

    def _overlapping(self, cidr: Cidr) -> list[Cidr]:
        """Other blocks that share addresses with this one: they are of another size."""
        return [other for other in self._space(cidr.version).overlapping(cidr) if other != cidr]

    def _space(self, version: int) -> Space:
        """Listed when it is needed first: most requests find room in the node's own blocks."""
        if version not in self._spaces:
            self._spaces[version] = Space(self._backend, version, self._node, self._view.own_blocks(version))
        return self._spaces[version]

    def _exhausted(self, peek: Peek, version: int, pools: Sequence[Pool]) -> PeerError:
        return errors.exhausted(version, self._node, [self._usage(peek, pool) for pool in pools])

    def _usage(self, peek: Peek, pool: Pool) -> str:
        own = list(self._readable(peek, pool))
        total = pool.cidr.block_count(pool.block_size)
        used = sum(block.ordinals.used for block in own)
        return f"{pool.name} {pool.cidr} ({len(own)} of {total} blocks are the node's, {used} addresses used in them)"

    def _readable(self, peek: Peek, pool: Pool) -> Iterator[Block]:
        for cidr in self._own(pool):
            with suppress(Damaged):
                block = self._found(peek, cidr)
                if block is not None and self._is_own(block):
                    yield block


def _holding(present: Sequence[Cidr], address: Address) -> Cidr:
    """The block that has the address; CallerError when they only have its neighbours."""
    found = next((cidr for cidr in present if address in cidr), None)
    if found is None:
        raise errors.straddled(address, present[0])
    return found
