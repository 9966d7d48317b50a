"""Correct handle counts after a partial write, and after a batch that could not write a handle's final count at once.

The order of writes is: handles that grow, blocks, handles that shrink. A handle may therefore count too many addresses, but
never too few. The excess is the written change of the handle, minus the change that the written blocks make to it.

1. While the handle is at the revision that this process knows, no other process has changed it. The excess is subtracted.
2. Otherwise another process may have recounted the handle already, and the excess must not be subtracted twice. The handle is
   recounted. A block that does not show the counted addresses is rewritten first. A concurrent assignment in this block has
   counted already, so its write of the block conflicts.
3. A handle stays uncorrected if the process is killed or the datastore fails, or if it is created by a late write. A `Release`
   of the handle then recounts it in the same way, or an `Assign` that finds it instead of creating it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Conflict, Delete, Entry, KeyedError, NotFound, PartialWrite, Update, Write
from svc.ipam import blocks
from svc.ipam.plan import Plan, handle_write
from svc.ipam.releasing import bare
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockKey, HandleKey, Key
from svc.values import dataclass, field


@dataclass(frozen=True, slots=True)
class Correction:
    """The last known entry of a handle, and the change of its count by block: minus the excess."""

    entry: Entry[Handle] | None
    changes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """The entries that were written, by key, and the key of a write of unknown outcome, if any."""

    done: Mapping[Key, Entry | None]
    unknown: Key | None = None

    @staticmethod
    def of(writes: Sequence[Write], partial: PartialWrite) -> "WriteProgress":
        """Return the progress of a partial write. A write that failed with a KeyedError was not applied."""
        count = len(partial.done)
        unknown = None if isinstance(partial.cause, KeyedError) or count == len(writes) else writes[count].key
        return WriteProgress({write.key: entry for write, entry in zip(writes, partial.done, strict=False)}, unknown)

    @staticmethod
    def complete(writes: Sequence[Write], entries: Sequence[Entry | None]) -> "WriteProgress":
        return WriteProgress({write.key: entry for write, entry in zip(writes, entries, strict=True)})


def corrections(plan: Plan, progress: WriteProgress) -> dict[str, Correction]:
    """Return the corrections of handles that count too many, without counts that depend on a write of unknown outcome."""
    found = {}
    for name, written, meant in plan.handle_changes():
        key = HandleKey(name)
        applied = written if key in progress.done else {}
        changes = {cidr: _due(plan, progress, cidr, meant[cidr]) - applied.get(cidr, 0) for cidr in meant}
        changes = {cidr: change for cidr, change in changes.items() if change and BlockKey(Cidr(cidr)) != progress.unknown}
        if changes and key != progress.unknown:
            found[name] = Correction(progress.done[key] if key in progress.done else plan.known_handle(name), changes)
    return found


def apply_corrections(backend: Backend, due: Mapping[str, Correction]) -> None:
    """Correct the handles. Raise StoreError if the datastore fails, PeerError if every attempt conflicts."""
    for name, correction in due.items():
        if not _subtract(backend, correction):
            recount_handle(backend, name, correction.changes)


def recount_handle(backend: Backend, name: str, cidrs: Collection[str] | None = None) -> None:
    """Set a handle's counts for these blocks, or for all that it lists, to its allocations in them.

    Raise PeerError if every attempt conflicts.
    """

    def recounted(present: Handle | None) -> Handle | None:
        before = after = present or Handle({})
        for cidr in before.blocks if cidrs is None else cidrs:
            counted = before.blocks.get(cidr, 0)
            after = after.changed(cidr, _held(backend, Cidr(cidr), name, counted) - counted)
        if after == before:
            return present
        return after if after.blocks else None

    backend.update(HandleKey(name), recounted)


def correct_handle(backend: Backend, name: str, revision: str, cidrs: Iterable[str]) -> Handle | None:
    """Set a handle's counts to its allocations, if it is still at this revision. Delete it if it has none.

    Count in the blocks that it lists, and in `cidrs`. Return the handle as it is then, without blocks if it was deleted; None
    if nothing is wrong, or another process has changed the handle. Raise UndecodableEntry, and change nothing, if a block
    cannot be read. Raise Conflict or NotFound after a concurrent write.
    """
    entry = backend.find(HandleKey(name))
    if entry is None or entry.revision != revision:
        return None
    before = entry.value.blocks
    found = {cidr: backend.find(BlockKey(Cidr(cidr))) for cidr in dict.fromkeys([*before, *cidrs])}
    held = {cidr: 0 if block is None else _count(block.value, name) for cidr, block in found.items()}
    counts = {cidr: count for cidr, count in held.items() if count}
    if counts and counts == before:
        return None
    for cidr, block in found.items():
        if block is not None and held[cidr] != before.get(cidr, 0):
            _rewrite(backend, block)
    after = entry.value.counting(counts)
    backend.write([Update(entry.key, after, revision) if counts else Delete(entry.key, revision)])
    return after


def _due(plan: Plan, progress: WriteProgress, cidr: str, difference: int) -> int:
    """Return the intended difference if the block was written, or is missing and needs no write, otherwise 0."""
    block = BlockKey(Cidr(cidr))
    return difference if block in progress.done or not plan.changes_block(block.cidr) else 0


def _subtract(backend: Backend, correction: Correction) -> bool:
    """Subtract the excess from the handle. Return False if the handle was changed or does not exist."""
    if correction.entry is None:
        return False
    after = correction.entry.value
    for cidr, change in correction.changes.items():
        after = after.changed(cidr, change)
    try:
        backend.write([handle_write(correction.entry, after)])
    except (Conflict, NotFound):
        return False
    return True


def _held(backend: Backend, cidr: Cidr, name: str, counted: int) -> int:
    """Count the handle's addresses in a block. Rewrite it if they are not `counted`: concurrent assignments then conflict."""
    entry = backend.find(BlockKey(cidr))
    if entry is None:
        return 0
    block = entry.value
    held = len(blocks.held_by(block, name))
    if held != counted:
        _rewrite(backend, entry)
    return held


def _rewrite(backend: Backend, entry: Entry[Block]) -> None:
    """Write a block without a change but its sequence number. A write that expects the old revision then conflicts."""
    entry.value.sequence += 1
    backend.write([Update(entry.key, entry.value, entry.revision)])


def _count(block: Block, name: str) -> int:
    """Count the addresses of a handle in a block, also those whose stored handle has further text."""
    attributes = enumerate(block.attributes or ())
    tags = (tag for tag, each in attributes if bare(each.handle_id) == bare(name) and not each.released_at)
    return sum(len(block.ordinals.tagged(tag)) for tag in tags)
