"""Claim a block for a host in two phases, so that an interrupted claim is detected and completed or deleted.

The order of writes is: affinity pending, affinity pending again (marks the attempt), block, affinity confirmed. A reader that
finds a pending affinity completes or deletes it. The `affinity` field of the block is authoritative.
"""

from datetime import datetime, timezone

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, NotFound, UndecodableEntry, Update
from svc.ipam import blocks
from svc.ipam.host import Host
from svc.model.ipam import CONFIRMED, PENDING, Affinity, Block
from svc.model.keys import AffinityKey, BlockKey, V


class ClaimConflict(Exception):
    """The failure of a claim or release: the block has another affinity, overlaps another block, or was changed."""


def claim(backend: Backend, cidr: Cidr, host: Host) -> Entry[Block]:
    """Claim the block for the host and return it. Create the block if it does not exist.

    Raise ClaimConflict if the block has another affinity, Conflict after a concurrent write, UndecodableEntry if a
    value cannot be decoded. Idempotent.
    """
    key = host.claim_on(cidr)
    affinity = _pending_affinity(backend, key)
    try:
        affinity = _write(backend, moved(affinity, PENDING))
        block = _create_or_adopt(backend, cidr, host)
    except (ClaimConflict, UndecodableEntry):
        _drop(backend, affinity)
        raise
    _confirm(backend, affinity)
    return block


def own_block(backend: Backend, cidr: Cidr, host: Host) -> Entry[Block]:
    """Return the block of an affinity of this host, after completing an interrupted claim.

    Raise NotFound if the affinity does not exist. Otherwise raise as `claim`.
    """
    key = host.claim_on(cidr)
    affinity = backend.get(key)
    block = backend.find(BlockKey(cidr))
    if block is None:
        return claim(backend, cidr, host)
    if block.value.affinity != host.affinity:
        _drop(backend, affinity)
        raise ClaimConflict
    if affinity.value.state == CONFIRMED:
        return block
    affinity = _write(backend, moved(affinity, PENDING))
    block = _touch(backend, block)
    _confirm(backend, affinity)
    return block


def moved(affinity: Entry[Affinity], state: str) -> Update[Affinity]:
    """Return the write that sets the state of an affinity."""
    return Update(affinity.key, affinity.value.moved(state), affinity.revision)


def _pending_affinity(backend: Backend, key: AffinityKey) -> Entry[Affinity]:
    try:
        return _write(backend, Create(key, Affinity(PENDING)))
    except Conflict:
        return backend.get(key)


def _create_or_adopt(backend: Backend, cidr: Cidr, host: Host) -> Entry[Block]:
    try:
        return _write(backend, Create(BlockKey(cidr), blocks.new_block(cidr, host.affinity, datetime.now(timezone.utc))))
    except Conflict:
        present = backend.get(BlockKey(cidr))
    if present.value.affinity != host.affinity:
        raise ClaimConflict
    return present


def _touch(backend: Backend, entry: Entry[Block]) -> Entry[Block]:
    """Rewrite the block with a new sequence number only. Writers that expect the old revision then conflict."""
    entry.value.sequence += 1
    return _write(backend, Update(entry.key, entry.value, entry.revision))


def _confirm(backend: Backend, affinity: Entry[Affinity]) -> None:
    try:
        _write(backend, moved(affinity, CONFIRMED))
    except Conflict:
        current = backend.get(affinity.key)
        if not current.value.is_confirmed:
            raise


def _drop(backend: Backend, affinity: Entry[Affinity]) -> None:
    try:
        backend.write([Delete(affinity.key, affinity.revision)])
    except (Conflict, NotFound):
        return


def _write(backend: Backend, write: Create[V] | Update[V]) -> Entry[V]:
    (entry,) = backend.write([write])
    assert entry is not None
    return entry
