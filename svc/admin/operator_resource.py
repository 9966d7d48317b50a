"""The resource `Installation` (specification 2.9): settings of the network configuration, and IP pools.

Users may write this resource instead of a network configuration. svc writes the listed pools to the datastore. A label marks
the pools that belong to the resource. Pools without it belong to the user, and are never changed, with one exception: a pool
that equals a listed one in every field gets the label.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.admin import kinds, manifest, pools, resources
from svc.admin.changes import Options, require_unlocked
from svc.admin.installation_resource import rules
from svc.admin.pool_conditions import is_terminating
from svc.admin.resources import CLUSTER, POOL
from svc.datastore.api import Backend
from svc.ipam.pools import read_pools as read_stored_pools
from svc.model.errors import Code
from svc.model.field_errors import FieldError, FieldErrors, display
from svc.model.installation import DEFAULT_CIDR, HOST_LOCAL, IPAM_KEYS, KIND, NAME, SECONDS, ipam_kind, pool_of
from svc.model.pool import with_defaults
from svc.model.resource import Resource
from svc.names import Names
from svc.netconf import host_local
from svc.values import dataclass

Json = dict[str, Any]
Present = Mapping[str, Resource]

_DISABLED: Final = "disabled"
_NODE_RANGES: Final = {4: "usePodCidr", 6: "usePodCidrIPv6"}


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What the resource sets: families of its pools, seconds that pods wait for policy, and whether IPAM is host-local's."""

    families: frozenset[int] = frozenset()
    policy_seconds: int | None = None
    host_local: bool = False

    def applied(self, entry: Json) -> Json:
        """Return the plugin's part of the network, with these settings in place of its own."""
        ipam = dict(entry.get("ipam") or {})
        if self.host_local:
            kept = {name: value for name, value in ipam.items() if ipam.get("type") == host_local.TYPE and name != "subnet"}
            ranges = [[{"subnet": _NODE_RANGES[family]}] for family in sorted(self.families) or [4]]
            ipam = {**kept, "type": host_local.TYPE, "ranges": ranges}
        elif self.families:
            ipam |= {f"assign_ipv{family}": str(family in self.families).lower() for family in _NODE_RANGES}
        waiting = {} if self.policy_seconds is None else {"policy_setup_timeout_seconds": self.policy_seconds}
        return {**entry, **waiting, "ipam": ipam}


@dataclass(frozen=True, slots=True)
class Listing:
    """The listed pools, with an empty name if none is given.

    If the resource has no list, `is_given` is false, and `pools` are those to make if the datastore has no pool."""

    pools: tuple[Resource, ...]
    is_given: bool


def read(data: bytes, source: str, names: Names) -> OperatorSettings:
    """Return the settings of the resource. Raise CallerError with every error of the document."""
    spec = read_spec(data, source, names)
    _raise(source, rules.check_plugin(spec, names))
    return settings_of(spec, names)


def read_pools(data: bytes, source: str, names: Names) -> Listing:
    """Return the pools of a resource. Raise CallerError with every error of its settings, else of its pools."""
    read(data, source, names)
    spec = read_spec(data, source, names)
    _raise(source, rules.check({name: spec[name] for name in ("cni", names.operator_network) if name in spec}, names))
    return listing_of(spec, names)


def read_checked(data: bytes, source: str, names: Names) -> Json:
    """Return the whole resource as a document. Raise CallerError with every error of it.

    It has the kind of IPAM in the spelling that is written."""
    found, problems = _parsed(data, source, names)
    _raise(source, [*problems, *rules.check(found.spec, names)])
    cni = found.spec.get("cni") or {}
    if (kind := ipam_kind(cni.get("ipam") or {})) is not None:
        others = {key: value for key, value in cni["ipam"].items() if key not in IPAM_KEYS}
        found.spec["cni"] = cni | {"ipam": {"type": kind, **others}}
    head = {"apiVersion": names.operator_api_version, "kind": KIND}
    return head | {"metadata": found.metadata, "spec": found.spec}


def read_spec(data: bytes, source: str, names: Names) -> Json:
    """Return the spec of a file with one resource. Raise CallerError if it is another document."""
    return read_resource(data, source, names).spec


def read_resource(data: bytes, source: str, names: Names) -> Resource:
    """Return the resource of a file with one. Raise CallerError if it is another document."""
    found, problems = _parsed(data, source, names)
    _raise(source, problems)
    return found


def _parsed(data: bytes, source: str, names: Names) -> tuple[Resource, list[FieldError]]:
    """Return the first resource of a file, and the error if it is another one than the operator's, or one of several."""
    documents = manifest.read(data, source, names.operator_api_version, KIND, rules.texts(names))
    if len(documents) == 1 and documents[0].name == NAME:
        return documents[0], []
    problem, remedy = "is not the operator's", f"give one {KIND}, {NAME!r}"
    return documents[0], [FieldError("metadata.name", documents[-1].name, problem, remedy)]


def settings_of(spec: Json, names: Names) -> OperatorSettings:
    """Return the settings of a valid spec."""
    network, ipam = spec.get(names.operator_network) or {}, (spec.get("cni") or {}).get("ipam") or {}
    return OperatorSettings(
        families=frozenset(int(Cidr(pool["cidr"]).version) for pool in network.get("ipPools") or ()),
        policy_seconds=network.get(SECONDS),
        host_local=ipam_kind(ipam) == HOST_LOCAL,
    )


def listing_of(spec: Json, names: Names, seeds: Sequence[str] = (DEFAULT_CIDR,)) -> Listing:
    """Return the pools of a valid spec. Without a list, they are those of the ranges `seeds`, which host-local needs not."""
    given = (spec.get(names.operator_network) or {}).get("ipPools")
    unlisted: list[Json] = [] if settings_of(spec, names).host_local else [{"cidr": cidr} for cidr in seeds]
    return Listing(tuple(map(pool_of, unlisted if given is None else given)), is_given=given is not None)


def _raise(source: str, found: Iterable[FieldError]) -> None:
    """Raise CallerError if there are errors."""
    errors = FieldErrors(source, Code.INVALID_NETCONF, [*found])
    errors.raise_if_any()


@dataclass(frozen=True, slots=True)
class _Label:
    """The label of the pools that belong to the operator's resource."""

    key: str
    value: str

    def is_on(self, pool: Resource) -> bool:
        return pool.labels.get(self.key) == self.value


def named_pools(listing: Listing, present: Present | None = None) -> list[Resource]:
    """Return the listed pools with their names, in a datastore that has the pools `present`."""
    return [_named(pool, present or {}, listing.pools) for pool in listing.pools]


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The pools of the resource with their names and label, and those of the datastore that it does not list any more."""

    wanted: tuple[Resource, ...]
    stale: tuple[Resource, ...]


def plan_pools(backend: Backend, listing: Listing, names: Names) -> PoolPlan:
    """Return what becomes of the datastore's pools. Raise CallerError with every error of the listed pools; StoreError."""
    known = read_stored_pools(backend)
    if not listing.is_given and (known.all or known.unreadable):
        return PoolPlan((), ())
    label = _label(names)
    present = {pool.name: pool for pool in resources.get(backend, POOL)}
    wanted = named_pools(listing, present)
    resources.refuse(POOL, _foreign_errors(wanted, present, label))
    for pool in wanted:
        labels = present[pool.name].labels if pool.name in present else {}
        pool.metadata["labels"] = {**labels, label.key: label.value}
    listed = {(pool.name, Cidr(pool.spec["cidr"])) for pool in wanted}  # neither of them can change
    stale = [pool for pool in present.values() if label.is_on(pool) and (pool.name, pools.cidr_of(pool)) not in listed]
    pools.check(backend, wanted, [pool for pool in stale if not pools.count_taken(backend, pools.cidr_of(pool))])
    return PoolPlan(tuple(wanted), tuple(stale))


def apply_pools(
    backend: Backend, listing: Listing, names: Names, now: datetime, *, while_locked: bool = True
) -> list[tuple[str, str]]:
    """Make the datastore's pools those of the resource; return the name of each that is touched or listed, and what was done.

    A pool of the resource that is no longer listed is disabled, then deleted when no block of it is left. Raise CallerError,
    before anything is written, with every error of the listed pools; StoreError."""
    plan = plan_pools(backend, listing, names)
    if not while_locked:
        require_unlocked(backend.find(CLUSTER))
    removed = [(pool.name, _remove(backend, pool)) for pool in plan.stale]
    options = Options(now, while_locked=while_locked)
    applied = kinds.apply_all(backend, kinds.POOLS, plan.wanted, options) if plan.wanted else []
    return [*removed, *zip([pool.name for pool in plan.wanted], applied, strict=True)]


def is_managed(pool: Resource, names: Names) -> bool:
    """Return whether the pool belongs to the operator's resource."""
    return _label(names).is_on(pool)


def pool_label(names: Names) -> tuple[str, str]:
    """Return key and value of the label of what belongs to the resource."""
    label = _label(names)
    return label.key, label.value


def _label(names: Names) -> _Label:
    return _Label(f"app.{names.orch_domain}/managed-by", names.operator_manager)


def _named(pool: Resource, present: Present, listed: Sequence[Resource]) -> Resource:
    """Return the pool with its own name, else that of the pool with this CIDR, else the name that the operator makes."""
    if pool.name:
        return pool
    cidr = Cidr(pool.spec["cidr"])
    versions = [Cidr(each.spec["cidr"]).version for each in listed]
    if sorted(versions) in ([4], [6], [4, 6]):
        made = f"default-ipv{cidr.version}-ippool"
    else:
        made = ipaddress.ip_network(str(cidr)).exploded.replace(":", ".").replace("/", "-")
    found = next((name for name, other in present.items() if pools.cidr_of(other) == cidr), made)
    return Resource(pool.kind, {"name": found}, pool.spec)


def _foreign_errors(wanted: Sequence[Resource], present: Present, label: _Label) -> Iterator[tuple[str, str]]:
    """Yield why a pool of the same name or CIDR that does not belong to the resource cannot be adopted."""
    for pool in wanted:
        for other in present.values():
            is_same = other.name == pool.name or pools.cidr_of(other) == Cidr(pool.spec["cidr"])
            if is_same and not label.is_on(other):
                yield from ((other.name, line) for line in _differences(other, pool, label))


def _differences(other: Resource, pool: Resource, label: _Label) -> Iterator[str]:
    whose = f"the pool exists and lacks the label {label.key}={label.value}"
    if manager := other.labels.get(label.key):
        yield f"metadata.labels[{label.key}] = {display(manager)} names another manager: leave the pool out of the resource"
    if other.name != pool.name:
        yield f"metadata.name is not {display(pool.name)}, and {whose}: give the listed pool this name, or delete this pool"
    stored = other.spec if pools.cidr_of(other) is None else with_defaults(other).spec
    listed = with_defaults(pool).spec
    for field in [*listed, *(field for field in stored if field not in listed)]:
        if stored.get(field) != listed.get(field):
            if field not in stored:
                values = f" is not set but listed as {display(listed[field])}"
            elif field not in listed:
                values = f" = {display(stored[field])} is set but not listed"
            else:
                values = f" = {display(stored[field])} is not {display(listed[field])}"
            yield f"spec.{field}{values}, and {whose}: make both equal, or delete this pool"


def _remove(backend: Backend, pool: Resource) -> str:
    """Disable the pool, and delete it if no block of it is left; return what was done."""
    cidr = pools.cidr_of(pool)
    if is_terminating(pool):
        return f"{_DISABLED}: the API server deletes it when no block of it is left"
    if taken := pools.count_taken(backend, cidr):
        pools.disable(backend, pool.name)
        return f"{_DISABLED}: {pools.format_taken(taken)}; repeat the command after their release to delete it"
    if cidr is not None:
        pools.disable(backend, pool.name)
        pools.remove_blocks(backend, cidr)
        if pools.has_blocks(backend, cidr):
            return f"{_DISABLED}: blocks of it are left; repeat the command to delete it"
    pools.delete(backend, pool.name)
    return "deleted"


def is_waiting(outcome: str) -> bool:
    """Return whether an outcome of `apply_pools` says that a pool waits for its deletion."""
    return outcome.startswith(_DISABLED)
