"""The Installation resource: words, defaults, and its pools as objects of the datastore."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.model.pool import ALWAYS, CROSS_SUBNET, NEVER, with_defaults
from svc.model.resource import Resource
from svc.names import Names

Json = dict[str, Any]

KIND: Final = "Installation"
PLURAL: Final = "installations"
NAME: Final = "default"
POOL: Final = "IPPool"
HOST_LOCAL: Final = "HostLocal"
DEFAULT_CIDR: Final = "192.168.0.0/16"  # of the pool that is made if neither the resource nor the datastore has one
MAX_POOLS: Final = 25
MAX_SECONDS: Final = 2**31 - 1

PROVIDER: Final = "kubernetesProvider"
SECONDS: Final = "linuxPolicySetupTimeoutSeconds"
IPAM_KEYS: Final = ("type", "plugin", "Plugin")  # spellings of the field with the kind of IPAM; the first one is written

ENABLED, DISABLED = "Enabled", "Disabled"
SWITCH: Final = {ENABLED: True, DISABLED: False}
PROVIDERS: Final = ("", "EKS", "GKE", "AKS", "OpenShift", "DockerEnterprise", "RKE2", "TKG", "Kind")
WITHOUT_NODE_FILE: Final = "DockerEnterprise"  # the provider on which the host's name serves if no file names the node
IPTABLES, *_OTHERS = DATAPLANES = ("Iptables", "BPF", "VPP", "Nftables")
WITH_STATUS_FILES: Final = (IPTABLES, "BPF", "Nftables")  # data planes whose policy agent says when policy is set up
MULTI_INTERFACE: Final = ("None", "Multus")
LOG_LEVELS: Final = ("Error", "Warning", "Info", "Debug")
AUTO: Final = "Auto"
SPEC_VERSIONS: Final = (AUTO, "0.3.1", "0.4.0", "1.0.0")
ROLLING_UPDATE: Final = "RollingUpdate"

NO_ENCAPSULATION: Final = "None"
ENCAPSULATIONS: Final = {  # ipipMode and vxlanMode
    NO_ENCAPSULATION: (NEVER, NEVER),
    "IPIP": (ALWAYS, NEVER),
    "IPIPCrossSubnet": (CROSS_SUBNET, NEVER),
    "VXLAN": (NEVER, ALWAYS),
    "VXLANCrossSubnet": (NEVER, CROSS_SUBNET),
}
_DEFAULTS: Final = {4: ("IPIP", ENABLED), 6: (NO_ENCAPSULATION, DISABLED)}  # encapsulation and natOutgoing, by family
SAME_NAME: Final = ("blockSize", "nodeSelector", "disableBGPExport", "allowedUses", "assignmentMode")  # as in IP pools
POOL_FIELDS: Final = ("name", "cidr", "encapsulation", "natOutgoing", "disableNewAllocations", *SAME_NAME)


def ipam_kind(ipam: Mapping[str, Any]) -> Any:
    """Return the kind of IPAM, in whichever spelling its field has; None without one."""
    return next((ipam[key] for key in IPAM_KEYS if ipam.get(key) is not None), None)


def install_modes(names: Names) -> tuple[str, str]:
    """Return the words for all plugins, and for those of svc alone."""
    return "All", f"{names.operator_plugin}Only"


def encapsulation_of(entry: Json) -> str:
    """Return the encapsulation of a listed pool, whose CIDR is valid."""
    return str(entry.get("encapsulation") or _DEFAULTS[Cidr(entry["cidr"]).version][0])


def pool_of(entry: Json) -> Resource:
    """Return a valid listed pool as an object of the datastore. Its name is empty if the list gives none."""
    cidr = Cidr(entry["cidr"])
    ipip, vxlan = ENCAPSULATIONS[encapsulation_of(entry)]
    nat = SWITCH[entry.get("natOutgoing") or _DEFAULTS[cidr.version][1]]
    spec: Json = {"cidr": str(cidr), "ipipMode": ipip, "vxlanMode": vxlan, "natOutgoing": nat}
    spec |= {"disabled": entry.get("disableNewAllocations") or False}
    given = {field: entry[field] for field in SAME_NAME if entry.get(field) is not None}
    return Resource(POOL, {"name": entry.get("name") or ""}, spec | given)


def entry_of(pool: Resource) -> Json:
    """Return the listed pool that stands for an object of the datastore, with every default."""
    spec = with_defaults(pool).spec
    modes = (spec.get("ipipMode") or NEVER, spec.get("vxlanMode") or NEVER)
    encapsulation = next((word for word, pair in ENCAPSULATIONS.items() if pair == modes), NO_ENCAPSULATION)
    return {
        "name": pool.name,
        "cidr": spec["cidr"],
        "encapsulation": encapsulation,
        "natOutgoing": ENABLED if spec.get("natOutgoing") else DISABLED,
        "disableNewAllocations": bool(spec.get("disabled")),
        **{field: spec[field] for field in SAME_NAME if field in spec},
    }


def completed(spec: Mapping[str, Any], pools: Iterable[Resource], names: Names) -> Json:
    """Return a valid spec with every default, and with these pools, as `status.computed` shows it."""
    listed = list(pools)
    found = _merged(_defaults(spec, {Cidr(pool.spec["cidr"]).version for pool in listed}, names), spec)
    kind = ipam_kind(found["cni"]["ipam"])
    found["cni"]["ipam"] = {key: value for key, value in found["cni"]["ipam"].items() if key not in IPAM_KEYS} | {"type": kind}
    found[names.operator_network]["ipPools"] = [entry_of(pool) for pool in listed]
    return found


def _defaults(spec: Mapping[str, Any], families: set[int], names: Names) -> Json:
    own = names.operator_plugin
    given = spec.get(names.operator_network) or {}
    dataplane = given.get("linuxDataplane") or IPTABLES
    return {
        "variant": own,
        PROVIDER: "",
        "cni": {
            "type": own,
            "ipam": {"type": ipam_kind((spec.get("cni") or {}).get("ipam") or {}) or own},
            "binDir": "/opt/cni/bin",
            "confDir": "/etc/cni/net.d",
            "installMode": install_modes(names)[0],
            "specVersion": AUTO,
        },
        names.operator_network: {
            "bgp": ENABLED,
            "linuxDataplane": IPTABLES,
            "hostPorts": ENABLED,
            "containerIPForwarding": DISABLED,
            "multiInterfaceMode": MULTI_INTERFACE[0],
            **({SECONDS: 0} if dataplane == IPTABLES else {}),
            **{f"nodeAddressAutodetectionV{family}": {"firstFound": True} for family in sorted(families)},
        },
        "logging": {"cni": {"logSeverity": "Info", "logFileMaxSize": "100Mi", "logFileMaxAgeDays": 30, "logFileMaxCount": 10}},
        "controlPlaneReplicas": 2,
        "nodeUpdateStrategy": {"type": ROLLING_UPDATE, "rollingUpdate": {"maxUnavailable": 1}},
    }


_WHOLE: Final = ("nodeAddressAutodetectionV4", "nodeAddressAutodetectionV6")  # one method: fields of the default do not stay


def _merged(lower: Json, upper: Mapping[str, Any]) -> Json:
    """Return the fields of both; those of `upper` prevail, and null is no value."""
    found = dict(lower)
    for name, value in upper.items():
        if isinstance(value, Mapping) and isinstance(lower.get(name), Mapping) and name not in _WHOLE:
            found[name] = _merged(lower[name], value)
        elif value is not None:
            found[name] = deepcopy(value)
    return found
