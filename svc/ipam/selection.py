"""Select a block with a free address for a host.

The finder first tries the blocks with the host's affinity. Then it claims a free block, or else reclaims an idle block. Last,
it borrows from a block of another host, unless affinity is strict.

The affinities list the candidates; the `affinity` field of a block is authoritative. Before a block with an unconfirmed
affinity is used, its claim is completed. If the block has another affinity, the host's affinity is deleted instead.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, KeyedError, NotFound, UndecodableEntry
from svc.ipam import blocks, errors
from svc.ipam.affinity_release import BlockInUse, drop_abandoned, give_up
from svc.ipam.block_index import BlockIndex
from svc.ipam.blocks import Cooldown
from svc.ipam.cache import IpamCache
from svc.ipam.claim import ClaimConflict, claim, own_block
from svc.ipam.host import Host
from svc.ipam.reservations import Reserved
from svc.ipam.settings import effective_limit
from svc.model.errors import PeerError
from svc.model.ipam import Block, IpamConfig
from svc.model.pool import WORKLOAD, Pool

Peek = Callable[[Cidr], Block]  # returns the block of a draft, read-only; raises NotFound, UndecodableEntry


class BlockFinder:
    """Block selection for the requests of one plan.

    Automatic assignment skips blocks that cannot be decoded. For one thread.
    """

    def __init__(self, backend: Backend, view: IpamCache, host: Host, rest: Callable[[], Cooldown]) -> None:
        self._backend = backend
        self._view = view
        self._host = host
        self._rest = rest
        self._spaces: dict[int, BlockIndex] = {}
        self._reserved: Reserved | None = None
        self._settings: IpamConfig | None = None

    @property
    def reserved(self) -> Reserved:
        """The reservations and avoided addresses, read once per plan."""
        if self._reserved is None:
            self._reserved = self._view.reserved()
        return self._reserved

    @property
    def settings(self) -> IpamConfig:
        """The IPAM settings, read once per plan. Raise UndecodableEntry if they cannot be decoded."""
        if self._settings is None:
            self._settings = self._view.settings()
        return self._settings

    def block_with_room(self, peek: Peek, version: int, pools: Sequence[Pool], max_blocks: int = 0) -> Cidr:
        """Return a block with a free address: a block of the host, claimed if necessary, or a block to borrow from.

        Raise PeerError if no such block exists.
        """
        own = next((cidr for pool in pools for cidr in self._own(pool) if self._has_room(peek, cidr)), None)
        if own is not None:
            return own
        refusal = self._why_no_claim(version, pools, max_blocks)
        cidr = self._claimed(peek, version, pools) if refusal is None else None
        if cidr is None and self._may_borrow():
            cidr = next(self._to_borrow(peek, version, pools), None)
        if cidr is None:
            raise refusal or self._exhausted(peek, version, pools)
        return cidr

    def block_at(self, peek: Peek, address: Address, use: str = WORKLOAD) -> Cidr:
        """Return the block that has the address, with any affinity. Claim the block if it does not exist.

        Raise CallerError if no usable pool for this use has the address, or if the host may not use the block. Raise
        ClaimConflict if another host claims the block first, UndecodableEntry if it cannot be decoded.
        """
        cidr = self._view.pools().block_of(address, use)
        block = self._found(peek, cidr)
        if block is None:
            others = self._overlapping(cidr)
            if not others:
                self._view.own(claim(self._backend, cidr, self._host))
                return cidr
            cidr = _holding(others, address)
            block = peek(cidr)
        if not self._is_own(block):
            self._demand_lendable(block, address)
        return cidr

    def block_of_live(self, peek: Peek, address: Address) -> Cidr:
        """Return the block that has the address of a live attachment, with any affinity. Claim the block if it does not exist.

        Ignore settings and selectors. Raise PeerError if no pool has the address, CallerError if a block of another size is in
        the way. Raise ClaimConflict if another host claims the block first, UndecodableEntry if it cannot be decoded.
        """
        pool = self._view.pools().pool_of(address)
        if pool is None:
            raise errors.live_outside_pools(address)
        cidr = pool.cidr.block_of(address, pool.block_size)
        if self._found(peek, cidr) is not None:
            return cidr
        others = self._overlapping(cidr)
        if others:
            return _holding(others, address)
        self._view.own(claim(self._backend, cidr, self._host))
        return cidr

    def block_holding(self, peek: Peek, address: Address) -> Cidr | None:
        """Return the block that has the address, inside or outside of a pool; None if it does not exist.

        Raise UndecodableEntry if the block cannot be decoded.
        """
        pool = self._view.pools().pool_of(address)
        if pool is not None:
            cidr = pool.cidr.block_of(address, pool.block_size)
            if self._found(peek, cidr) is not None:
                return cidr
        return next(iter(self._space(address.version).overlapping(address.host())), None)

    def check(self, peek: Peek, version: int, pools: Sequence[Pool]) -> None:
        """Raise PeerError if `block_with_room` would. Write nothing."""
        if any(self._may_have_room(peek, pool) for pool in pools):
            return
        refusal = self._why_no_claim(version, pools, 0)
        space = self._space(version)
        if refusal is None and any(space.next_free(pool) or space.idle(pool) for pool in pools):
            return
        if not (self._may_borrow() and any(self._to_borrow(peek, version, pools))):
            raise refusal or self._exhausted(peek, version, pools)

    def tidy(self, peek: Peek, version: int) -> None:
        """Release the affinities to empty ineligible blocks, so that other nodes can claim these blocks."""
        for cidr in self._view.strays(version):
            with suppress(KeyedError, ClaimConflict, BlockInUse, UndecodableEntry):
                block = self._found(peek, cidr)
                if block is None or blocks.is_empty(block):
                    give_up(self._backend, self._host.claim_on(cidr), self._rest(), only_empty=True)
                    self._view.disown(cidr)

    def _own(self, pool: Pool) -> Iterator[Cidr]:
        return (cidr for cidr in self._view.own_blocks(pool.cidr.version) if cidr in pool.cidr)

    def _available(self, block: Block) -> int:
        return block.ordinals.available(self.reserved.mask(block.cidr))

    def _has_room(self, peek: Peek, cidr: Cidr) -> bool:
        try:
            block = None if self._view.is_doubtful(cidr) else self._found(peek, cidr)
            if block is None or not self._is_own(block):
                block = self._repaired(peek, cidr)
        except UndecodableEntry:
            return False
        return block is not None and self._available(block) > 0

    def _repaired(self, peek: Peek, cidr: Cidr) -> Block | None:
        """Complete the claim of a block and return the block.

        Return None if the block overlaps another one or has another affinity.
        """
        try:
            if self._overlapping(cidr):
                raise ClaimConflict
            self._view.own(own_block(self._backend, cidr, self._host))
        except ClaimConflict:
            self._view.disown(cidr)
            return None
        return peek(cidr)

    def _why_no_claim(self, version: int, pools: Sequence[Pool], max_blocks: int) -> PeerError | None:
        """Return the reason if no further block may be claimed, otherwise None.

        Raise PeerError if the host may not borrow instead either, because `autoAllocateBlocks` is false.
        """
        settings = self.settings
        if not settings.auto_allocate_blocks:
            raise errors.claims_off(version, self._host)
        limit = effective_limit(settings, max_blocks, shared=self._backend.requires_node)
        owned = sum(1 for pool in pools for _ in self._own(pool))
        return errors.block_limit(version, self._host, owned, limit) if limit and owned >= limit else None

    def _claimed(self, peek: Peek, version: int, pools: Sequence[Pool]) -> Cidr | None:
        """Claim a free range, or else reclaim an idle block. Return None if both fail."""
        space = self._space(version)
        for pool in pools:
            while (cidr := space.next_free(pool)) is not None:
                if self._claims(peek, cidr):
                    return cidr
        for pool in pools:
            for block in space.idle(pool):
                if self._takes_over(block) and self._claims(peek, block.cidr):
                    return block.cidr
        return None

    def _claims(self, peek: Peek, cidr: Cidr) -> bool:
        """Claim the block. Return whether this host has it and an address is available.

        Another process of this node may have created the block and assigned all its addresses.
        """
        try:
            self._view.own(claim(self._backend, cidr, self._host))
            return self._available(peek(cidr)) > 0
        except (ClaimConflict, UndecodableEntry):
            return False

    def _takes_over(self, block: Block) -> bool:
        owner = Host.of(block.affinity)
        try:
            if owner is None:
                drop_abandoned(self._backend, block.cidr, self._rest())
            else:
                give_up(self._backend, owner.claim_on(block.cidr), self._rest(), only_empty=True, sequence=block.sequence)
        except (KeyedError, ClaimConflict, BlockInUse, UndecodableEntry):
            return False
        return True

    def _may_borrow(self) -> bool:
        return not self.settings.strict_affinity

    def _to_borrow(self, peek: Peek, version: int, pools: Sequence[Pool]) -> Iterator[Cidr]:
        for pool in pools:
            for cidr in self._space(version).lendable(pool):
                with suppress(UndecodableEntry):
                    block = self._found(peek, cidr)
                    if block is not None and self._available(block) > 0:
                        yield cidr

    def _demand_lendable(self, block: Block, address: Address) -> None:
        if blocks.is_of_windows(block):
            raise errors.of_windows(address, block.affinity)
        if self.settings.strict_affinity:
            raise errors.not_ours(address, self._host, block.affinity)

    def _may_have_room(self, peek: Peek, pool: Pool) -> bool:
        """Return whether a block of the host in this pool may have room. Repair nothing; a missing block can be created."""
        for cidr in self._own(pool):
            with suppress(UndecodableEntry):
                block = self._found(peek, cidr)
                if block is None or (self._is_own(block) and self._available(block) > 0):
                    return True
        return False

    def _found(self, peek: Peek, cidr: Cidr) -> Block | None:
        """Return the block, or None if it does not exist. Raise UndecodableEntry if it cannot be decoded."""
        try:
            return peek(cidr)
        except NotFound:
            return None

    def _is_own(self, block: Block) -> bool:
        return block.affinity == self._host.affinity

    def _overlapping(self, cidr: Cidr) -> list[Cidr]:
        """Return the other blocks that share addresses with this one. They have another size."""
        return [other for other in self._space(cidr.version).overlapping(cidr) if other != cidr]

    def _space(self, version: int) -> BlockIndex:
        """Return the index of a family's blocks. List them on first use: most requests find room in the host's own blocks."""
        if version not in self._spaces:
            own, reserved = self._view.own_blocks(version), self.reserved
            self._spaces[version] = BlockIndex(self._backend, version, self._host, own, reserved, self._rest())
        return self._spaces[version]

    def _exhausted(self, peek: Peek, version: int, pools: Sequence[Pool]) -> PeerError:
        usage = [self._usage(peek, pool) for pool in pools]
        usage += [f"{fault} (it cannot be used)" for fault in self._view.pools().unreadable.values()]
        return errors.exhausted(version, self._host, usage, strict=not self._may_borrow())

    def _usage(self, peek: Peek, pool: Pool) -> str:
        own = list(self._readable(peek, pool))
        total = pool.cidr.block_count(pool.block_size)
        used = sum(block.ordinals.used for block in own)
        reserved = self.reserved.count(pool.cidr)
        aside = f", {reserved} addresses reserved" if reserved else ""
        return f"{pool.name} {pool.cidr} ({len(own)} of {total} blocks are the node's, {used} addresses used in them{aside})"

    def _readable(self, peek: Peek, pool: Pool) -> Iterator[Block]:
        for cidr in self._own(pool):
            with suppress(UndecodableEntry):
                block = self._found(peek, cidr)
                if block is not None and self._is_own(block):
                    yield block


def _holding(present: Sequence[Cidr], address: Address) -> Cidr:
    """Return the block that has the address. Raise CallerError if none of them has it."""
    found = next((cidr for cidr in present if address in cidr), None)
    if found is None:
        raise errors.straddled(address, present[0])
    return found
