"""The operator's pools in the datastore: create, update and adopt them, and delete those that are no longer listed.

A label marks the pools that belong to the resource. Pools without it belong to the user, and are never changed, with one
exception: a pool that equals a listed one in every field gets the label.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from svc._core.cidr import Cidr
from svc.admin import pools, resources
from svc.admin.operator_installation import Listing
from svc.datastore.api import Backend
from svc.ipam.pools import read_pools
from svc.model.errors import Code
from svc.model.field_errors import display
from svc.model.pool import with_defaults
from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass

Present = Mapping[str, Resource]


@dataclass(frozen=True, slots=True)
class _Mark:
    """The label of the pools that belong to the operator's resource."""

    key: str
    value: str

    def is_on(self, pool: Resource) -> bool:
        return pool.labels.get(self.key) == self.value

    def put(self, pool: Resource, labels: Mapping[str, str]) -> None:
        """Add the label to those that the stored pool has."""
        pool.metadata["labels"] = {**labels, self.key: self.value}


def apply(backend: Backend, listing: Listing, names: Names, now: datetime) -> list[tuple[str, str]]:
    """Make the datastore's pools those of the resource; return the name of each that is touched or listed, and what was done.

    A pool of the resource that is no longer listed is deleted, or disabled while addresses of it are taken. Raise CallerError,
    before anything is written, with every fault of the listed pools; StoreError."""
    known = read_pools(backend)
    if not listing.is_given and (known.all or known.unreadable):
        return []
    mark = _Mark(f"app.{names.orch_domain}/managed-by", names.operator_manager)
    present = {pool.name: pool for pool in resources.get(backend, pools.KIND)}
    wanted = [_named(pool, present, listing.pools) for pool in listing.pools]
    resources.refuse("IP pool", list(_foreign_faults(wanted, present, mark)), Code.POOL)
    for pool in wanted:
        mark.put(pool, present[pool.name].labels if pool.name in present else {})
    stale = [pool for pool in present.values() if mark.is_on(pool) and not _is_listed(pool, wanted)]
    pools.check(backend, wanted, [pool for pool in stale if not pools.count_taken(backend, pool)])
    removed = [(pool.name, _remove(backend, pool)) for pool in stale]
    applied = pools.apply(backend, wanted, now) if wanted else []
    return [*removed, *zip([pool.name for pool in wanted], applied, strict=True)]


def _named(pool: Resource, present: Present, listed: Sequence[Resource]) -> Resource:
    """Return the pool with its own name, else that of the pool with this CIDR, else the name that the operator makes."""
    if pool.name:
        return pool
    cidr = Cidr(pool.spec["cidr"])
    versions = [Cidr(each.spec["cidr"]).version for each in listed]
    single = f"default-ipv{cidr.version}-ippool" if sorted(versions) in ([4], [6], [4, 6]) else _spelled(cidr)
    found = next((name for name, other in present.items() if pools.cidr_of(other) == cidr), single)
    return Resource(pool.kind, {"name": found}, pool.spec)


def _spelled(cidr: Cidr) -> str:
    return str(ipaddress.ip_network(str(cidr)).exploded).replace(":", ".").replace("/", "-")


def _is_listed(pool: Resource, wanted: Sequence[Resource]) -> bool:
    """Return whether a listed pool replaces it: neither the name nor the CIDR of a pool can change."""
    return any(pool.name == each.name and pools.cidr_of(pool) == Cidr(each.spec["cidr"]) for each in wanted)


def _foreign_faults(wanted: Sequence[Resource], present: Present, mark: _Mark) -> Iterator[tuple[str, str]]:
    """Yield why a pool of the same name or CIDR that does not belong to the resource cannot be adopted."""
    for pool in wanted:
        for other in present.values():
            is_same = other.name == pool.name or pools.cidr_of(other) == Cidr(pool.spec["cidr"])
            if is_same and not mark.is_on(other):
                yield from ((other.name, line) for line in _differences(other, pool, mark))


def _differences(other: Resource, pool: Resource, mark: _Mark) -> Iterator[str]:
    whose = f"the pool exists and lacks the label {mark.key}={mark.value}"
    if manager := other.labels.get(mark.key):
        yield f"metadata.labels[{mark.key}] = {display(manager)} names another manager: leave the pool out of the resource"
    if other.name != pool.name:
        yield f"metadata.name is not {display(pool.name)}, and {whose}: give the listed pool this name, or delete this pool"
    stored = other.spec if pools.cidr_of(other) is None else with_defaults(other).spec
    listed = with_defaults(pool).spec
    for field in [*listed, *(field for field in stored if field not in listed)]:
        if stored.get(field) != listed.get(field):
            values = f"{display(stored.get(field))} is not {display(listed.get(field))}"
            yield f"spec.{field} = {values}, and {whose}: make both equal, or delete this pool"


def _remove(backend: Backend, pool: Resource) -> str:
    taken = pools.retire(backend, pool.name)
    if not taken:
        return "deleted"
    return f"disabled: {pools.format_taken(taken)}; repeat the command after their release to delete it"
