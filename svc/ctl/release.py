"""Giving address blocks back: who still uses them, and in which order their records go.

The order makes a release that is broken off harmless: the affinity says that it is being given up before the block goes,
and is the last to go, so whoever finds it can finish.
"""

from collections.abc import Iterator

from svc._core.cidr import Cidr
from svc.ctl.retry import retry
from svc.datastore.api import Backend, Delete, Entry, NotFound, Update
from svc.model.ipam import PENDING_DELETION, Affinity, Block
from svc.model.keys import AffinityKey, AffinityQuery, BlockKey, BlockQuery, Key


def blocks(backend: Backend, version: int = 0) -> Iterator[Block]:
    """Every block, or those of one IP version."""
    for entry in backend.list(BlockQuery(version)):
        assert isinstance(entry.value, Block)
        yield entry.value


def affinities(backend: Backend) -> Iterator[AffinityKey]:
    """Of hosts and of virtual ones."""
    for kind in ("host", "virtual"):
        for entry in backend.list(AffinityQuery(kind=kind)):
            assert isinstance(entry.key, AffinityKey)
            yield entry.key


def count_used(block: Block) -> int:
    """Addresses that somebody holds; those that only cool down are nobody's."""
    attributes = enumerate(block.attributes or ())
    cooling = [tag for tag, attribute in attributes if attribute.released_at and not attribute.handle_id]
    return block.ordinals.used - sum(len(block.ordinals.tagged(tag)) for tag in cooling)


def count_of_node(block: Block, node: str) -> int:
    """Addresses that workloads of this node hold, whoever owns the block."""
    attributes = enumerate(block.attributes or ())
    held = [tag for tag, attribute in attributes if (attribute.secondary or {}).get("node") == node]
    return sum(len(block.ordinals.tagged(tag)) for tag in held)


def give_up(backend: Backend, key: AffinityKey) -> None:
    """Ends a claim: an unused block goes with it, a used one stays, as nobody's. StoreError."""
    retry(f"block {key.cidr}", lambda: _give_up(backend, key))


def drop_unclaimed(backend: Backend, cidr: Cidr) -> None:
    """Removes a block that nobody claims, unless it is in use. StoreError."""
    retry(f"block {cidr}", lambda: _drop_unclaimed(backend, BlockKey(cidr)))


def _give_up(backend: Backend, key: AffinityKey) -> None:
    affinity, block = _found(backend, key), _found(backend, BlockKey(key.cidr))
    if affinity is None:
        return
    if block is None or not _claimed_by(block, key):
        _delete(backend, affinity)
        return
    affinity = _update(backend, affinity, Affinity(PENDING_DELETION))
    _abandon(backend, block)
    _delete(backend, affinity)


def _abandon(backend: Backend, entry: Entry) -> None:
    block = entry.value
    assert isinstance(block, Block)
    if not count_used(block):
        _delete(backend, entry)
        return
    block.affinity = block.claimed_at = None
    block.sequence += 1
    _update(backend, entry, block)


def _drop_unclaimed(backend: Backend, key: BlockKey) -> None:
    entry = _found(backend, key)
    if entry is not None and isinstance(entry.value, Block) and not entry.value.affinity and not count_used(entry.value):
        _delete(backend, entry)


def _claimed_by(entry: Entry, key: AffinityKey) -> bool:
    assert isinstance(entry.value, Block)
    return entry.value.affinity == f"{key.kind}:{key.host}"


def _found(backend: Backend, key: Key) -> Entry | None:
    try:
        return backend.get(key)
    except NotFound:
        return None


def _update(backend: Backend, entry: Entry, value: Affinity | Block) -> Entry:
    (written,) = backend.write([Update(entry.key, value, entry.revision)])
    assert written is not None
    return written


def _delete(backend: Backend, entry: Entry) -> None:
    backend.write([Delete(entry.key, entry.revision)])
