"""The pools that the operator's resource `Installation` lists (specification 2.9), with the operator's names and defaults."""

import ipaddress
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.ctl import manifest, pools
from svc.ctl.operated import HOST_LOCAL, KIND
from svc.datastore.api import Backend
from svc.ipam.view import read_pools
from svc.model.errors import Code
from svc.model.faults import Faults, json_kind
from svc.model.pool import ALWAYS, CROSS_SUBNET, NEVER
from svc.model.resource import Resource
from svc.names import Names

Json = dict[str, Any]

DEFAULT_CIDR: Final = "192.168.0.0/16"  # of the pool that is made where the resource lists none and the datastore has none
_ENCAPSULATIONS: Final = {  # ipipMode and vxlanMode
    "None": (NEVER, NEVER),
    "IPIP": (ALWAYS, NEVER),
    "IPIPCrossSubnet": (CROSS_SUBNET, NEVER),
    "VXLAN": (NEVER, ALWAYS),
    "VXLANCrossSubnet": (NEVER, CROSS_SUBNET),
}
_NAT: Final = {"Enabled": True, "Disabled": False}
_DEFAULTS: Final = {4: ("IPIP", "Enabled"), 6: ("None", "Disabled")}  # encapsulation and natOutgoing, by family
_KEPT: Final = ("blockSize", "nodeSelector", "disableBGPExport", "allowedUses", "assignmentMode")  # called so in pools as well
_RENAMED: Final = ("name", "cidr", "encapsulation", "natOutgoing", "disableNewAllocations")


def read(data: bytes, source: str, names: Names) -> list[Resource] | None:
    """Return the listed pools, with an empty name where none is given; None if the resource leaves them to the operator.

    Raise CallerError with every fault. The resource itself must be one that `operated.read` accepts."""
    spec = manifest.read(data, source, names.operator_api_version, KIND)[0].spec
    listed = (spec.get(names.operator_network) or {}).get("ipPools")
    if listed is None:
        ipam = (spec.get("cni") or {}).get("ipam") or {}
        return [] if HOST_LOCAL in (ipam.get("type"), ipam.get("plugin")) else None
    faults = Faults(source, Code.INVALID_NETCONF)
    where = f"spec.{names.operator_network}.ipPools"
    found = [_pool(f"{where}[{index}]", pool, faults) for index, pool in enumerate(listed)]
    faults.raise_if_any()
    return found


def apply(backend: Backend, listed: Sequence[Resource] | None, now: datetime) -> list[tuple[str, str]]:
    """Create or update the pools; return the name of each, and what was done. Raise as `pools.apply`."""
    known = read_pools(backend)
    present = {str(pool.cidr): pool.name for pool in known.all}
    if listed is None:
        listed = [] if known.all or known.unreadable else [_resource({"cidr": DEFAULT_CIDR})]
    resources = [_named(pool, present, listed) for pool in listed]
    return list(zip([pool.name for pool in resources], pools.apply(backend, resources, now), strict=True)) if resources else []


def _pool(where: str, pool: Json, faults: Faults) -> Resource:
    for field, value in pool.items():
        if field not in (*_KEPT, *_RENAMED):
            faults.add(f"{where}.{field}", value, "is not known", f"leave it out; known are {', '.join((*_RENAMED, *_KEPT))}")
    for field, words in (("encapsulation", _ENCAPSULATIONS), ("natOutgoing", _NAT)):
        if pool.get(field) is not None and str(pool[field]) not in words:
            faults.add(f"{where}.{field}", pool[field], "is not known", f"give {', '.join(words)}, or leave it out")
    if not isinstance(disabled := pool.get("disableNewAllocations", False), bool):
        faults.add(f"{where}.disableNewAllocations", disabled, f"is {json_kind(disabled)}", "give true or false")
    return Resource(pools.KIND, {}) if faults.found else _resource(pool)


def _resource(pool: Json) -> Resource:
    cidr = Cidr(pool["cidr"])
    encapsulation, nat = _DEFAULTS[cidr.version]
    ipip, vxlan = _ENCAPSULATIONS[pool.get("encapsulation") or encapsulation]
    spec: Json = {"cidr": str(cidr), "ipipMode": ipip, "vxlanMode": vxlan, "natOutgoing": _NAT[pool.get("natOutgoing") or nat]}
    spec |= {"disabled": pool.get("disableNewAllocations", False)}
    return Resource(
        pools.KIND, {"name": pool.get("name") or ""}, spec | {field: pool[field] for field in _KEPT if field in pool}
    )


def _named(pool: Resource, present: dict[str, str], listed: Sequence[Resource]) -> Resource:
    """Its own name, else that of the pool with this CIDR, else one of the operator's making."""
    if pool.name:
        return pool
    cidr = Cidr(pool.spec["cidr"])
    versions = [Cidr(each.spec["cidr"]).version for each in listed]
    single = f"default-ipv{cidr.version}-ippool" if sorted(versions) in ([4], [6], [4, 6]) else _spelled(cidr)
    return Resource(pool.kind, {"name": present.get(str(cidr)) or single}, pool.spec)


def _spelled(cidr: Cidr) -> str:
    return str(ipaddress.ip_network(str(cidr)).exploded).replace(":", ".").replace("/", "-")
