"""The operator's resource `Installation` (specification 2.9): settings of the network configuration, and IP pools.

If an operator installs the plugin, users write this resource instead of a network configuration. svc reads the fields of
`spec` that are about the plugin, and writes the listed pools to the datastore. A label marks the pools that belong to the
resource. Pools without it belong to the user, and are never changed, with one exception: a pool that equals a listed one in
every field gets the label.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.admin import kinds, manifest, pools, resources
from svc.admin.changes import Options
from svc.admin.manifest import object_at, refuse_unknown
from svc.admin.resources import POOL
from svc.datastore.api import Backend
from svc.ipam.pools import read_pools as read_stored_pools
from svc.model.errors import Code
from svc.model.field_errors import FieldErrors, display, json_kind
from svc.model.pool import ALWAYS, CROSS_SUBNET, NEVER, with_defaults
from svc.model.resource import Resource
from svc.names import Names
from svc.netconf import host_local
from svc.values import dataclass

Json = dict[str, Any]
Present = Mapping[str, Resource]

KIND: Final = "Installation"
NAME: Final = "default"
HOST_LOCAL: Final = "HostLocal"
DEFAULT_CIDR: Final = "192.168.0.0/16"  # of the pool that is made if neither the resource nor the datastore has one
_SECONDS: Final = "linuxPolicySetupTimeoutSeconds"
_TEXTS: Final = ("cni.type", "cni.ipam.type", "cni.ipam.plugin")  # fields of `spec` of type string
_POOL_TEXTS: Final = ("name", "cidr", "encapsulation", "nodeSelector", "assignmentMode", "allowedUses[]")  # of its pools
_NODE_RANGES: Final = {4: "usePodCidr", 6: "usePodCidrIPv6"}
_ENCAPSULATIONS: Final = {  # ipipMode and vxlanMode
    "None": (NEVER, NEVER),
    "IPIP": (ALWAYS, NEVER),
    "IPIPCrossSubnet": (CROSS_SUBNET, NEVER),
    "VXLAN": (NEVER, ALWAYS),
    "VXLANCrossSubnet": (NEVER, CROSS_SUBNET),
}
_SWITCH: Final = {"Enabled": True, "Disabled": False}
_DEFAULTS: Final = {4: ("IPIP", "Enabled"), 6: ("None", "Disabled")}  # encapsulation and natOutgoing, by family
_SAME_NAME: Final = ("blockSize", "nodeSelector", "disableBGPExport", "allowedUses", "assignmentMode")  # as in IP pools
_POOL_FIELDS: Final = ("name", "cidr", "encapsulation", "natOutgoing", "disableNewAllocations", *_SAME_NAME)


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
    errors = FieldErrors(source, Code.INVALID_NETCONF)
    documents = _read_manifest(data, source, names)
    if len(documents) > 1 or documents[0].name != NAME:
        errors.add("metadata.name", documents[-1].name, "is not the operator's", f"give one {KIND}, {NAME!r}")
    spec = documents[0].spec
    where = f"spec.{names.operator_network}"
    network = object_at(where, spec.get(names.operator_network), errors)
    cni = object_at("spec.cni", spec.get("cni"), errors)
    ipam = object_at("spec.cni.ipam", cni.get("ipam"), errors)
    _choice("spec.cni.type", cni.get("type"), (names.operator_plugin,), errors)
    kind = _choice("spec.cni.ipam.type", ipam.get("type", ipam.get("plugin")), (names.operator_plugin, HOST_LOCAL), errors)
    found = OperatorSettings(
        families=_families(f"{where}.ipPools", network.get("ipPools"), errors),
        policy_seconds=_seconds(f"{where}.{_SECONDS}", network.get(_SECONDS), errors),
        host_local=kind == HOST_LOCAL,
    )
    errors.raise_if_any()
    return found


def read_pools(data: bytes, source: str, names: Names) -> Listing:
    """Return the pools of a resource. Raise CallerError with every error of its settings, else of its pools."""
    is_host_local = read(data, source, names).host_local
    network = _read_manifest(data, source, names)[0].spec.get(names.operator_network) or {}
    errors = FieldErrors(source, Code.INVALID_NETCONF)
    where, bgp = f"spec.{names.operator_network}", network.get("bgp") or "Enabled"
    _check_word(f"{where}.bgp", bgp, _SWITCH, errors)
    given = network.get("ipPools")
    unlisted: list[Json] = [] if is_host_local else [{"cidr": DEFAULT_CIDR}]
    listed = []
    for index, pool in enumerate(unlisted if given is None else given):
        if _is_valid(f"{where}.ipPools[{index}]", pool, errors):
            field = f"{where}.ipPools[{index}].encapsulation"
            _check_encapsulation(field, _encapsulation(pool), Cidr(pool["cidr"]), is_host_local, bgp == "Enabled", errors)
            listed.append(_resource(pool))
    errors.raise_if_any()
    return Listing(tuple(listed), is_given=given is not None)


def _read_manifest(data: bytes, source: str, names: Names) -> list[Resource]:
    texts = [*_TEXTS, *(f"{names.operator_network}.ipPools[].{field}" for field in _POOL_TEXTS)]
    return manifest.read(data, source, names.operator_api_version, KIND, texts)


def _choice(where: str, value: Any, allowed: tuple[str, ...], errors: FieldErrors) -> str:
    if value is not None and value not in allowed:
        errors.add(where, value, "is not served", f"give {' or '.join(allowed)}, or leave it out")
    return str(value or "")


def _families(where: str, pools: Any, errors: FieldErrors) -> frozenset[int]:
    if pools is not None and not isinstance(pools, list):
        errors.add(where, pools, f"is {json_kind(pools)}", "give an array of objects with a cidr each")
        return frozenset()
    cidrs = [object_at(f"{where}[{index}]", pool, errors).get("cidr") for index, pool in enumerate(pools or ())]
    return frozenset(family for index, cidr in enumerate(cidrs) if (family := _family(f"{where}[{index}].cidr", cidr, errors)))


def _family(where: str, cidr: Any, errors: FieldErrors) -> int:
    """Return the family of a CIDR; 0 if it is invalid."""
    try:
        return int(Cidr(cidr).version)
    except (TypeError, ValueError) as error:
        errors.add(where, cidr, f"is not a CIDR ({error})", "give ADDRESS/LENGTH")
        return 0


def _seconds(where: str, value: Any, errors: FieldErrors) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    errors.add(where, value, "is not a number of seconds", "give 0, which is off, or more")
    return None


def _check_word(where: str, value: Any, words: Json, errors: FieldErrors) -> None:
    if value is not None and str(value) not in words:
        errors.add(where, value, "is not known", f"give {', '.join(words)}, or leave it out")


def _is_valid(where: str, pool: Json, errors: FieldErrors) -> bool:
    """Report the errors of a listed pool on its own; return whether it has none."""
    before = len(errors.found)
    refuse_unknown(f"{where}.", pool, _POOL_FIELDS, errors)
    for field, words in (("encapsulation", _ENCAPSULATIONS), ("natOutgoing", _SWITCH)):
        _check_word(f"{where}.{field}", pool.get(field), words, errors)
    if not isinstance(disabled := pool.get("disableNewAllocations", False), bool):
        errors.add(f"{where}.disableNewAllocations", disabled, f"is {json_kind(disabled)}", "give true or false")
    return len(errors.found) == before


def _check_encapsulation(where: str, value: str, cidr: Cidr, is_host_local: bool, has_bgp: bool, errors: FieldErrors) -> None:
    """Report an encapsulation that does not go with the pool's family, or with the IPAM or the BGP of the cluster."""
    is_vxlan = value.startswith("VXLAN")
    if cidr.version == 6 and value.startswith("IPIP"):
        errors.add(where, value, "is not for IPv6", "give None, VXLAN or VXLANCrossSubnet")
    if is_host_local and is_vxlan:
        errors.add(where, value, f"does not go with {HOST_LOCAL}", "give None, or IPIP or IPIPCrossSubnet for IPv4")
    if not (is_host_local or has_bgp or is_vxlan):
        errors.add(where, value, "needs BGP", "give VXLAN or VXLANCrossSubnet, or set bgp to Enabled")


def _encapsulation(pool: Json) -> str:
    return str(pool.get("encapsulation") or _DEFAULTS[Cidr(pool["cidr"]).version][0])


def _resource(pool: Json) -> Resource:
    cidr = Cidr(pool["cidr"])
    ipip, vxlan = _ENCAPSULATIONS[_encapsulation(pool)]
    nat = _SWITCH[pool.get("natOutgoing") or _DEFAULTS[cidr.version][1]]
    spec: Json = {"cidr": str(cidr), "ipipMode": ipip, "vxlanMode": vxlan, "natOutgoing": nat}
    spec |= {"disabled": pool.get("disableNewAllocations", False)}
    return Resource(
        POOL, {"name": pool.get("name") or ""}, spec | {field: pool[field] for field in _SAME_NAME if field in pool}
    )


@dataclass(frozen=True, slots=True)
class _Label:
    """The label of the pools that belong to the operator's resource."""

    key: str
    value: str

    def is_on(self, pool: Resource) -> bool:
        return pool.labels.get(self.key) == self.value


def named_pools(listing: Listing) -> list[Resource]:
    """Return the listed pools, with the names that the operator makes in a datastore without pools."""
    return [_named(pool, {}, listing.pools) for pool in listing.pools]


def apply_pools(backend: Backend, listing: Listing, names: Names, now: datetime) -> list[tuple[str, str]]:
    """Make the datastore's pools those of the resource; return the name of each that is touched or listed, and what was done.

    A pool of the resource that is no longer listed is deleted, or disabled while addresses of it are taken. Raise CallerError,
    before anything is written, with every error of the listed pools; StoreError."""
    known = read_stored_pools(backend)
    if not listing.is_given and (known.all or known.unreadable):
        return []
    label = _label(names)
    present = {pool.name: pool for pool in resources.get(backend, POOL)}
    wanted = [_named(pool, present, listing.pools) for pool in listing.pools]
    resources.refuse(POOL, _foreign_errors(wanted, present, label))
    for pool in wanted:
        labels = present[pool.name].labels if pool.name in present else {}
        pool.metadata["labels"] = {**labels, label.key: label.value}
    listed = {(pool.name, Cidr(pool.spec["cidr"])) for pool in wanted}  # neither of them can change
    stale = [pool for pool in present.values() if label.is_on(pool) and (pool.name, pools.cidr_of(pool)) not in listed]
    pools.check(backend, wanted, [pool for pool in stale if not pools.count_taken(backend, pools.cidr_of(pool))])
    removed = [(pool.name, _remove(backend, pool)) for pool in stale]
    applied = kinds.apply_all(backend, kinds.POOLS, wanted, Options(now)) if wanted else []
    return [*removed, *zip([pool.name for pool in wanted], applied, strict=True)]


def is_managed(pool: Resource, names: Names) -> bool:
    """Return whether the pool belongs to the operator's resource."""
    return _label(names).is_on(pool)


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
    """Delete the pool, or only disable it while addresses of it are taken; return what was done."""
    taken = pools.count_taken(backend, pools.cidr_of(pool))
    if not taken:
        pools.delete(backend, pool.name)
        return "deleted"
    pools.disable(backend, pool.name)
    return f"disabled: {pools.format_taken(taken)}; repeat the command after their release to delete it"
