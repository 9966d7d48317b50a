"""The operator's resource `Installation` (specification 2.9): what of it the network configuration is made of.

Where an operator installs the plugin, users do not write a network configuration: they write this resource. Of its `spec` we
read what is about the plugin, and leave everything else to the operator; `operated_pools` makes its pools.
"""

from typing import Any, Final

from svc._core.cidr import Cidr
from svc.ctl import manifest
from svc.model.errors import Code
from svc.model.faults import Faults, json_kind
from svc.model.resource import Resource
from svc.names import Names
from svc.netconf import hostlocal
from svc.values import dataclass

Json = dict[str, Any]

KIND: Final = "Installation"
NAME: Final = "default"
HOST_LOCAL: Final = "HostLocal"
_SECONDS: Final = "linuxPolicySetupTimeoutSeconds"
_TEXTS: Final = ("cni.type", "cni.ipam.type", "cni.ipam.plugin")  # fields of `spec` that want text
_POOL_TEXTS: Final = ("name", "cidr", "encapsulation", "nodeSelector", "assignmentMode", "allowedUses[]")  # of its pools
_NODE_RANGES: Final = {4: "usePodCidr", 6: "usePodCidrIPv6"}


@dataclass(frozen=True, slots=True)
class Operated:
    """What the resource says: the families of its pools (none: nothing of them), how long pods wait for policy (None: nothing
    of it), and whether host-local gives the addresses."""

    families: frozenset[int] = frozenset()
    policy_seconds: int | None = None
    host_local: bool = False

    def applied(self, entry: Json) -> Json:
        """The plugin's part of the network, with these settings in place of its own."""
        ipam = dict(entry.get("ipam") or {})
        if self.host_local:
            kept = {name: value for name, value in ipam.items() if ipam.get("type") == hostlocal.TYPE and name != "subnet"}
            ranges = [[{"subnet": _NODE_RANGES[family]}] for family in sorted(self.families) or [4]]
            ipam = {**kept, "type": hostlocal.TYPE, "ranges": ranges}
        elif self.families:
            ipam |= {f"assign_ipv{family}": str(family in self.families).lower() for family in _NODE_RANGES}
        waiting = {} if self.policy_seconds is None else {"policy_setup_timeout_seconds": self.policy_seconds}
        return {**entry, **waiting, "ipam": ipam}


def read_manifest(data: bytes, source: str, names: Names) -> list[Resource]:
    """Return the resources of the file. Raise CallerError if it is not a manifest of the operator's kind."""
    texts = [*_TEXTS, *(f"{names.operator_network}.ipPools[].{field}" for field in _POOL_TEXTS)]
    return manifest.read(data, source, names.operator_api_version, KIND, texts)


def read(data: bytes, source: str, names: Names) -> Operated:
    """CallerError with every fault of the document."""
    faults = Faults(source, Code.INVALID_NETCONF)
    resources = read_manifest(data, source, names)
    if len(resources) > 1 or resources[0].name != NAME:
        faults.add("metadata.name", resources[-1].name, "is not the operator's", f"give one {KIND}, {NAME!r}")
    spec = resources[0].spec
    network = _object(f"spec.{names.operator_network}", spec.get(names.operator_network), faults)
    cni = _object("spec.cni", spec.get("cni"), faults)
    ipam = _object("spec.cni.ipam", cni.get("ipam"), faults)
    _choice("spec.cni.type", cni.get("type"), (names.operator_plugin,), faults)
    kind = _choice("spec.cni.ipam.type", ipam.get("type", ipam.get("plugin")), (names.operator_plugin, HOST_LOCAL), faults)
    found = Operated(
        families=_families(f"spec.{names.operator_network}.ipPools", network.get("ipPools"), faults),
        policy_seconds=_seconds(f"spec.{names.operator_network}.{_SECONDS}", network.get(_SECONDS), faults),
        host_local=kind == HOST_LOCAL,
    )
    faults.raise_if_any()
    return found


def _object(where: str, value: Any, faults: Faults) -> Json:
    """Nothing counts as an empty one."""
    if value is None or isinstance(value, dict):
        return value or {}
    faults.add(where, value, f"is {json_kind(value)}", "give an object")
    return {}


def _choice(where: str, value: Any, allowed: tuple[str, ...], faults: Faults) -> str:
    if value is not None and value not in allowed:
        faults.add(where, value, "is not served", f"give {' or '.join(allowed)}, or leave it out")
    return str(value or "")


def _families(where: str, pools: Any, faults: Faults) -> frozenset[int]:
    if pools is not None and not isinstance(pools, list):
        faults.add(where, pools, f"is {json_kind(pools)}", "give an array of objects with a cidr each")
        return frozenset()
    cidrs = [_object(f"{where}[{index}]", pool, faults).get("cidr") for index, pool in enumerate(pools or ())]
    return frozenset(family for index, cidr in enumerate(cidrs) if (family := _family(f"{where}[{index}].cidr", cidr, faults)))


def _family(where: str, cidr: Any, faults: Faults) -> int:
    """0 where there is none."""
    try:
        return int(Cidr(cidr).version)
    except (TypeError, ValueError) as fault:
        faults.add(where, cidr, f"is not a CIDR ({fault})", "give ADDRESS/LENGTH")
        return 0


def _seconds(where: str, value: Any, faults: Faults) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    faults.add(where, value, "is no number of seconds", "give 0, which is off, or more")
    return None
