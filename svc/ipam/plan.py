"""One group of requests worked out in memory, to be written in one go.

Requests are planned one after another on copies of the blocks. Each has its own draft, which joins the plan only when
all of the request succeeded: a refused request leaves no trace, and those planned before and after it are none the
wiser.
"""

from collections.abc import Iterable, Iterator, Mapping

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, Update, Write
from svc.ipam import blocks
from svc.ipam.blocks import Cooldown
from svc.ipam.cache import IpamCache
from svc.ipam.host import Host
from svc.ipam.requests import Allocation, Answer
from svc.ipam.selection import BlockFinder
from svc.ipam.settings import cooldown_of
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockKey, HandleKey, HandleQuery
from svc.values import dataclass

PREFETCH = 16  # from so many handles on, all are listed: that is less than a read for each


@dataclass(frozen=True, slots=True)
class Planned:
    """What a request comes to once these blocks are written; `taken` are the allocations that are new in them."""

    outcome: Answer | BaseException
    blocks: frozenset[Cidr] = frozenset()
    taken: tuple[Allocation, ...] = ()


class Plan:
    """What stands in the datastore, what the requests of one group make of it, and the writes that this comes to."""

    def __init__(self, backend: Backend, view: IpamCache, host: Host, known_handles: dict[str, Entry[Handle]]) -> None:
        view.look()
        self.host = host
        self.view = view
        self.room = BlockFinder(backend, view, host, self.rest)
        self._backend = backend
        self._known_handles = known_handles
        self._base: dict[Cidr, Entry[Block]] = {}
        self._collected: dict[Cidr, Block] = {}
        self._blocks: dict[Cidr, Block] = {}
        self._handles: dict[str, Handle] = {}
        self._takers: set[str] = set()  # handles that are given an address, whatever else they lose
        self._rest: Cooldown | None = None

    def rest(self) -> Cooldown:
        """How long freed addresses rest, at the moment of this plan."""
        if self._rest is None:
            self._rest = cooldown_of(self.room.settings)
        return self._rest

    def block(self, cidr: Cidr) -> Block:
        """To read only; NotFound, Damaged. What has rested long enough is free in it."""
        return self._blocks.get(cidr) or self._collected.get(cidr) or self._read(cidr)

    def current_block(self, cidr: Cidr) -> Block:
        """As `block`, for an answer that no write will confirm. Conflict when what is remembered is out of date."""
        block = self.block(cidr)
        if self._backend.get(BlockKey(cidr)).revision != self._base[cidr].revision:
            raise Conflict(BlockKey(cidr))
        return block

    def handle(self, name: str) -> Handle:
        """As far as it is known."""
        return self._handles.get(name) or self._before(name)

    def known_handle(self, name: str) -> Entry[Handle] | None:
        """As it was read, before anything was written; None when it is not known to exist."""
        return self._known_handles.get(name)

    def stored_handle(self, name: str) -> Handle:
        """With all that the datastore has of it. Conflict when this plan has changed it without having read it."""
        if name not in self._known_handles:
            entry = self._backend.find(HandleKey(name))
            if entry is None:
                return self.handle(name)
            self._known_handles[name] = entry
            if name in self._handles:
                raise Conflict(HandleKey(name))
        return self.handle(name)

    def prefetch_handles(self, names: Iterable[str]) -> None:
        """Reads handles that will be needed, where they are many, at once."""
        wanted = {name for name in names if name not in self._known_handles and name not in self._handles}
        if len(wanted) < PREFETCH:
            return
        for entry in self._backend.list(HandleQuery()):
            if isinstance(entry.key, HandleKey) and entry.key.handle in wanted:
                self._known_handles[entry.key.handle] = entry

    def join(self, draft: "Draft") -> None:
        """Makes the changes of one request the plan's."""
        self._blocks.update(draft.blocks)
        self._handles.update(draft.handles)
        self._takers |= draft.takers

    def writes(self) -> list[Write]:
        """Handles that grow, blocks, handles that shrink: whoever reads in between finds a handle too many, never an
        address without one. Where writes are not atomic, a handle that does both only grows (see `settle`). It comes first
        even where its count stays as it is: if somebody has changed it, that is found out before its new address is written."""
        growing: list[str] = []
        shrinking: list[str] = []
        for name in self._handles:
            (shrinking if self._only_shrinks(name) else growing).append(name)
        return [*self._handle_writes(growing), *map(self._block_write, self._blocks), *self._handle_writes(shrinking)]

    def emptied(self) -> list[Block]:
        """Blocks with an owner in which nobody holds an address any more, as written."""
        return [block for block in self._blocks.values() if block.affinity and blocks.is_empty(block)]

    def handle_changes(self) -> Iterator[tuple[str, Mapping[str, int], Mapping[str, int]]]:
        """For every handle, by block: the difference that is written, and the one that the plan makes in the end."""
        for name, after in self._handles.items():
            before, written = self._before(name).blocks, self._written(name).blocks
            cidrs = before.keys() | after.blocks.keys()
            yield (
                name,
                {cidr: written.get(cidr, 0) - before.get(cidr, 0) for cidr in cidrs},
                {cidr: after.blocks.get(cidr, 0) - before.get(cidr, 0) for cidr in cidrs},
            )

    def changes_block(self, cidr: Cidr) -> bool:
        """Whether the block is among the writes."""
        return cidr in self._blocks

    def _read(self, cidr: Cidr) -> Block:
        if cidr not in self._base:
            self._base[cidr] = self.view.block(cidr)
        value = self._base[cidr].value
        if self.view.has_resting(value):
            value = value.copy()
            blocks.collect(value, self.rest())
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
        """The handle as it goes into the datastore with this plan's writes."""
        after = self._handles[name]
        if self._backend.atomic or self._only_shrinks(name):
            return after
        counts = dict(self._before(name).blocks)
        for cidr, count in after.blocks.items():
            counts[cidr] = max(count, counts.get(cidr, 0))
        return after.counting(counts)

    def _handle_writes(self, names: Iterable[str]) -> Iterator[Write]:
        for name in names:
            handle, known = self._written(name), self._known_handles.get(name)
            if known is None:
                if handle.blocks:
                    yield Create(HandleKey(name), handle)
            elif handle.blocks:
                yield Update(known.key, handle, known.revision)
            else:
                yield Delete(known.key, known.revision)

    def _block_write(self, cidr: Cidr) -> Write:
        entry, block = self._base[cidr], self._blocks[cidr]
        if block.affinity is None and blocks.is_empty(block):
            return Delete(entry.key, entry.revision)
        block.sequence += 1
        return Update(entry.key, block, entry.revision)


class Draft:
    """The changes of one request: copies of blocks and handles, over what stands in the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.blocks: dict[Cidr, Block] = {}
        self.handles: dict[str, Handle] = {}
        self.takers: set[str] = set()

    def block(self, cidr: Cidr) -> Block:
        """A copy to change; NotFound."""
        if cidr not in self.blocks:
            self.blocks[cidr] = self._plan.block(cidr).copy()
        return self.blocks[cidr]

    def peek(self, cidr: Cidr) -> Block:
        """To read only; NotFound."""
        return self.blocks.get(cidr) or self._plan.block(cidr)

    def handle(self, name: str) -> Handle:
        """As far as it is known."""
        return self.handles[name] if name in self.handles else self._plan.handle(name)

    def count(self, name: str, cidr: Cidr, difference: int) -> None:
        """Notes that the handle holds more addresses of the block, or fewer."""
        self.handles[name] = self.handle(name).changed(str(cidr), difference)
        if difference > 0:
            self.takers.add(name)

    def held(self, name: str, version: int) -> list[Address]:
        """The addresses of one family that the handle holds, as far as both are known."""
        cidrs = [cidr for text in self.handle(name).blocks if (cidr := Cidr(text)).version == version]
        return [cidr.address(ordinal) for cidr in cidrs for ordinal in blocks.held_by(self.peek(cidr), name)]
