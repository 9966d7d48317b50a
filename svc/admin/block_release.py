"""Release of address blocks, also those of nodes that no longer exist: of a host, of a pool, of a range."""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import datetime, timezone

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Conflict, Delete, Forbidden, NotFound
from svc.datastore.expired_pages import repeated
from svc.ipam import claims, errors
from svc.ipam.blocks import Cooldown, count_windows_reserved, free_expired
from svc.ipam.cache import read_blocks
from svc.ipam.claims import ClaimConflict
from svc.ipam.pools import read_pools
from svc.ipam.settings import cooldown_of, read_settings
from svc.model import keys
from svc.model.errors import PeerError, SvcError
from svc.model.ipam import Block
from svc.model.keys import HOST_KINDS, NODE, AffinityKey, AffinityQuery, BlockKey, Host


def release_host(backend: Backend, host: str, *, only_empty: bool = False, kind: str = NODE) -> int:
    """Release the blocks of a host, in both families; return how many there were.

    Blocks with addresses in use stay without an affinity. With `only_empty` they keep it, and the error names them. Raise
    PeerError naming the blocks that could not be released, after all were tried."""
    return _release(backend, lambda key: (key.kind, key.host) == (kind, host), only_empty)


def release_pool(backend: Backend, pool: Cidr, *, only_empty: bool = False) -> int:
    """Release the blocks of a pool, of all hosts. As `release_host` otherwise."""
    return _release(backend, lambda key: key.cidr in pool, only_empty)


def release_range(backend: Backend, cidr: Cidr, *, host: str = "", only_empty: bool = False) -> int:
    """Release the blocks of a range, of one host or of all. As `release_host` otherwise.

    Raise CallerError if the range is not in a pool, or is smaller than a block."""
    pool = read_pools(backend).pool_of(cidr.first)
    if pool is None or cidr not in pool.cidr:
        reason = "no pool has all of it"
    elif cidr.length > pool.block_size:
        reason = f"it is smaller than a block of pool {pool.name!r}, which has /{pool.block_size}"
    else:
        return _release(backend, lambda key: key.cidr in cidr and host in ("", key.host), only_empty)
    raise errors.PoolRefused(f"the blocks of {cidr} cannot be released", details=f"{reason}: see `svcctl pool get`")


def remove_host(backend: Backend, host: str, known: Collection[AffinityKey] | None = None) -> int:
    """Release the blocks of a node that no longer exists, as `release_host` does, and delete its entries.

    A caller that has deleted the claim passes the affinities that it knows. Then no list is read, and a new claim stays.
    """
    if known is None:
        count = release_host(backend, host)
        remove_host_entries(backend, host)
    else:
        count = release_affinities(backend, known)
        _delete_entry(backend, keys.LegacyHostKey(host))
    return count


def delete_claim(backend: Backend, host: str, revision: str) -> None:
    """Delete the claim on the name of a host, with its fence. Raise Conflict if it is not at this revision, StoreError."""
    key = keys.NodeClaimKey(host)
    found = {entry.key: entry.revision for entry in backend.list(keys.NodeClaimQuery(host))}
    if found.get(key, "") != revision:
        raise Conflict(key)
    if found:
        backend.write([Delete(each, at) for each, at in found.items()])


def release_affinities(backend: Backend, wanted: Collection[AffinityKey], *, only_empty: bool = False) -> int:
    """Release the blocks of these affinities. As `release_host` otherwise."""
    rest = cooldown_of(read_settings(backend))
    failures = []
    for key in wanted:
        try:
            claims.release_affinity(backend, key, rest, only_empty=only_empty)
        except ClaimConflict:
            continue  # another host has the block, and the stale affinity is deleted
        except claims.BlockInUse:
            failures.append(f"{key.cidr} of {key.host!r}: addresses of it are in use")
        except SvcError as failure:
            failures.append(f"{key.cidr} of {key.host!r}: {failure}")
    if failures:
        raise PeerError(
            f"{len(failures)} of {len(wanted)} blocks could not be released", details="; ".join(errors.shortened(failures))
        )
    return len(wanted)


def remove_host_entries(backend: Backend, host: str) -> None:
    """Delete the claim on the name of a host without blocks, and what older programs wrote for it. Raise StoreError."""
    for key in (keys.LegacyHostKey(host), keys.NodeClaimKey(host), keys.NodeFenceKey(host)):
        _delete_entry(backend, key)


def _delete_entry(backend: Backend, key: keys.Key) -> None:
    with suppress(NotFound, Forbidden):
        backend.write([Delete(key)])


def affinities(backend: Backend) -> Iterator[AffinityKey]:
    """Yield the affinities of nodes and of virtual hosts."""
    for kind in HOST_KINDS:
        for entry in backend.list(AffinityQuery(kind=kind)):
            assert isinstance(entry.key, AffinityKey)
            yield entry.key


def end_affinity(backend: Backend, key: AffinityKey) -> None:
    """Release a block at once, without a cooldown: delete it if it is unused, else leave it without an affinity.

    Another host's affinity stays. Raise StoreError; PeerError if all attempts conflict."""
    with suppress(ClaimConflict):
        claims.release_affinity(backend, key, _no_cooldown(), only_empty=False)


def delete_unclaimed(backend: Backend, cidr: Cidr) -> None:
    """Delete a block without an affinity, unless it is in use. Raise StoreError."""

    def kept(block: Block | None) -> Block | None:
        return block if block is None or block.affinity is not None or count_used(block.copy()) else None

    backend.update(BlockKey(cidr), kept)


def count_used(block: Block) -> int:
    """Return how many addresses are held, without those reserved for Windows. Those in cooldown are free in `block` then."""
    free_expired(block, _no_cooldown())
    return block.ordinals.used - count_windows_reserved(block)


def addresses_of_node(block: Block, node: str) -> list[str]:
    """Return the addresses of a block that workloads of this node hold, whichever host has the block."""
    attributes = enumerate(block.attributes or ())
    held = [tag for tag, attribute in attributes if (attribute.secondary or {}).get("node") == node]
    return [str(block.cidr.address(ordinal)) for tag in held for ordinal in block.ordinals.tagged(tag)]


def _no_cooldown() -> Cooldown:
    """A pool that is deleted needs no cooldown."""
    return Cooldown(0, datetime.now(timezone.utc))


def _release(backend: Backend, is_wanted: Callable[[AffinityKey], bool], only_empty: bool) -> int:
    owners = repeated(lambda: [(block.cidr, Host.of(block.affinity)) for block in read_blocks(backend)])
    # affinities that blocks name may not exist
    named = (owner.affinity_key(cidr) for cidr, owner in owners if owner and owner.kind in HOST_KINDS)
    wanted = [key for key in dict.fromkeys([*affinities(backend), *named]) if is_wanted(key)]
    return release_affinities(backend, wanted, only_empty=only_empty)
