"""Giving a block up: the reverse of a claim, of one's own blocks or of somebody else's that are no longer used.

Order of writes: affinity pendingDeletion, then the block (deleted when empty, otherwise left without an owner), then the
affinity is deleted. Whoever assigns in between changes the block, so that either he or we lose the race; an affinity that
stays behind is in doubt, and its owner puts it right.
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
    """Addresses of the block are held, or rest."""


def give_up(backend: Backend, key: AffinityKey, rest: Cooldown, *, only_empty: bool, sequence: int | None = None) -> None:
    """Ends a host's affinity to a block. Nothing to do is no error. `rest` says which addresses have rested long enough.

    NotEmpty when `only_empty` and it is not; ClaimConflict when the block is another's, or was written since `sequence`: then a
    stale affinity is deleted. PeerError when the race is always lost, Damaged."""
    for _ in attempts():
        with suppress(Conflict, NotFound):
            _try(backend, key, rest, only_empty, sequence)
            return
    raise errors.too_much_contention(ATTEMPTS)


def drop_abandoned(backend: Backend, cidr: Cidr, rest: Cooldown) -> None:
    """Deletes a block that is nobody's and in which nothing is held any more. NotEmpty, ClaimLost; KeyedError, Damaged."""
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
    """The block is in use after all: its owner need not wonder."""
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
    """Unless somebody has changed it: then it is in use again."""
    if affinity is not None:
        with suppress(KeyedError):
            backend.write([Delete(affinity.key, affinity.revision)])
