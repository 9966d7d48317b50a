"""Release the affinity to a block: the reverse of a claim. A host releases its own affinities, and those of idle blocks.

The order of writes is: affinity pendingDeletion, block, deletion of the affinity. An empty block is deleted; any other block
becomes unclaimed. A concurrent assignment changes the block, so either it or the release conflicts. An affinity that remains is
not confirmed, and its host completes or deletes it.
"""

from contextlib import suppress

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Conflict, Delete, Entry, KeyedError, NotFound, Update, Write
from svc.ipam import blocks, errors
from svc.ipam.blocks import Cooldown
from svc.ipam.claim import ClaimConflict, moved
from svc.ipam.host import Host
from svc.model.ipam import PENDING_DELETION, Affinity, Block
from svc.model.keys import AffinityKey, BlockKey
from svc.retry import ATTEMPTS, attempts


class BlockInUse(Exception):
    """The failure of a release of an empty block: addresses of the block are assigned or in cooldown."""


def give_up(backend: Backend, key: AffinityKey, rest: Cooldown, *, only_empty: bool, sequence: int | None = None) -> None:
    """Release a host's affinity to a block. A missing affinity or block is not an error. `rest` is the cooldown.

    Raise BlockInUse if `only_empty` is true and the block is not empty. Raise ClaimConflict if the block has another affinity,
    after deleting the host's stale one, or if its sequence number is not `sequence`. Raise PeerError if every attempt
    conflicts, UndecodableEntry if a value cannot be decoded.
    """
    for _ in attempts():
        with suppress(Conflict, NotFound):
            _try(backend, key, rest, only_empty, sequence)
            return
    raise errors.too_much_contention(ATTEMPTS)


def drop_abandoned(backend: Backend, cidr: Cidr, rest: Cooldown) -> None:
    """Delete an empty unclaimed block.

    Raise ClaimConflict if the block has an affinity, BlockInUse if it is not empty. Raise KeyedError if it does not exist or
    was changed concurrently, UndecodableEntry if it cannot be decoded.
    """
    entry = backend.get(BlockKey(cidr))
    block = _collected(entry, rest)
    if block.affinity is not None:
        raise ClaimConflict
    if not blocks.is_empty(block):
        raise BlockInUse
    backend.write([Delete(entry.key, entry.revision)])


def _try(backend: Backend, key: AffinityKey, rest: Cooldown, only_empty: bool, sequence: int | None) -> None:
    affinity, entry = backend.find(key), backend.find(BlockKey(key.cidr))
    if entry is None:
        _drop(backend, affinity)
        return
    block = _collected(entry, rest)
    if sequence is not None and block.sequence != sequence:
        raise ClaimConflict
    if Host.of(block.affinity) != Host(key.host, key.kind):
        _drop(backend, affinity)
        raise ClaimConflict
    if only_empty and not blocks.is_empty(block):
        raise BlockInUse
    marked = _mark(backend, affinity)
    try:
        backend.write([_without_owner(entry, block)])
    except KeyedError:
        _restore(backend, affinity, marked)
        raise
    _drop(backend, marked)


def _mark(backend: Backend, affinity: Entry[Affinity] | None) -> Entry[Affinity] | None:
    if affinity is None:
        return None
    (marked,) = backend.write([moved(affinity, PENDING_DELETION)])
    return marked


def _restore(backend: Backend, affinity: Entry[Affinity] | None, marked: Entry[Affinity] | None) -> None:
    """Restore the affinity after the write of the block failed, so that its host does not have to repair it."""
    if affinity is not None and marked is not None:
        with suppress(KeyedError):
            backend.write([Update(marked.key, affinity.value, marked.revision)])


def _collected(entry: Entry[Block], rest: Cooldown) -> Block:
    block = entry.value.copy()
    blocks.collect(block, rest)
    return block


def _without_owner(entry: Entry[Block], block: Block) -> Write:
    if blocks.is_empty(block):
        return Delete(entry.key, entry.revision)
    block.affinity, block.claimed_at = None, None
    block.sequence += 1
    return Update(entry.key, block, entry.revision)


def _drop(backend: Backend, affinity: Entry[Affinity] | None) -> None:
    """Delete the affinity, unless it was changed: then it is in use again."""
    if affinity is not None:
        with suppress(KeyedError):
            backend.write([Delete(affinity.key, affinity.revision)])
