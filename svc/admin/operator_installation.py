"""The operator's resource `Installation` (specification 2.9): settings of the network configuration, and IP pools.

If an operator installs the plugin, users write this resource instead of a network configuration. svc reads the fields of
`spec` that are about the plugin. `operator_pools` writes the listed pools to the datastore.
"""

from typing import Any, Final

from svc._core.cidr import Cidr
from svc.admin import manifest
from svc.admin.manifest import object_at
from svc.model.errors import Code
from svc.model.field_errors import FieldErrors, json_kind
from svc.model.pool import ALWAYS, CROSS_SUBNET, NEVER
from svc.model.resource import Resource
from svc.names import Names
from svc.netconf import host_local
from svc.values import dataclass

Json = dict[str, Any]

KIND: Final = "Installation"
NAME: Final = "default"
HOST_LOCAL: Final = "HostLocal"
DEFAULT_CIDR: Final = "192.168.0.0/16"  # of the pool that is made if neither the resource nor the datastore has one
_SECONDS: Final = "linuxPolicySetupTimeoutSeconds"
_TEXTS: Final = ("cni.type", "cni.ipam.type", "cni.ipam.plugin")  # fields of `spec` of type string
_POOL_TEXTS: Final = ("name", "cidr", "encapsulation", "nodeSelector", "assignmentMode", "allowedUses[]")  # of its pools
_POOL: Final = "IPPool"
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
    """What the resource sets: the families of its pools, if any, the seconds that pods wait for policy, if given, and whether
    host-local assigns the addresses."""

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


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Settings of the cluster that some encapsulations require."""

    host_local: bool
    bgp: bool


def read(data: bytes, source: str, names: Names) -> OperatorSettings:
    """Return the settings of the resource. Raise CallerError with every fault of the document."""
    faults = FieldErrors(source, Code.INVALID_NETCONF)
    resources = _read_manifest(data, source, names)
    if len(resources) > 1 or resources[0].name != NAME:
        faults.add("metadata.name", resources[-1].name, "is not the operator's", f"give one {KIND}, {NAME!r}")
    spec = resources[0].spec
    where = f"spec.{names.operator_network}"
    network = object_at(where, spec.get(names.operator_network), faults)
    cni = object_at("spec.cni", spec.get("cni"), faults)
    ipam = object_at("spec.cni.ipam", cni.get("ipam"), faults)
    _choice("spec.cni.type", cni.get("type"), (names.operator_plugin,), faults)
    kind = _choice("spec.cni.ipam.type", ipam.get("type", ipam.get("plugin")), (names.operator_plugin, HOST_LOCAL), faults)
    found = OperatorSettings(
        families=_families(f"{where}.ipPools", network.get("ipPools"), faults),
        policy_seconds=_seconds(f"{where}.{_SECONDS}", network.get(_SECONDS), faults),
        host_local=kind == HOST_LOCAL,
    )
    faults.raise_if_any()
    return found


def read_pools(data: bytes, source: str, names: Names) -> Listing:
    """Return the pools of a resource that `read` accepts. Raise CallerError with every fault."""
    spec = _read_manifest(data, source, names)[0].spec
    faults = FieldErrors(source, Code.INVALID_NETCONF)
    network = spec.get(names.operator_network) or {}
    where = f"spec.{names.operator_network}"
    cluster = _cluster(spec, network, f"{where}.bgp", faults)
    given = network.get("ipPools")
    unlisted: list[Json] = [] if cluster.host_local else [{"cidr": DEFAULT_CIDR}]
    listed = [
        _listed_pool(f"{where}.ipPools[{index}]", pool, cluster, faults)
        for index, pool in enumerate(unlisted if given is None else given)
    ]
    faults.raise_if_any()
    return Listing(tuple(listed), is_given=given is not None)


def _read_manifest(data: bytes, source: str, names: Names) -> list[Resource]:
    texts = [*_TEXTS, *(f"{names.operator_network}.ipPools[].{field}" for field in _POOL_TEXTS)]
    return manifest.read(data, source, names.operator_api_version, KIND, texts)


def _choice(where: str, value: Any, allowed: tuple[str, ...], faults: FieldErrors) -> str:
    if value is not None and value not in allowed:
        faults.add(where, value, "is not served", f"give {' or '.join(allowed)}, or leave it out")
    return str(value or "")


def _families(where: str, pools: Any, faults: FieldErrors) -> frozenset[int]:
    if pools is not None and not isinstance(pools, list):
        faults.add(where, pools, f"is {json_kind(pools)}", "give an array of objects with a cidr each")
        return frozenset()
    cidrs = [object_at(f"{where}[{index}]", pool, faults).get("cidr") for index, pool in enumerate(pools or ())]
    return frozenset(family for index, cidr in enumerate(cidrs) if (family := _family(f"{where}[{index}].cidr", cidr, faults)))


def _family(where: str, cidr: Any, faults: FieldErrors) -> int:
    """Return the family of a CIDR; 0 if it is invalid."""
    try:
        return int(Cidr(cidr).version)
    except (TypeError, ValueError) as fault:
        faults.add(where, cidr, f"is not a CIDR ({fault})", "give ADDRESS/LENGTH")
        return 0


def _seconds(where: str, value: Any, faults: FieldErrors) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    faults.add(where, value, "is no number of seconds", "give 0, which is off, or more")
    return None


def _cluster(spec: Json, network: Json, where: str, faults: FieldErrors) -> _Cluster:
    ipam = (spec.get("cni") or {}).get("ipam") or {}
    bgp = network.get("bgp") or "Enabled"
    _check_word(where, bgp, _SWITCH, faults)
    return _Cluster(host_local=HOST_LOCAL in (ipam.get("type"), ipam.get("plugin")), bgp=str(bgp) == "Enabled")


def _check_word(where: str, value: Any, words: Json, faults: FieldErrors) -> None:
    if value is not None and str(value) not in words:
        faults.add(where, value, "is not known", f"give {', '.join(words)}, or leave it out")


def _listed_pool(where: str, pool: Json, cluster: _Cluster, faults: FieldErrors) -> Resource:
    before = len(faults.found)
    for field, value in pool.items():
        if field not in _POOL_FIELDS:
            faults.add(f"{where}.{field}", value, "is not known", f"leave it out; known are {', '.join(_POOL_FIELDS)}")
    for field, words in (("encapsulation", _ENCAPSULATIONS), ("natOutgoing", _SWITCH)):
        _check_word(f"{where}.{field}", pool.get(field), words, faults)
    if not isinstance(disabled := pool.get("disableNewAllocations", False), bool):
        faults.add(f"{where}.disableNewAllocations", disabled, f"is {json_kind(disabled)}", "give true or false")
    if len(faults.found) > before:
        return Resource(_POOL, {})
    _check_encapsulation(f"{where}.encapsulation", _encapsulation(pool), Cidr(pool["cidr"]), cluster, faults)
    return _resource(pool)


def _check_encapsulation(where: str, value: str, cidr: Cidr, cluster: _Cluster, faults: FieldErrors) -> None:
    """Report an encapsulation that does not go with the pool's family, or with the IPAM or the BGP of the cluster."""
    is_vxlan = value.startswith("VXLAN")
    if cidr.version == 6 and value.startswith("IPIP"):
        faults.add(where, value, "is not for IPv6", "give None, VXLAN or VXLANCrossSubnet")
    if cluster.host_local and is_vxlan:
        faults.add(where, value, f"does not go with {HOST_LOCAL}", "give None, or IPIP or IPIPCrossSubnet for IPv4")
    if not (cluster.host_local or cluster.bgp or is_vxlan):
        faults.add(where, value, "needs BGP", "give VXLAN or VXLANCrossSubnet, or set bgp to Enabled")


def _encapsulation(pool: Json) -> str:
    return str(pool.get("encapsulation") or _DEFAULTS[Cidr(pool["cidr"]).version][0])


def _resource(pool: Json) -> Resource:
    cidr = Cidr(pool["cidr"])
    ipip, vxlan = _ENCAPSULATIONS[_encapsulation(pool)]
    nat = _SWITCH[pool.get("natOutgoing") or _DEFAULTS[cidr.version][1]]
    spec: Json = {"cidr": str(cidr), "ipipMode": ipip, "vxlanMode": vxlan, "natOutgoing": nat}
    spec |= {"disabled": pool.get("disableNewAllocations", False)}
    return Resource(
        _POOL, {"name": pool.get("name") or ""}, spec | {field: pool[field] for field in _SAME_NAME if field in pool}
    )
