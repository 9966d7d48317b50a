"""Where a host finds room: in the blocks that are its own, in one that it claims anew, in one that it takes from a node
which does not use it, and, unless affinity is strict, in the blocks of others.

The affinities say which blocks to look at, the blocks say whose they are. An affinity that was not confirmed is in doubt:
before such a block is used its claim is finished, or dropped where the block is somebody else's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Damaged, KeyedError, NotFound
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

Peek = Callable[[Cidr], Block]  # a block as a draft has it, to read only; NotFound, Damaged


class BlockFinder:
    """Blocks for the requests of one plan. A block that cannot be decoded gives no address and stops nobody."""

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
        """The reservations, asked for once by a plan."""
        if self._reserved is None:
            self._reserved = self._view.reserved()
        return self._reserved

    @property
    def settings(self) -> IpamConfig:
        """The IPAM settings, asked for once by a plan. Damaged."""
        if self._settings is None:
            self._settings = self._view.settings()
        return self._settings

    def block_with_room(self, peek: Peek, version: int, pools: Sequence[Pool], max_blocks: int = 0) -> Cidr:
        """One of the node's own blocks, claimed if need be, or one of somebody else's. PeerError when there is none."""
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
        """The block that has the address, whoever owns it; claimed where nobody does. CallerError; ClaimLost, Damaged."""
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
        """The block that has the address of a live attachment, whoever owns it. Claim one if none has it, whatever settings and
        selectors say. Raise PeerError if no pool has the address; ClaimLost, Damaged."""
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
        """The block that has the address, in a pool or left over from one; None when there is none. Damaged."""
        pool = self._view.pools().pool_of(address)
        if pool is not None:
            cidr = pool.cidr.block_of(address, pool.block_size)
            if self._found(peek, cidr) is not None:
                return cidr
        return next(iter(self._space(address.version).overlapping(address.host())), None)

    def check(self, peek: Peek, version: int, pools: Sequence[Pool]) -> None:
        """PeerError when `block_with_room` would raise it. Writes nothing."""
        if any(self._may_have_room(peek, pool) for pool in pools):
            return
        refusal = self._why_no_claim(version, pools, 0)
        space = self._space(version)
        if refusal is None and any(space.next_free(pool) or space.idle(pool) for pool in pools):
            return
        if not (self._may_borrow() and any(self._to_borrow(peek, version, pools))):
            raise refusal or self._exhausted(peek, version, pools)

    def tidy(self, peek: Peek, version: int) -> None:
        """Gives up empty blocks in pools that do not select the node any more, before they would be missed elsewhere."""
        for cidr in self._view.strays(version):
            with suppress(KeyedError, ClaimConflict, BlockInUse, Damaged):
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
        except Damaged:
            return False
        return block is not None and self._available(block) > 0

    def _repaired(self, peek: Peek, cidr: Cidr) -> Block | None:
        """The node's own block after its claim was finished; None when it is lost."""
        try:
            if self._overlapping(cidr):
                raise ClaimConflict
            self._view.own(own_block(self._backend, cidr, self._host))
        except ClaimConflict:
            self._view.disown(cidr)
            return None
        return peek(cidr)

    def _why_no_claim(self, version: int, pools: Sequence[Pool], max_blocks: int) -> PeerError | None:
        """Why no further block may be claimed, if so. PeerError when the node may not even borrow instead."""
        settings = self.settings
        if not settings.auto_allocate_blocks:
            raise errors.claims_off(version, self._host)
        limit = effective_limit(settings, max_blocks, shared=self._backend.needs_node)
        owned = sum(1 for pool in pools for _ in self._own(pool))
        return errors.block_limit(version, self._host, owned, limit) if limit and owned >= limit else None

    def _claimed(self, peek: Peek, version: int, pools: Sequence[Pool]) -> Cidr | None:
        """A block that was nobody's, or else one that its owner does not use."""
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
        """Whether the block is ours now, and has room: another process of this node may have made it, and filled it."""
        try:
            self._view.own(claim(self._backend, cidr, self._host))
            return self._available(peek(cidr)) > 0
        except (ClaimConflict, Damaged):
            return False

    def _takes_over(self, block: Block) -> bool:
        owner = Host.of(block.affinity)
        try:
            if owner is None:
                drop_abandoned(self._backend, block.cidr, self._rest())
            else:
                give_up(self._backend, owner.claim_on(block.cidr), self._rest(), only_empty=True, sequence=block.sequence)
        except (KeyedError, ClaimConflict, BlockInUse, Damaged):
            return False
        return True

    def _may_borrow(self) -> bool:
        return not self.settings.strict_affinity

    def _to_borrow(self, peek: Peek, version: int, pools: Sequence[Pool]) -> Iterator[Cidr]:
        for pool in pools:
            for cidr in self._space(version).lendable(pool):
                with suppress(Damaged):
                    block = self._found(peek, cidr)
                    if block is not None and self._available(block) > 0:
                        yield cidr

    def _demand_lendable(self, block: Block, address: Address) -> None:
        if blocks.is_of_windows(block):
            raise errors.of_windows(address, block.affinity)
        if self.settings.strict_affinity:
            raise errors.not_ours(address, self._host, block.affinity)

    def _may_have_room(self, peek: Peek, pool: Pool) -> bool:
        """As `_has_room` of any block, with nothing repaired: a block that is missing can be made."""
        for cidr in self._own(pool):
            with suppress(Damaged):
                block = self._found(peek, cidr)
                if block is None or (self._is_own(block) and self._available(block) > 0):
                    return True
        return False

    def _found(self, peek: Peek, cidr: Cidr) -> Block | None:
        """Damaged."""
        try:
            return peek(cidr)
        except NotFound:
            return None

    def _is_own(self, block: Block) -> bool:
        return block.affinity == self._host.affinity

    def _overlapping(self, cidr: Cidr) -> list[Cidr]:
        """Other blocks that share addresses with this one: they are of another size."""
        return [other for other in self._space(cidr.version).overlapping(cidr) if other != cidr]

    def _space(self, version: int) -> BlockIndex:
        """Listed when it is needed first: most requests find room in the node's own blocks."""
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
