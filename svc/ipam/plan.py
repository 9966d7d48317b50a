"""One group of requests worked out in memory, to be written in one go.

Requests are planned one after another on copies of the blocks. Each has its own draft, which joins the plan only when
all of the request succeeded: a refused request leaves no trace, and those planned before and after it are none the
wiser.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, NotFound, Update, Write
from svc.ipam import blocks, errors
from svc.ipam.requests import Allocation, Assign, Release
from svc.ipam.room import Room
from svc.ipam.view import View
from svc.model.ipam import Attribute, Block, Handle
from svc.model.keys import BlockKey, HandleKey
from svc.model.pool import Pool


class Draft:
    """Changed copies of blocks and handles, over what stands below (a plan, or the view)."""

    def __init__(self, plan: "Plan") -> None:
        self._plan = plan
        self.blocks: dict[Cidr, Block] = {}
        self.handles: dict[str, Handle] = {}

    def block(self, cidr: Cidr) -> Block:
        """A copy to change; NotFound."""
        if cidr not in self.blocks:
            self.blocks[cidr] = self._plan.block(cidr).copy()
        return self.blocks[cidr]

    def peek(self, cidr: Cidr) -> Block:
        """To read only; NotFound."""
        return self.blocks.get(cidr) or self._plan.block(cidr)

    def handle(self, name: str) -> Handle:
        return self.handles[name] if name in self.handles else self._plan.handle(name)


class Plan:
    """Requests of one group, and the writes that they come to."""

    def __init__(self, backend: Backend, view: View, node: str, known_handles: dict[str, Entry]) -> None:
        self._backend = backend
        self._view = view
        self._node = node
        self._known_handles = known_handles
        self._base: dict[Cidr, Entry] = {}
        self._blocks: dict[Cidr, Block] = {}
        self._handles: dict[str, Handle] = {}
        self._room = Room(backend, view, node)

    def block(self, cidr: Cidr) -> Block:
        """To read only; NotFound, Damaged."""
        return self._blocks.get(cidr) or self._entry(cidr)

    def handle(self, name: str) -> Handle:
        if name in self._handles:
            return self._handles[name]
        known = self._known_handles.get(name)
        return known.value if known is not None and isinstance(known.value, Handle) else Handle({})

    def assign(self, request: Assign) -> tuple[Allocation, ...]:
        """SvcError when the request cannot be met; then nothing of it stays in the plan."""
        draft = Draft(self)
        attribute = Attribute(request.handle, dict(sorted(request.attributes.items())))
        if request.address is not None:
            allocations = [self._assign_at(draft, request.address, attribute)]
        else:
            allocations = [self._assign_next(draft, version, request, attribute) for version in request.versions]
        for allocation in allocations:
            cidr = str(allocation.block)
            draft.handles[request.handle] = draft.handle(request.handle).changed(cidr, 1)
        self._join(draft)
        return tuple(allocations)

    def check_room(self, version: int, pools: tuple[str, ...]) -> None:
        """SvcError when no address of the family could be assigned. Writes nothing."""
        self._room.check(self.block, version, self._pools_for(version, pools))

    def release(self, request: Release) -> None:
        draft = Draft(self)
        for text in list(self._stored_handle(request.handle).blocks):
            self._release_from(draft, Cidr(text), request)
        self._join(draft)

    def writes(self) -> list[Write]:
        """Handles that grow, blocks, handles that shrink: whoever reads in between finds a handle too many, never an
        address without one."""
        shrinks = {name: self._shrinks(name, handle) for name, handle in self._handles.items()}
        growing, shrinking = ([name for name, which in shrinks.items() if which is kind] for kind in (False, True))
        return [*self._handle_writes(growing), *map(self._block_write, self._blocks), *self._handle_writes(shrinking)]

    def _join(self, draft: Draft) -> None:
        self._blocks.update(draft.blocks)
        self._handles.update(draft.handles)

    def _entry(self, cidr: Cidr) -> Block:
        if cidr not in self._base:
            self._base[cidr] = self._view.block(cidr)
        value = self._base[cidr].value
        assert isinstance(value, Block)
        return value

    def _shrinks(self, name: str, handle: Handle) -> bool:
        known = self._known_handles.get(name)
        if known is None:
            return False
        assert isinstance(known.value, Handle)
        before = known.value.blocks
        return all(count <= before.get(cidr, 0) for cidr, count in handle.blocks.items())

    def _handle_writes(self, names: Iterable[str]) -> Iterator[Write]:
        for name in names:
            handle, known = self._handles[name], self._known_handles.get(name)
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

    # assigning

    def _assign_at(self, draft: Draft, address: Address, attribute: Attribute) -> Allocation:
        cidr = self._room.block_at(draft.peek, address)
        block = draft.block(cidr)
        if not blocks.assign_at(block, address, attribute):
            holder = blocks.holder(block, address)
            raise errors.taken(address, f"handle {holder.handle_id!r}" if holder and holder.handle_id else "nobody known")
        return Allocation(address, cidr)

    def _assign_next(self, draft: Draft, version: int, request: Assign, attribute: Attribute) -> Allocation:
        pools = self._pools_for(version, request.pools.get(version, ()))
        cidr = self._room.block_with_room(draft.peek, version, pools)
        address = blocks.assign(draft.block(cidr), attribute)
        assert address is not None
        return Allocation(address, cidr)

    def _pools_for(self, version: int, names: tuple[str, ...]) -> list[Pool]:
        if names:
            return self._view.pools().named(names, version)
        pools = self._view.pools().selected(version, self._view.node_labels())
        if not pools:
            raise errors.no_pool(version, self._node)
        return pools

    # releasing

    def _stored_handle(self, name: str) -> Handle:
        """With all that the datastore has of it. Conflict when this plan has changed it without having read it."""
        if name not in self._known_handles:
            try:
                self._known_handles[name] = self._backend.get(HandleKey(name))
            except NotFound:
                return self.handle(name)
            if name in self._handles:
                raise Conflict(HandleKey(name))
        return self.handle(name)

    def _release_from(self, draft: Draft, cidr: Cidr, request: Release) -> None:
        kept = 0
        with suppress(NotFound):
            block = draft.block(cidr)
            held = blocks.held_by(block, request.handle)
            gone = [ordinal for ordinal in held if cidr.address(ordinal) not in request.keep]
            blocks.release(block, gone)
            kept = len(held) - len(gone)
        handle = draft.handle(request.handle)
        draft.handles[request.handle] = handle.changed(str(cidr), kept - handle.blocks[str(cidr)])


def remember_written(view: View, entries: Sequence[Entry | None]) -> None:
    """Tells the view of the blocks that a plan's writes have left in the datastore."""
    for entry in entries:
        if entry is not None and isinstance(entry.key, BlockKey):
            view.remember(entry)
