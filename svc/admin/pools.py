"""IP pools: check, admit and delete."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from svc._core.cidr import Cidr
from svc.admin import block_release
from svc.admin import resources as stored
from svc.admin.ipam_check.reading import block_at
from svc.admin.kind import Check
from svc.admin.resources import POOL
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, NotFound, Update
from svc.datastore.expired_pages import repeated
from svc.ipam.cache import read_blocks
from svc.model.errors import CallerError, Code
from svc.model.field_errors import display
from svc.model.keys import BlockQuery, ResourceKey, ResourceQuery
from svc.model.pool import NEVER, Pool, check_pool, with_defaults
from svc.model.resource import Resource
from svc.values import replace

_TUNNELS = "svc-routes, or another component, must make the tunnels"
_FOR_OTHERS = (  # field, its idle value, what plugin and agent do not do
    ("ipipMode", NEVER, _TUNNELS),
    ("vxlanMode", NEVER, _TUNNELS),
    ("natOutgoing", False, "svc-routes, or another component, must masquerade what leaves the cluster"),
)


def warnings(resources: Sequence[Resource]) -> list[str]:
    """Return a line for each setting that svc stores for svc-routes or another component."""
    return [
        f"IP pool {resource.name!r}: {field} = {display(value)} is stored; {need}"
        for resource in resources
        for field, idle, need in _FOR_OTHERS
        if (value := resource.spec.get(field)) and value != idle
    ]


def delete(backend: Backend, name: str) -> None:
    """Disable the pool, delete its blocks with their affinities, then the pool. Raise CallerError if addresses are in use."""
    cidr = cidr_of(stored.require(backend, POOL, name).value)
    if cidr is not None:
        require_unused(backend, name)
        disable(backend, name)
        while remove_blocks(backend, cidr):  # until none is found: a claim may have been in progress
            remedy = "they were taken during the deletion, and the pool is disabled now: delete it again"
            _refuse_used(backend, name, cidr, remedy)
    backend.write([Delete(ResourceKey(POOL, name))], durable=True)


def require_unused(backend: Backend, name: str) -> None:
    """Raise CallerError if the pool does not exist, or if addresses of it are in use."""
    cidr = cidr_of(stored.require(backend, POOL, name).value)
    if cidr is not None:
        _refuse_used(backend, name, cidr, "delete the workloads that hold them first")


def disable(backend: Backend, name: str) -> None:
    """Prevent new claims on blocks of the pool. Raise StoreError."""

    def disabled(pool: Resource | None) -> Resource | None:
        if pool is None or pool.spec.get("disabled") is True:
            return pool
        return with_defaults(replace(pool, spec=pool.spec | {"disabled": True}))

    backend.update(ResourceKey(POOL, name), disabled, durable=True)


def check(backend: Backend, resources: Sequence[Resource], leaving: Sequence[Resource]) -> None:
    """Raise CallerError if `apply` would, once the pools `leaving` and their blocks are deleted."""
    names, ranges = {pool.name for pool in leaving}, [cidr for pool in leaving if (cidr := cidr_of(pool))]
    present = {name: entry for name, entry in _present(backend).items() if name not in names}
    blocks = [block for block in _blocks(backend) if not any(block.overlaps(cidr) for cidr in ranges)]
    found = _check(resources, present, blocks)
    stored.check(POOL, resources, lambda each: found(each, None))


def count_taken(backend: Backend, cidr: Cidr | None) -> int:
    """Return how many addresses of a range are taken."""
    if cidr is None:
        return 0
    return sum(repeated(lambda: [*_counts(backend, cidr)]))


def _counts(backend: Backend, cidr: Cidr) -> Iterator[int]:
    for block in read_blocks(backend, cidr.version):
        if block.cidr.overlaps(cidr):
            yield block_release.count_used(block)


def format_taken(count: int) -> str:
    """Say how many addresses are taken."""
    return "1 address is taken" if count == 1 else f"{count} addresses are taken"


def cidr_of(pool: Resource) -> Cidr | None:
    """Return the range; None if it is invalid, so that the pool cannot have blocks."""
    try:
        return Cidr(str(pool.spec.get("cidr")))
    except ValueError:
        return None


def admit(backend: Backend, resources: Sequence[Resource], created: Sequence[Create]) -> list[Update]:
    """Create new pools disabled, in a store that is not atomic; return the updates that enable them.

    If they overlap any present pool, delete them and raise Conflict. Of two processes that create overlapping pools, at least
    the later one sees the other's."""
    drafts = [entry for write in created for entry in backend.write([_draft(write)], durable=True) if entry]
    found = checker(backend, resources)
    if any(any(found(resource, None)) for resource in resources):
        for entry in drafts:
            with suppress(NotFound, Conflict):
                backend.write([Delete(entry.key, entry.revision)], durable=True)
        raise Conflict(drafts[0].key)
    return [Update(entry.key, write.value, entry.revision) for entry, write in zip(drafts, created, strict=True)]


def _draft(write: Create) -> Create:
    resource = write.value
    return Create(write.key, Resource(POOL, dict(resource.metadata), resource.spec | {"disabled": True}, resource.status))


def _blocks(backend: Backend, version: int = 0) -> list[Cidr]:
    return repeated(lambda: [block.cidr for block in read_blocks(backend, version)])


def _present(backend: Backend) -> dict[str, Entry]:
    return {entry.value.name: entry for entry in backend.list(ResourceQuery(POOL))}


def checker(backend: Backend, resources: Sequence[Resource]) -> Check:
    """Return the check of pools that are applied together, against the stored pools and blocks."""
    return _check(resources, _present(backend), _blocks(backend))


def _check(resources: Sequence[Resource], present: Mapping[str, Entry], blocks: Sequence[Cidr]) -> Check:
    pools = {name: pool for name, entry in present.items() if (pool := _pool(entry.value))}
    together = pools | {resource.name: pool for resource in resources if (pool := _pool(resource))}
    return lambda each, _: check_pool(each, together.values(), blocks, pools.get(each.name))


def _pool(resource: Resource) -> Pool | None:
    try:
        return Pool.from_resource(resource)
    except ValueError:
        return None


def _refuse_used(backend: Backend, name: str, cidr: Cidr, remedy: str) -> None:
    taken = count_taken(backend, cidr)
    if taken:
        raise CallerError(f"IP pool {name!r} is in use: {format_taken(taken)}", details=remedy, code=Code.POOL)


def has_blocks(backend: Backend, cidr: Cidr) -> bool:
    """Return whether blocks lie in a range, also some that cannot be decoded. Raise StoreError."""
    found = backend.list(BlockQuery(cidr.version))
    unreadable = [block_at(path) for path in found.skipped]
    return any(block is None or block.overlaps(cidr) for block in (*(entry.value.cidr for entry in found), *unreadable))


def remove_blocks(backend: Backend, cidr: Cidr) -> int:
    """Delete the affinities, and the blocks that are not in use; return how many were found."""
    claims = [key for key in block_release.affinities(backend) if key.cidr.overlaps(cidr)]
    for key in claims:
        block_release.end_affinity(backend, key)
    unclaimed = [block for block in _blocks(backend, cidr.version) if block.overlaps(cidr)]
    for block in unclaimed:
        block_release.delete_unclaimed(backend, block)
    return len(claims) + len(unclaimed)
