"""Plan a batch of requests in memory, for one write.

Requests are planned one after another on copies of the blocks. Each request has its own changes, which join the plan only if
the whole request succeeds. A refused request therefore does not change the plan of the other requests.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, NotFound, Update, Write
from svc.ipam import blocks
from svc.ipam.block_index import BlockIndex
from svc.ipam.blocks import Cooldown
from svc.ipam.cache import IpamCache
from svc.ipam.pools import Reserved
from svc.ipam.requests import Allocation, Answer
from svc.ipam.settings import cooldown_of
from svc.model.ipam import Block, Handle, IpamConfig
from svc.model.keys import BlockKey, HandleKey, HandleQuery, Host
from svc.values import dataclass

PREFETCH = 16  # from this number of handles on, one listing costs less than single reads


@dataclass(frozen=True, slots=True)
class Planned:
    """The outcome of a request, valid once `blocks` are written. `taken` are the new allocations in these blocks."""

    outcome: Answer | BaseException
    blocks: frozenset[Cidr] = frozenset()
    taken: tuple[Allocation, ...] = ()


class Plan:
    """The stored state, the changes that a batch makes to it, and the resulting writes."""

    def __init__(self, backend: Backend, cache: IpamCache, host: Host, known_handles: dict[str, Entry[Handle]]) -> None:
        cache.refresh_generations()
        self.backend = backend
        self.cache = cache
        self.host = host
        self._known_handles = known_handles
        self._indexes: dict[int, BlockIndex] = {}
        self._base: dict[Cidr, Entry[Block]] = {}
        self._collected: dict[Cidr, Block] = {}
        self._blocks: dict[Cidr, Block] = {}
        self._handles: dict[str, Handle] = {}
        self._takers: set[str] = set()  # handles that get an address, even if they release others

    @cached_property
    def reserved(self) -> Reserved:
        """The reservations and avoided addresses, read once per plan."""
        return self.cache.reserved()

    @cached_property
    def settings(self) -> IpamConfig:
        """The IPAM settings, read once per plan. Raise UndecodableEntry if they cannot be decoded."""
        return self.cache.settings()

    @cached_property
    def cooldown(self) -> Cooldown:
        """The cooldown of released addresses. Its current time is that of the first use in this plan."""
        return cooldown_of(self.settings)

    def index(self, version: int) -> BlockIndex:
        """Return the index of a family's blocks. List them on first use: most requests need only the host's own blocks."""
        if version not in self._indexes:
            own = self.cache.own_blocks(version)
            self._indexes[version] = BlockIndex(self.backend, version, self.host, own, self.reserved, self.cooldown)
        return self._indexes[version]

    def block(self, cidr: Cidr) -> Block:
        """Return a block, without expired cooldowns, that the caller must not change. Raise NotFound or UndecodableEntry."""
        return self._blocks.get(cidr) or self._collected.get(cidr) or self._read(cidr)

    def current_block(self, cidr: Cidr) -> Block:
        """Return the block as `block` does, for a result that no write confirms. Raise Conflict if it is stale."""
        block = self.block(cidr)
        if self.backend.get(BlockKey(cidr)).revision != self._base[cidr].revision:
            raise Conflict(BlockKey(cidr))
        return block

    def is_current(self) -> bool:
        """Return whether no block of the plan is known to have changed since: the write would conflict then."""
        return not any(map(self.cache.replaces, self._base.values()))

    def handle(self, name: str) -> Handle:
        """Return the handle with the changes of this plan. A handle that was not read counts from zero."""
        return self._handles.get(name) or self._before(name)

    def known_handle(self, name: str) -> Entry[Handle] | None:
        """Return the entry of the handle as it was read, or None if it was not read or does not exist."""
        return self._known_handles.get(name)

    def stored_handle(self, name: str) -> Handle:
        """Return the handle, read if necessary, with the plan's changes. Raise Conflict if the plan changed it unread."""
        if name not in self._known_handles:
            entry = self.backend.find(HandleKey(name))
            if entry is None:
                return self.handle(name)
            self._known_handles[name] = entry
            if name in self._handles:
                raise Conflict(HandleKey(name))
        return self.handle(name)

    def prefetch_handles(self, names: Iterable[str]) -> None:
        """Read handles that the plan will need, in one listing, if at least `PREFETCH` of them are unknown."""
        wanted = {name for name in names if name not in self._known_handles and name not in self._handles}
        if len(wanted) < PREFETCH:
            return
        for entry in self.backend.list(HandleQuery()):
            if isinstance(entry.key, HandleKey) and entry.key.handle in wanted:
                self._known_handles[entry.key.handle] = entry

    def join(self, changes: "RequestChanges") -> None:
        """Apply the changes of one request to the plan."""
        self._blocks.update(changes.blocks)
        self._handles.update(changes.handles)
        self._takers |= changes.takers

    def writes(self) -> list[Write]:
        """Return the writes in order: handles that grow, blocks, handles that shrink.

        A concurrent reader may find a handle that counts too many addresses, but never an address without a handle. In a store
        without atomic writes, a handle that both grows and shrinks only grows; `apply_corrections` corrects it later.

        A handle that gets an address is written before the blocks, even if its count does not change. A conflict on the handle
        is thus detected before the new address is written.
        """
        growing: list[str] = []
        shrinking: list[str] = []
        for name in self._handles:
            (shrinking if self._only_shrinks(name) else growing).append(name)
        return [*self._handle_writes(growing), *map(self._block_write, self._blocks), *self._handle_writes(shrinking)]

    def emptied(self) -> list[Block]:
        """Return the changed blocks, as written, that are empty and have an affinity."""
        return [block for block in self._blocks.values() if block.affinity and blocks.is_empty(block)]

    def handle_changes(self) -> Iterator[tuple[str, Mapping[str, int], Mapping[str, int]]]:
        """Yield for each handle its name and two differences by block: the written one, and the one that the plan intends."""
        for name, after in self._handles.items():
            before, written = self._before(name).blocks, self._written(name).blocks
            cidrs = before.keys() | after.blocks.keys()
            yield (
                name,
                {cidr: written.get(cidr, 0) - before.get(cidr, 0) for cidr in cidrs},
                {cidr: after.blocks.get(cidr, 0) - before.get(cidr, 0) for cidr in cidrs},
            )

    def changes_block(self, cidr: Cidr) -> bool:
        """Return whether the plan writes the block."""
        return cidr in self._blocks

    def _read(self, cidr: Cidr) -> Block:
        if cidr not in self._base:
            self._base[cidr] = self.cache.block(cidr)
        value = self._base[cidr].value
        if self.cache.has_cooldown(value):
            value = value.copy()
            blocks.free_expired(value, self.cooldown)
        self._collected[cidr] = value
        return value

    def _before(self, name: str) -> Handle:
        known = self._known_handles.get(name)
        return Handle({}) if known is None else known.value

    def _only_shrinks(self, name: str) -> bool:
        if name not in self._known_handles or name in self._takers:
            return False
        before, after = self._before(name).blocks, self._handles[name].blocks
        return all(count <= before.get(cidr, 0) for cidr, count in after.items())

    def _written(self, name: str) -> Handle:
        """Return the handle as this plan's writes store it."""
        after = self._handles[name]
        if self.backend.atomic or self._only_shrinks(name):
            return after
        counts = dict(self._before(name).blocks)
        for cidr, count in after.blocks.items():
            counts[cidr] = max(count, counts.get(cidr, 0))
        return after.counting(counts)

    def _handle_writes(self, names: Iterable[str]) -> Iterator[Write]:
        for name in names:
            known, handle = self._known_handles.get(name), self._written(name)
            if known is not None:
                yield handle_write(known, handle)
            elif handle.blocks:
                yield Create(HandleKey(name), handle)

    def _block_write(self, cidr: Cidr) -> Write:
        entry, block = self._base[cidr], self._blocks[cidr]
        if block.affinity is None and blocks.is_empty(block):
            return Delete(entry.key, entry.revision)
        block.sequence += 1
        return Update(entry.key, block, entry.revision)


class RequestChanges:
    """The changes of one request: copies of blocks and handles that override those of the plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.blocks: dict[Cidr, Block] = {}
        self.handles: dict[str, Handle] = {}
        self.takers: set[str] = set()

    def block(self, cidr: Cidr) -> Block:
        """Return a copy of the block that the caller may change. Raise as `Plan.block`."""
        if cidr not in self.blocks:
            self.blocks[cidr] = self.plan.block(cidr).copy()
        return self.blocks[cidr]

    def has_changed(self, cidr: Cidr) -> bool:
        """Return whether the block has changes, of this request or of one before it in the plan."""
        return cidr in self.blocks or self.plan.changes_block(cidr)

    def peek(self, cidr: Cidr) -> Block:
        """Return a block that the caller must not change. Raise as `Plan.block`."""
        return self.blocks.get(cidr) or self.plan.block(cidr)

    def find(self, cidr: Cidr) -> Block | None:
        """Return a block as `peek` does, or None if it does not exist. Raise UndecodableEntry if it cannot be decoded."""
        try:
            return self.peek(cidr)
        except NotFound:
            return None

    def handle(self, name: str) -> Handle:
        """Return the handle with these changes and those of the plan."""
        return self.handles[name] if name in self.handles else self.plan.handle(name)

    def count(self, name: str, cidr: Cidr, difference: int) -> None:
        """Add the difference, which may be negative, to the handle's count for the block."""
        self.handles[name] = self.handle(name).changed(str(cidr), difference)
        if difference > 0:
            self.takers.add(name)


def handle_write(known: Entry[Handle], after: Handle) -> Write:
    """Return the write that stores a handle over its known entry. A handle without counts is deleted."""
    return Update(known.key, after, known.revision) if after.blocks else Delete(known.key, known.revision)
