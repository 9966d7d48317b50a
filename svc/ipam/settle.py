"""What is left to do for handles after a group of writes that was applied only in part, or could not say all at once.

The order of writes (handles that grow, blocks, handles that shrink) sees to it that a handle may count too many addresses
in between, but never too few. What it counts too many is the difference between what was written to it and what the blocks
that were written make of it; exactly that is taken back. A handle that nobody takes back from, because the process was
killed or the datastore is gone, is put right by a `Release` of it, which counts for itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, KeyedError, NotFound, PartialWrite, Update, Write
from svc.ipam import errors
from svc.ipam.plan import Plan
from svc.ipam.tries import ATTEMPTS
from svc.model.ipam import Handle
from svc.model.keys import BlockKey, HandleKey, Key

Corrections = dict[str, dict[str, int]]  # handle: block: addresses more or fewer


@dataclass(frozen=True, slots=True)
class Progress:
    """Which keys were written; and one of which nobody can tell, if there is one."""

    done: frozenset[Key]
    unknown: Key | None = None

    @staticmethod
    def of(writes: Sequence[Write], partial: PartialWrite) -> "Progress":
        """A write that lost a race was certainly not applied; of any other failure nothing is known."""
        count = len(partial.done)
        unknown = None if isinstance(partial.cause, KeyedError) or count == len(writes) else writes[count].key
        return Progress(frozenset(write.key for write in writes[:count]), unknown)

    @staticmethod
    def complete(writes: Sequence[Write]) -> "Progress":
        return Progress(frozenset(write.key for write in writes))


def corrections(plan: Plan, progress: Progress) -> Corrections:
    """What each handle counts too many (negative), by block. Where it is unknown whether it does, it is left alone."""
    found: Corrections = defaultdict(dict)
    for name, written, meant in plan.handle_changes():
        key = HandleKey(name)
        if key == progress.unknown:
            continue
        for cidr, difference in meant.items():
            block = BlockKey(Cidr(cidr))
            due = difference if block in progress.done or not plan.changes_block(block.cidr) else 0
            change = due - (written[cidr] if key in progress.done else 0)
            if change and block != progress.unknown:
                found[name][cidr] = change
    return found


def settle(backend: Backend, due: Corrections) -> None:
    """Corrects the handles, each by compare-and-swap. StoreError, PeerError when the races are always lost."""
    for name, changes in due.items():
        _correct(backend, name, changes)


def _correct(backend: Backend, name: str, changes: dict[str, int]) -> None:
    for _ in range(ATTEMPTS):
        with suppress(Conflict, NotFound):
            backend.write(list(_correction(_stored(backend, name), HandleKey(name), changes)))
            return
    raise errors.too_much_contention(ATTEMPTS)


def _stored(backend: Backend, name: str) -> Entry | None:
    try:
        return backend.get(HandleKey(name))
    except NotFound:
        return None


def _correction(entry: Entry | None, key: HandleKey, changes: dict[str, int]) -> Iterator[Write]:
    before = entry.value if entry is not None and isinstance(entry.value, Handle) else Handle({})
    after = before
    for cidr, change in changes.items():
        after = after.changed(cidr, change)
    if after == before:
        return
    if entry is None:
        yield Create(key, after)
    elif after.blocks:
        yield Update(key, after, entry.revision)
    else:
        yield Delete(key, entry.revision)
