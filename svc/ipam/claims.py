"""Claim a block for a host, and release an affinity. Both write in an order from which an interrupted call is completed.

A claim writes: affinity pending, affinity pending again (marks the attempt), block, affinity confirmed. A reader that finds a
pending affinity completes or deletes it. The `affinity` field of the block is authoritative.

A release writes: affinity pendingDeletion, block, deletion of the affinity. A host releases its own affinities, and those of
idle blocks. An empty block is deleted; any other block becomes unclaimed. A concurrent assignment changes the block, so either
it or the release conflicts. An affinity that remains is not confirmed, and its host completes or deletes it.
"""

from contextlib import suppress
from datetime import datetime, timezone

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, KeyedError, NotFound, UndecodableEntry, Update, Write
from svc.ipam import blocks, errors
from svc.ipam.blocks import Cooldown
from svc.model.ipam import CONFIRMED, PENDING, PENDING_DELETION, Affinity, Block
from svc.model.keys import AffinityKey, BlockKey, Host, V
from svc.retry import attempts


class ClaimConflict(Exception):
    """The failure of a claim or release: the block has another affinity, overlaps another block, or was changed."""


class BlockInUse(Exception):
    """The failure of a release of an empty block: addresses of the block are assigned or in cooldown."""


def claim(backend: Backend, cidr: Cidr, host: Host) -> Entry[Block]:
    """Claim the block for the host and return it. Create the block if it does not exist.

    Raise ClaimConflict if the block has another affinity, Conflict after a concurrent write, UndecodableEntry if a value
    cannot be decoded. Idempotent.
    """
    key = host.affinity_key(cidr)
    try:
        affinity = _write(backend, Create(key, Affinity(PENDING)))
    except Conflict:
        affinity = backend.get(key)
    try:
        affinity = _write(backend, _with_state(affinity, PENDING))
        block = _create_or_adopt(backend, cidr, host)
    except (ClaimConflict, UndecodableEntry):
        _drop(backend, affinity)
        raise
    _confirm(backend, affinity)
    return block


def own_block(backend: Backend, cidr: Cidr, host: Host) -> Entry[Block]:
    """Return the block of this host's affinity, after completing its claim. Raise as `claim`, NotFound without an affinity."""
    affinity = backend.get(host.affinity_key(cidr))
    block = backend.find(BlockKey(cidr))
    if block is None:
        return claim(backend, cidr, host)
    if block.value.affinity != host.affinity:
        _drop(backend, affinity)
        raise ClaimConflict
    if affinity.value.state == CONFIRMED:
        return block
    affinity = _write(backend, _with_state(affinity, PENDING))
    block.value.sequence += 1  # nothing else changes: writers that expect the old revision then conflict
    block = _write(backend, Update(block.key, block.value, block.revision))
    _confirm(backend, affinity)
    return block


def release_affinity(
    backend: Backend, key: AffinityKey, cooldown: Cooldown, *, only_empty: bool, sequence: int | None = None
) -> None:
    """Release a host's affinity to a block. A missing affinity or block is not an error.

    Raise BlockInUse if `only_empty` and the block is not empty. Raise ClaimConflict if it has another affinity, after deleting
    the host's stale one, or another sequence number. Raise PeerError if every attempt conflicts, UndecodableEntry.
    """
    for _ in attempts():
        with suppress(Conflict, NotFound):
            _try_release(backend, key, cooldown, only_empty, sequence)
            return
    raise errors.too_much_contention()


def delete_unclaimed(backend: Backend, cidr: Cidr, cooldown: Cooldown) -> None:
    """Delete an empty unclaimed block. Raise ClaimConflict if it has an affinity, BlockInUse if it is not empty."""
    entry = backend.get(BlockKey(cidr))
    block = _without_expired(entry, cooldown)
    if block.affinity is not None:
        raise ClaimConflict
    if not blocks.is_empty(block):
        raise BlockInUse
    backend.write([Delete(entry.key, entry.revision)])


def free_cooled(backend: Backend, cidr: Cidr, cooldown: Cooldown) -> int:
    """Free the addresses of a block whose cooldown is over, and return their number. Delete a block that is unclaimed then.

    Raise Conflict or NotFound after a concurrent write, UndecodableEntry.
    """
    entry = backend.find(BlockKey(cidr))
    if entry is None:
        return 0
    block = _without_expired(entry, cooldown)
    count = entry.value.ordinals.used - block.ordinals.used
    if count and block.affinity is None:
        backend.write([_without_affinity(entry, block)])
    elif count:
        block.sequence += 1
        backend.write([Update(entry.key, block, entry.revision)])
    return count


def _try_release(backend: Backend, key: AffinityKey, cooldown: Cooldown, only_empty: bool, sequence: int | None) -> None:
    affinity, entry = backend.find(key), backend.find(BlockKey(key.cidr))
    if entry is None:
        _drop(backend, affinity)
        return
    block = _without_expired(entry, cooldown)
    if sequence is not None and block.sequence != sequence:
        raise ClaimConflict
    if Host.of(block.affinity) != Host(key.host, key.kind):
        _drop(backend, affinity)
        raise ClaimConflict
    if only_empty and not blocks.is_empty(block):
        raise BlockInUse
    marked = None if affinity is None else _write(backend, _with_state(affinity, PENDING_DELETION))
    try:
        backend.write([_without_affinity(entry, block)])
    except KeyedError:
        if affinity is not None and marked is not None:  # so that its host does not have to repair it
            with suppress(KeyedError):
                backend.write([Update(marked.key, affinity.value, marked.revision)])
        raise
    _drop(backend, marked)


def _create_or_adopt(backend: Backend, cidr: Cidr, host: Host) -> Entry[Block]:
    try:
        return _write(backend, Create(BlockKey(cidr), blocks.new_block(cidr, host.affinity, datetime.now(timezone.utc))))
    except Conflict:
        present = backend.get(BlockKey(cidr))
    if present.value.affinity != host.affinity:
        raise ClaimConflict
    return present


def _confirm(backend: Backend, affinity: Entry[Affinity]) -> None:
    try:
        _write(backend, _with_state(affinity, CONFIRMED))
    except Conflict:
        current = backend.get(affinity.key)
        if not current.value.is_confirmed:
            raise


def _with_state(affinity: Entry[Affinity], state: str) -> Update[Affinity]:
    return Update(affinity.key, affinity.value.with_state(state), affinity.revision)


def _without_expired(entry: Entry[Block], cooldown: Cooldown) -> Block:
    block = entry.value.copy()
    blocks.free_expired(block, cooldown)
    return block


def _without_affinity(entry: Entry[Block], block: Block) -> Write:
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


def _write(backend: Backend, write: Create[V] | Update[V]) -> Entry[V]:
    (entry,) = backend.write([write])
    assert entry is not None
    return entry
