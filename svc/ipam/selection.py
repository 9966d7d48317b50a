"""Select a block with a free address for a host.

The finder first tries the blocks with the host's affinity. Then it claims a free block, or else reclaims an idle block. Then
it tries the host's blocks of another size than the pool's, which a former pool has left, so that they become empty. Last, it
borrows from a block of another host, unless affinity is strict.

The affinities list the candidates; the `affinity` field of a block is authoritative. Before a block with an unconfirmed
affinity is used, its claim is completed. If the block has another affinity, the host's affinity is deleted instead.
Automatic assignment skips blocks that cannot be decoded.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from svc._core.cidr import Address, Cidr
from svc.datastore.api import KeyedError, UndecodableEntry
from svc.ipam import blocks, errors
from svc.ipam.block_index import Listed
from svc.ipam.claims import BlockInUse, ClaimConflict, claim, delete_unclaimed, own_block, release_affinity
from svc.ipam.plan import RequestChanges
from svc.ipam.settings import effective_limit
from svc.model.errors import Code, PeerError
from svc.model.ipam import Block
from svc.model.keys import Host
from svc.model.pool import WORKLOAD, Pool


class BlockFinder:
    """Block selection for one request, on the blocks as its changes leave them. For one thread."""

    def __init__(self, changes: RequestChanges) -> None:
        self._changes = changes
        self._plan = changes.plan
        self._backend = changes.plan.backend
        self._cache = changes.plan.cache
        self._host = changes.plan.host

    def find_free(self, version: int, pools: Sequence[Pool], max_blocks: int = 0) -> Cidr:
        """Return a block with a free address: an own one, a claimed one, or one to borrow from. Raise PeerError."""
        own = next(self._own_with_free(pools, of_other_size=False), None)
        if own is not None:
            return own
        refusal = self._why_no_claim(version, pools, max_blocks)
        cidr = self._claimed(version, pools) if refusal is None else None
        if cidr is None:
            cidr = next(self._own_with_free(pools, of_other_size=True), None)
        if cidr is None:
            cidr = next(self._to_borrow(version, pools), None)
        if cidr is None:
            raise refusal or self._exhausted(version, pools)
        return cidr

    def find_for_address(self, address: Address, use: str = WORKLOAD) -> Cidr:
        """Return the block that has the address, with any affinity. Claim the block if it does not exist.

        Raise CallerError if no usable pool for this use has the address, or if the host may not use the block. Raise
        ClaimConflict if another host claims the block first, UndecodableEntry if it cannot be decoded.
        """
        cidr = self._find_or_claim(self._cache.pools().block_of(address, use), address)
        block = self._changes.peek(cidr)
        if not self._is_own(block):
            if blocks.is_of_windows(block):
                raise errors.of_windows(address, block.affinity)
            if self._plan.settings.strict_affinity:
                affinity = block.affinity or "to no node"
                raise errors.AddressUnavailable(
                    f"address {str(address)!r} cannot be assigned on {self._host}",
                    details=f"its block has affinity {affinity}, and strictAffinity is true: ask for one of this node",
                )
        return cidr

    def find_for_live(self, address: Address) -> Cidr:
        """Return the block that has the address of a live attachment, with any affinity. Claim the block if it does not exist.

        Ignore settings and selectors. Raise PeerError if no pool has the address, CallerError if a block of another size is in
        the way. Raise ClaimConflict if another host claims the block first, UndecodableEntry if it cannot be decoded.
        """
        cidr = self._cache.pools().any_block_of(address)
        if cidr is None:
            raise PeerError(
                f"no IP pool has address {str(address)!r} of a live attachment",
                details="make the pool again, with the same CIDR: the address is claimed then",
                code=Code.POOL,
            )
        return self._find_or_claim(cidr, address)

    def find_existing(self, address: Address) -> Cidr | None:
        """Return the existing block that has the address, in a pool or in none; None without one. Raise UndecodableEntry."""
        cidr = self._cache.pools().any_block_of(address)
        if cidr is not None and self._changes.find(cidr) is not None:
            return cidr
        return next(iter(self._plan.index(address.version).overlapping(address.host())), None)

    def require_free(self, version: int, pools: Sequence[Pool]) -> None:
        """Raise PeerError if `find_free` would. Write nothing."""
        own = (block for pool in pools for block in self._own_blocks(pool))
        if any(block is None or self._available(block) for block in own):  # a missing block can be created
            return
        refusal = self._why_no_claim(version, pools, 0)
        index = self._plan.index(version)
        if refusal is None and any(index.next_free_range(pool) or index.idle(pool) for pool in pools):
            return
        if not any(self._to_borrow(version, pools)):
            raise refusal or self._exhausted(version, pools)

    def release_ineligible(self, version: int) -> None:
        """Release the affinities to empty ineligible blocks, so that other nodes can claim these blocks."""
        for cidr in self._cache.ineligible_blocks(version):
            with suppress(KeyedError, ClaimConflict, BlockInUse, UndecodableEntry):
                block = self._changes.find(cidr)
                if block is None or blocks.is_empty(block):
                    release_affinity(self._backend, self._host.affinity_key(cidr), self._plan.cooldown, only_empty=True)
                    self._cache.remove_own(cidr)

    def _own_with_free(self, pools: Sequence[Pool], *, of_other_size: bool) -> Iterator[Cidr]:
        """Yield the host's blocks with a free address: those of the pools' sizes, or those of other sizes."""
        for pool in pools:
            for cidr in self._own(pool):
                if self._cache.is_full(cidr) and not self._changes.has_changed(cidr):
                    continue
                if (cidr.length != pool.block_size) is of_other_size and self._has_free(cidr):
                    yield cidr

    def _own(self, pool: Pool) -> Iterator[Cidr]:
        return (cidr for cidr in self._cache.own_blocks(pool.cidr.version) if cidr in pool.cidr)

    def _own_blocks(self, pool: Pool) -> Iterator[Block | None]:
        """Yield the host's blocks of a pool, None for a missing one. Skip those with another affinity, and repair none."""
        for cidr in self._own(pool):
            with suppress(UndecodableEntry):
                block = self._changes.find(cidr)
                if block is None or self._is_own(block):
                    yield block

    def _is_own(self, block: Block) -> bool:
        return block.affinity == self._host.affinity

    def _available(self, block: Block) -> int:
        return block.ordinals.available(self._plan.reserved.mask(block.cidr))

    def _has_free(self, cidr: Cidr) -> bool:
        try:
            block = None if self._cache.is_unconfirmed(cidr) else self._changes.find(cidr)
            if block is None or not self._is_own(block):
                block = self._repaired(cidr)
        except UndecodableEntry:
            return False
        return block is not None and self._available(block) > 0

    def _repaired(self, cidr: Cidr) -> Block | None:
        """Complete the claim of a block and return it. Return None if it overlaps another block or has another affinity."""
        try:
            if self._overlapping(cidr):
                raise ClaimConflict
            self._cache.add_own(own_block(self._backend, cidr, self._host))
        except ClaimConflict:
            self._cache.remove_own(cidr)
            return None
        return self._changes.peek(cidr)

    def _why_no_claim(self, version: int, pools: Sequence[Pool], max_blocks: int) -> PeerError | None:
        """Return the reason if no further block may be claimed. Raise PeerError if no block may be borrowed instead either."""
        settings = self._plan.settings
        if not settings.auto_allocate_blocks:
            raise errors.NoAddress(
                f"no free IPv{version} address for {self._host}: none in its blocks, and it may not claim another",
                details="autoAllocateBlocks is false: give the node a block, "
                "or `svcctl ipam configure --auto-allocate-blocks true`",
            )
        limit = effective_limit(settings, max_blocks, shared=self._backend.requires_node)
        owned = sum(1 for pool in pools for _ in self._own(pool))
        if not limit or owned < limit:
            return None
        return errors.NoAddress(
            f"no free IPv{version} address for {self._host}: it has {owned} blocks, and may have {limit}",
            details="free addresses of the node, or raise the limit with `svcctl ipam configure --max-blocks-per-host NUMBER`",
        )

    def _claimed(self, version: int, pools: Sequence[Pool]) -> Cidr | None:
        """Claim a free range, or else reclaim an idle block. Return None if both fail."""
        index = self._plan.index(version)
        for pool in pools:
            while (cidr := index.next_free_range(pool)) is not None:
                if self._claims(cidr):
                    return cidr
        for pool in pools:
            for block in index.idle(pool):
                if self._reclaims(block) and self._claims(block.cidr):
                    return block.cidr
        return None

    def _claims(self, cidr: Cidr) -> bool:
        """Claim the block. Return whether this host has it and no other process has assigned all its addresses."""
        try:
            self._cache.add_own(claim(self._backend, cidr, self._host))
            return self._available(self._changes.peek(cidr)) > 0
        except (ClaimConflict, UndecodableEntry):
            return False

    def _reclaims(self, block: Listed) -> bool:
        owner, cooldown = Host.of(block.affinity), self._plan.cooldown
        try:
            if owner is None:
                delete_unclaimed(self._backend, block.cidr, cooldown)
            else:
                key = owner.affinity_key(block.cidr)
                release_affinity(self._backend, key, cooldown, only_empty=True, sequence=block.sequence)
        except (KeyedError, ClaimConflict, BlockInUse, UndecodableEntry):
            return False
        return True

    def _to_borrow(self, version: int, pools: Sequence[Pool]) -> Iterator[Cidr]:
        """Yield the blocks to borrow from; none if affinity is strict."""
        if self._plan.settings.strict_affinity:
            return
        for pool in pools:
            for cidr in self._plan.index(version).borrowable(pool):
                with suppress(UndecodableEntry):
                    block = self._changes.find(cidr)
                    if block is not None and self._available(block) > 0:
                        yield cidr

    def _find_or_claim(self, cidr: Cidr, address: Address) -> Cidr:
        """Return the block `cidr`, claimed if it is missing, or the overlapping block with the address. Raise CallerError."""
        if self._changes.find(cidr) is not None:
            return cidr
        others = self._overlapping(cidr)
        if not others:
            self._cache.add_own(claim(self._backend, cidr, self._host))
            return cidr
        found = next((other for other in others if address in other), None)
        if found is None:
            raise errors.AddressUnavailable(
                f"address {str(address)!r} cannot be assigned",
                details=f"its block would overlap block {others[0]}, which has another size; "
                "free the addresses of that block first",
            )
        return found

    def _overlapping(self, cidr: Cidr) -> list[Cidr]:
        """Return the other blocks that share addresses with this one. They have another size."""
        return [other for other in self._plan.index(cidr.version).overlapping(cidr) if other != cidr]

    def _exhausted(self, version: int, pools: Sequence[Pool]) -> PeerError:
        usage = [self._usage(pool) for pool in pools]
        usage += [f"{error} (it cannot be used)" for error in self._cache.pools().unreadable.values()]
        strict = ". Strict affinity is on: blocks of others were not tried" if self._plan.settings.strict_affinity else ""
        return errors.NoAddress(
            f"no free IPv{version} address for {self._host}",
            details=f"pools tried: {'; '.join(errors.shortened(usage))}{strict}. "
            "Add a pool with `svcctl pool apply`, or release leaked addresses, which `svcctl ipam check` lists",
        )

    def _usage(self, pool: Pool) -> str:
        own = [block for block in self._own_blocks(pool) if block is not None]
        total = pool.cidr.block_count(pool.block_size)
        used = sum(block.ordinals.used for block in own)
        reserved = self._plan.reserved.count(pool.cidr)
        aside = f", {reserved} addresses reserved" if reserved else ""
        return f"{pool.name} {pool.cidr} ({len(own)} of {total} blocks are the node's, {used} addresses used in them{aside})"
