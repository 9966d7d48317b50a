"""What is left to do for handles after a group of writes that was applied only in part, or could not say all at once.

The order of writes (handles that grow, blocks, handles that shrink) sees to it that a handle may count too many addresses
in between, but never too few. What it counts too many is the difference between what was written to it and what the blocks
that were written make of it.

1. Exactly that is taken back while the handle stands at the revision that we know: nobody else has touched it.
2. Otherwise somebody may have counted anew already, and taking back would be once too often: so we count anew as well. A block
   that shows fewer addresses than were counted is rewritten first. Whoever is assigning in it right now has counted before,
   and loses the race for the block.
3. A handle that nobody corrects, because the process was killed or the datastore is gone, is put right by a `Release` of it,
   which counts in the same way.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, KeyedError, NotFound, PartialWrite, Update, Write
from svc.ipam import blocks
from svc.ipam.plan import Plan
from svc.model.ipam import Handle
from svc.model.keys import BlockKey, HandleKey, Key
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Correction:
    """A handle as it was last seen by us, and by how many addresses it counts too many (negative) in which blocks."""

    entry: Entry[Handle] | None
    changes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """What was written, by key; and a key of which nobody can tell, if there is one."""

    done: Mapping[Key, Entry | None]
    unknown: Key | None = None

    @staticmethod
    def of(writes: Sequence[Write], partial: PartialWrite) -> "WriteProgress":
        """A write that lost a race was certainly not applied; of any other failure nothing is known."""
        count = len(partial.done)
        unknown = None if isinstance(partial.cause, KeyedError) or count == len(writes) else writes[count].key
        return WriteProgress({write.key: entry for write, entry in zip(writes, partial.done, strict=False)}, unknown)

    @staticmethod
    def complete(writes: Sequence[Write], entries: Sequence[Entry | None]) -> "WriteProgress":
        return WriteProgress({write.key: entry for write, entry in zip(writes, entries, strict=True)})


def corrections(plan: Plan, progress: WriteProgress) -> dict[str, Correction]:
    """What each handle counts too many. Where it is unknown whether it does, it is left alone."""
    found = {}
    for name, written, meant in plan.handle_changes():
        key = HandleKey(name)
        applied = written if key in progress.done else {}
        changes = {cidr: _due(plan, progress, cidr, meant[cidr]) - applied.get(cidr, 0) for cidr in meant}
        changes = {cidr: change for cidr, change in changes.items() if change and BlockKey(Cidr(cidr)) != progress.unknown}
        if changes and key != progress.unknown:
            found[name] = Correction(progress.done[key] if key in progress.done else plan.known_handle(name), changes)
    return found


def settle(backend: Backend, due: Mapping[str, Correction]) -> None:
    """Corrects the handles. StoreError, PeerError when the races are always lost."""
    for name, correction in due.items():
        if not _is_taken_back(backend, correction):
            recount(backend, name, correction.changes)


def recount(backend: Backend, name: str, cidrs: Collection[str]) -> None:
    """Makes a handle count what it holds in these blocks. StoreError, PeerError when the races are always lost."""
    backend.update(HandleKey(name), lambda present: _recounted(backend, name, present, cidrs))


def _recounted(backend: Backend, name: str, present: Handle | None, cidrs: Collection[str]) -> Handle | None:
    before = after = present or Handle({})
    for cidr in cidrs:
        counted = before.blocks.get(cidr, 0)
        after = after.changed(cidr, _held(backend, Cidr(cidr), name, counted) - counted)
    if after == before:
        return present
    return after if after.blocks else None


def _due(plan: Plan, progress: WriteProgress, cidr: str, difference: int) -> int:
    """The difference that the blocks make, as far as they are written; one that is gone needs no write."""
    block = BlockKey(Cidr(cidr))
    return difference if block in progress.done or not plan.changes_block(block.cidr) else 0


def _is_taken_back(backend: Backend, correction: Correction) -> bool:
    """False when the handle was changed, or is gone."""
    entry, after = correction.entry, _value(correction.entry)
    if entry is None:
        return False
    for cidr, change in correction.changes.items():
        after = after.changed(cidr, change)
    try:
        backend.write([_write(entry.key, entry, after)])
    except (Conflict, NotFound):
        return False
    return True


def _held(backend: Backend, cidr: Cidr, name: str, counted: int) -> int:
    """How many addresses of the block the handle holds, and will hold once those who counted too many have lost."""
    entry = backend.find(BlockKey(cidr))
    if entry is None:
        return 0
    block = entry.value
    held = len(blocks.held_by(block, name))
    if held != counted:
        block.sequence += 1
        backend.write([Update(entry.key, block, entry.revision)])
    return held


def _value(entry: Entry[Handle] | None) -> Handle:
    return Handle({}) if entry is None else entry.value


def _write(key: Key, entry: Entry[Handle] | None, after: Handle) -> Write:
    if entry is None:
        return Create(key, after)
    return Update(key, after, entry.revision) if after.blocks else Delete(key, entry.revision)
