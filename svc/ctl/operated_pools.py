"""The pools that the operator's resource `Installation` lists (specification 2.9), with the operator's defaults and checks."""

from typing import Any, Final

from svc._core.cidr import Cidr
from svc.ctl import pools
from svc.ctl.operated import HOST_LOCAL, read_manifest
from svc.model.errors import Code
from svc.model.faults import Faults, json_kind
from svc.model.pool import ALWAYS, CROSS_SUBNET, NEVER
from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass

Json = dict[str, Any]

DEFAULT_CIDR: Final = "192.168.0.0/16"  # of the pool that is made where the resource lists none and the datastore has none
_ENCAPSULATIONS: Final = {  # ipipMode and vxlanMode
    "None": (NEVER, NEVER),
    "IPIP": (ALWAYS, NEVER),
    "IPIPCrossSubnet": (CROSS_SUBNET, NEVER),
    "VXLAN": (NEVER, ALWAYS),
    "VXLANCrossSubnet": (NEVER, CROSS_SUBNET),
}
_SWITCH: Final = {"Enabled": True, "Disabled": False}
_DEFAULTS: Final = {4: ("IPIP", "Enabled"), 6: ("None", "Disabled")}  # encapsulation and natOutgoing, by family
_KEPT: Final = ("blockSize", "nodeSelector", "disableBGPExport", "allowedUses", "assignmentMode")  # called so in pools as well
_RENAMED: Final = ("name", "cidr", "encapsulation", "natOutgoing", "disableNewAllocations")


@dataclass(frozen=True, slots=True)
class Listing:
    """The listed pools, with an empty name where none is given.

    If the resource has no list, `is_given` is false, and `pools` are those to make where the datastore has no pool."""

    pools: tuple[Resource, ...]
    is_given: bool


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The settings of the cluster that not every encapsulation agrees with."""

    host_local: bool
    bgp: bool


def read(data: bytes, source: str, names: Names) -> Listing:
    """Return the pools of the resource. Raise CallerError with every fault.

    The resource itself must be one that `operated.read` accepts."""
    spec = read_manifest(data, source, names)[0].spec
    faults = Faults(source, Code.INVALID_NETCONF)
    network = spec.get(names.operator_network) or {}
    where = f"spec.{names.operator_network}"
    cluster = _cluster(spec, network, f"{where}.bgp", faults)
    given = network.get("ipPools")
    unlisted: list[Json] = [] if cluster.host_local else [{"cidr": DEFAULT_CIDR}]
    listed = [
        _pool(f"{where}.ipPools[{index}]", pool, cluster, faults)
        for index, pool in enumerate(unlisted if given is None else given)
    ]
    faults.raise_if_any()
    return Listing(tuple(listed), is_given=given is not None)


def _cluster(spec: Json, network: Json, where: str, faults: Faults) -> _Cluster:
    ipam = (spec.get("cni") or {}).get("ipam") or {}
    bgp = network.get("bgp") or "Enabled"
    _check_word(where, bgp, _SWITCH, faults)
    return _Cluster(host_local=HOST_LOCAL in (ipam.get("type"), ipam.get("plugin")), bgp=str(bgp) == "Enabled")


def _check_word(where: str, value: Any, words: Json, faults: Faults) -> None:
    if value is not None and str(value) not in words:
        faults.add(where, value, "is not known", f"give {', '.join(words)}, or leave it out")


def _pool(where: str, pool: Json, cluster: _Cluster, faults: Faults) -> Resource:
    before = len(faults.found)
    for field, value in pool.items():
        if field not in (*_KEPT, *_RENAMED):
            faults.add(f"{where}.{field}", value, "is not known", f"leave it out; known are {', '.join((*_RENAMED, *_KEPT))}")
    for field, words in (("encapsulation", _ENCAPSULATIONS), ("natOutgoing", _SWITCH)):
        _check_word(f"{where}.{field}", pool.get(field), words, faults)
    if not isinstance(disabled := pool.get("disableNewAllocations", False), bool):
        faults.add(f"{where}.disableNewAllocations", disabled, f"is {json_kind(disabled)}", "give true or false")
    if len(faults.found) > before:
        return Resource(pools.KIND, {})
    _check_encapsulation(f"{where}.encapsulation", _encapsulation(pool), Cidr(pool["cidr"]), cluster, faults)
    return _resource(pool)


def _check_encapsulation(where: str, value: str, cidr: Cidr, cluster: _Cluster, faults: Faults) -> None:
    """Check that it goes with the pool's family, the cluster's IPAM and its BGP."""
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
        pools.KIND, {"name": pool.get("name") or ""}, spec | {field: pool[field] for field in _KEPT if field in pool}
    )
