"""What svcctl does with IP pools: apply and delete. Plain functions on a datastore."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from svc._core.cidr import Cidr
from svc.ctl import release
from svc.ctl.resources import change, find, refuse
from svc.ctl.retry import retry
from svc.datastore.api import Backend, Conflict, Create, Delete, Entry, NotFound, Update
from svc.ipam.view import read_blocks
from svc.model.errors import CallerError, Code
from svc.model.faults import shown
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.pool import NEVER, Pool, check_pool, with_defaults
from svc.model.resource import Resource

KIND = "IPPool"
_TUNNELS = "makes no tunnels, so another component must move packets between nodes"
_FOR_OTHERS = (  # field, the value that asks for nothing, what svc lacks
    ("ipipMode", NEVER, _TUNNELS),
    ("vxlanMode", NEVER, _TUNNELS),
    ("natOutgoing", False, "translates no addresses, so another component must masquerade what leaves the cluster"),
)


def apply(backend: Backend, resources: Sequence[Resource], now: datetime) -> list[str]:
    """Creates or updates pools, durably: all of them where the store is atomic, else in their order. What was done to each.

    CallerError, before anything is written, naming every fault of every pool; StoreError."""
    return retry("the list of IP pools", lambda: _apply(backend, resources, now))


def warnings(resources: Sequence[Resource]) -> list[str]:
    """Return a line for each setting that svc stores for another component, and does nothing about."""
    return [
        f"IP pool {resource.name!r}: {field} = {shown(value)} is stored; svc itself {lack}"
        for resource in resources
        for field, idle, lack in _FOR_OTHERS
        if (value := resource.spec.get(field)) and value != idle
    ]


def delete(backend: Backend, name: str) -> None:
    """Disables the pool, removes its blocks with their affinities, then the pool. CallerError while addresses are in use."""
    cidr = _stored_cidr(backend, name)
    if cidr is not None:
        _refuse_used(backend, name, cidr, "delete the workloads that hold them first")
        retry(f"IP pool {name!r}", lambda: _disable(backend, name))
        while _remove_blocks(backend, cidr):  # until none is found: a claim may have been under way
            _refuse_used(
                backend, name, cidr, "they were taken during the deletion, and the pool is disabled now: delete it again"
            )
    backend.write([Delete(ResourceKey(KIND, name))], durable=True)


def retire(backend: Backend, name: str) -> int:
    """Delete the pool, or only disable it while addresses of it are taken; return how many are. Raise as `delete`."""
    taken = count_taken(backend, _resource(find(backend, KIND, name)))
    if taken:
        retry(f"IP pool {name!r}", lambda: _disable(backend, name))
    else:
        delete(backend, name)
    return taken


def check(backend: Backend, resources: Sequence[Resource], leaving: Sequence[Resource]) -> None:
    """Raise CallerError if `apply` would, once the pools `leaving` and their blocks are deleted."""
    names, ranges = {pool.name for pool in leaving}, [cidr for pool in leaving if (cidr := cidr_of(pool))]
    present = {name: entry for name, entry in _present(backend).items() if name not in names}
    blocks = [block.cidr for block in read_blocks(backend)]
    _check(resources, present, [block for block in blocks if not any(block.overlaps(cidr) for cidr in ranges)])


def count_taken(backend: Backend, pool: Resource) -> int:
    """Return how many addresses of the pool are taken."""
    cidr = cidr_of(pool)
    return _count_taken(backend, cidr) if cidr else 0


def cidr_of(pool: Resource) -> Cidr | None:
    """Return the range; None when it is invalid: the pool cannot have blocks."""
    try:
        return Cidr(str(pool.spec.get("cidr")))
    except ValueError:
        return None


def _apply(backend: Backend, resources: Sequence[Resource], now: datetime) -> list[str]:
    guard = _guard(backend) if backend.atomic else []
    present = _present(backend, [resource.name for resource in resources])
    _check(resources, present, [block.cidr for block in read_blocks(backend)])
    steps = [change(present.get(resource.name), with_defaults(resource), now) for resource in resources]
    writes = [write for _, write in steps if write]
    created = [write for write in writes if isinstance(write, Create)]
    if created and not backend.atomic:
        writes = [*_admitted(backend, resources, created), *(write for write in writes if isinstance(write, Update))]
    backend.write([*guard, *writes] if created else writes, durable=True)
    return [outcome for outcome, _ in steps]


def _guard(backend: Backend) -> list[Update]:
    """Written with a new pool, unchanged: of two that look for overlaps at once, the later is refused and looks again."""
    try:
        entry = backend.get(ResourceKey("ClusterInformation", "default"))
    except NotFound:
        return []
    return [Update(entry.key, entry.value, entry.revision)]


def _admitted(backend: Backend, resources: Sequence[Resource], created: Sequence[Create]) -> list[Update]:
    """The same for a store that cannot write all or nothing: new pools are made out of use, looked at beside whatever others
    have made meanwhile, and withdrawn if they overlap. Of two that do, the later one at least sees the other. Conflict then;
    what is returned puts them into use."""
    drafts = [entry for write in created for entry in backend.write([_draft(write)], durable=True) if entry]
    try:
        _check(resources, _present(backend), [block.cidr for block in read_blocks(backend)])
    except CallerError:
        for entry in drafts:
            with suppress(NotFound, Conflict):
                backend.write([Delete(entry.key, entry.revision)], durable=True)
        raise Conflict(drafts[0].key) from None
    return [Update(entry.key, write.value, entry.revision) for entry, write in zip(drafts, created, strict=True)]


def _draft(write: Create) -> Create:
    assert isinstance(write.value, Resource)
    resource = write.value
    return Create(write.key, Resource(KIND, dict(resource.metadata), resource.spec | {"disabled": True}, resource.status))


def _present(backend: Backend, wanted: Collection[str] = ()) -> dict[str, Entry]:
    """Every pool by name. Damaged when a document that is in the way of those wanted cannot be decoded."""
    entries = backend.list(ResourceQuery(KIND))
    for place in entries.left_out:
        if (name := place.rpartition("/")[2]) in wanted:
            backend.get(ResourceKey(KIND, name))
    return {entry.key.name: entry for entry in entries if isinstance(entry.key, ResourceKey)}


def _check(resources: Sequence[Resource], present: Mapping[str, Entry], blocks: Sequence[Cidr]) -> None:
    """CallerError when any resource is at fault, also beside the others that are applied with it."""
    pools = {name: pool for name, entry in present.items() if (pool := _pool(entry.value))}
    applied = {resource.name: pool for resource in resources if (pool := _pool(resource))}
    names = Counter(resource.name for resource in resources)
    faults = [(name, f"given {count} times: keep one of them") for name, count in names.items() if count > 1]
    for resource in resources:
        found = check_pool(resource, (pools | applied).values(), blocks, pools.get(resource.name))
        faults += [(resource.name, line) for line in found]
    refuse("IP pool", faults, Code.POOL)


def _pool(value: object) -> Pool | None:
    try:
        return Pool.from_resource(value) if isinstance(value, Resource) else None
    except ValueError:
        return None


def _stored_cidr(backend: Backend, name: str) -> Cidr | None:
    return cidr_of(_resource(find(backend, KIND, name)))


def _resource(entry: Entry) -> Resource:
    assert isinstance(entry.value, Resource)
    return entry.value


def _count_taken(backend: Backend, cidr: Cidr) -> int:
    return sum(release.count_used(block) for block in read_blocks(backend, cidr.version) if block.cidr.overlaps(cidr))


def _refuse_used(backend: Backend, name: str, cidr: Cidr, remedy: str) -> None:
    used = _count_taken(backend, cidr)
    if used:
        addresses = "1 address is" if used == 1 else f"{used} addresses are"
        raise CallerError(f"IP pool {name!r} is in use: {addresses} taken", details=remedy, code=Code.POOL)


def _disable(backend: Backend, name: str) -> None:
    """So that nobody claims another block of it."""
    entry = find(backend, KIND, name)
    pool = _resource(entry)
    if pool.spec.get("disabled") is True:
        return
    pool.spec["disabled"] = True
    backend.write([Update(entry.key, with_defaults(pool), entry.revision)], durable=True)


def _remove_blocks(backend: Backend, cidr: Cidr) -> int:
    """How many claims and blocks were found; those that were not in use are gone."""
    claims = [key for key in release.affinities(backend) if key.cidr.overlaps(cidr)]
    for key in claims:
        release.give_up(backend, key)
    unclaimed = [block.cidr for block in read_blocks(backend, cidr.version) if block.cidr.overlaps(cidr)]
    for block in unclaimed:
        release.drop_unclaimed(backend, block)
    return len(claims) + len(unclaimed)
