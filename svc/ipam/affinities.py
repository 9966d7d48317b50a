"""Giving up many blocks at once: of a host, of a pool, of a range. For administrators and controllers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Delete, Forbidden, NotFound
from svc.ipam import errors
from svc.ipam.claim import ClaimLost
from svc.ipam.giveup import NotEmpty, give_up
from svc.ipam.host import KINDS, NODE, Host
from svc.ipam.settings import read_settings, rest_of
from svc.ipam.view import read_blocks, read_pools
from svc.model.errors import SvcError
from svc.model.keys import AffinityKey, AffinityQuery, HostKey, NodeClaimKey, NodeFenceKey


def release_host(backend: Backend, host: str, *, only_empty: bool = False, kind: str = NODE) -> int:
    """Gives up the blocks of a host, in both families; how many there were. Blocks with addresses in use live on without an
    owner, or stay and are told, with `only_empty`. PeerError naming those that could not be released, after all were tried."""
    return _release(backend, lambda key: (key.kind, key.host) == (kind, host), only_empty)


def release_pool(backend: Backend, pool: Cidr, *, only_empty: bool = False) -> int:
    """As `release_host`, for the blocks of a pool, whoever owns them."""
    return _release(backend, lambda key: key.cidr in pool, only_empty)


def release_range(backend: Backend, cidr: Cidr, *, host: str = "", only_empty: bool = False) -> int:
    """As `release_host`, for the blocks of a range that lies in a pool, of one host or of all. CallerError when it lies in
    none, or is smaller than a block."""
    pool = read_pools(backend).pool_of(cidr.first)
    if pool is None or cidr not in pool.cidr:
        raise errors.range_outside_pools(cidr, "no pool has all of it")
    if cidr.length > pool.block_size:
        raise errors.range_outside_pools(
            cidr, f"it is smaller than a block of pool {pool.name!r}, which has /{pool.block_size}"
        )
    return _release(backend, lambda key: key.cidr in cidr and host in ("", key.host), only_empty)


def remove_host(backend: Backend, host: str) -> int:
    """What is to be done for addresses when a node is gone for good: how many blocks it had. PeerError as `release_host`."""
    count = release_host(backend, host)
    forget_host(backend, host)
    return count


def forget_host(backend: Backend, host: str) -> None:
    """Deletes what old programs have left of a host that has no blocks any more, and the claim on its name. StoreError."""
    for key in (HostKey(host), NodeClaimKey(host), NodeFenceKey(host)):
        with suppress(NotFound, Forbidden):
            backend.write([Delete(key)])


def _release(backend: Backend, wanted: Callable[[AffinityKey], bool], only_empty: bool) -> int:
    rest = rest_of(read_settings(backend))
    keys = {key: None for key in _owned(backend) if wanted(key)}
    failures = []
    for key in keys:
        try:
            give_up(backend, key, rest, only_empty=only_empty)
        except ClaimLost:
            continue  # it was somebody else's: the stale affinity is gone
        except NotEmpty:
            failures.append(f"{key.cidr} of {key.host!r}: addresses of it are in use")
        except SvcError as failure:
            failures.append(f"{key.cidr} of {key.host!r}: {failure}")
    if failures:
        raise errors.not_released(len(keys), failures)
    return len(keys)


def _owned(backend: Backend) -> Iterator[AffinityKey]:
    """Every affinity, and those that are missing behind blocks that name an owner."""
    for kind in KINDS:
        yield from _keys(entry.key for entry in backend.list(AffinityQuery(kind=kind)))
    for block in read_blocks(backend):
        owner = Host.of(block.affinity)
        if owner is not None and owner.kind in KINDS:
            yield owner.claim_on(block.cidr)


def _keys(keys: Iterable[object]) -> Iterator[AffinityKey]:
    return (key for key in keys if isinstance(key, AffinityKey))
