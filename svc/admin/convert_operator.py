"""Conversion between the operator's resource `Installation` and network configurations and pools, both ways."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from svc.admin import installation, operator_resource
from svc.admin.columns import lookup
from svc.admin.convert import Note
from svc.admin.documents import Document
from svc.admin.installation import CHAINED
from svc.admin.manifest import object_at
from svc.admin.renaming import Renaming
from svc.model.errors import Code
from svc.model.field_errors import FieldErrors
from svc.model.installation import HOST_LOCAL, KIND, NAME
from svc.model.pool import with_defaults
from svc.names import Names
from svc.netconf import host_local
from svc.netconf.networklist import type_of

Json = dict[str, Any]

KUBECONFIG_DIR: Final = "/etc/cni/net.d"
CNI_VERSION: Final = "1.0.0"  # the newest that the chained plugins of all supported systems have
TUNING: Final = "tuning"
_MIB: Final = 1 << 20
_SUFFIXES: Final = {"": 1, "Ki": 1 << 10, "Mi": _MIB, "Gi": 1 << 30}
_LOGGING: Final = {  # fields of logging.cni, and those of the network configuration
    "logSeverity": "log_level",
    "logFileMaxSize": "log_file_max_size",
    "logFileMaxAgeDays": "log_file_max_age",
    "logFileMaxCount": "log_file_max_count",
}
_SWITCH: Final = {"Enabled": True, "Disabled": False}
_OF_NETWORK: Final = ("ipPools", "linuxPolicySetupTimeoutSeconds", "hostPorts", "containerIPForwarding", "mtu", "sysctl", "bgp")
_WORDS: Final = ("kubernetes", "orch")  # of the section with the access to the Kubernetes API


def rename(document: Document, renaming: Renaming, note: Note) -> Json:
    """Return the resource with the names of the target. Record fields that svc keeps and does not read."""
    source, target = renaming.source, renaming.target
    _read(document, source)
    spec = _renamed(document.content.get("spec") or {}, source, target)
    if pools := lookup(spec, f"{target.operator_network}.ipPools"):
        spec[target.operator_network] = {**spec[target.operator_network], "ipPools": [_pool(pool, renaming) for pool in pools]}
    for path in _unread(spec, target.operator_network):
        note(f"spec.{path}", "it is kept, but svc does not read it")
    return _resource(spec, target)


def to_pools(document: Document, renaming: Renaming, *, backing: bool) -> list[Json]:
    """Return the listed pools as documents."""
    listing = operator_resource.read_pools(_bytes(document), document.title.strip(": "), renaming.source)
    names = renaming.target
    version = names.crd_api_version if backing else names.api_version
    found = []
    for pool in operator_resource.named_pools(listing):
        pool.spec["nodeSelector"] = renaming.selector(str(pool.spec.get("nodeSelector") or "all()"))
        data = with_defaults(pool).to_json(version)
        found.append({"apiVersion": version, "kind": pool.kind} | data)
    return found


def to_netconf(document: Document, renaming: Renaming, note: Note) -> Json:
    """Return the network list that the resource stands for."""
    source, target = renaming.source, renaming.target
    settings = _read(document, source)
    spec = document.content.get("spec") or {}
    network = spec.get(source.operator_network) or {}
    kubeconfig = f"{KUBECONFIG_DIR}/{target.plugin}-kubeconfig"
    entry = settings.applied(installation.default_entry(target, "orch", "", kubeconfig))
    entry |= _network_fields(f"{document.title}spec.{source.operator_network}", network)
    entry |= _log_fields(f"{document.title}spec.logging.cni", lookup(spec, "logging.cni"))
    for path in _unread(spec, source.operator_network):
        note(f"spec.{path}", "a network configuration has no such field")
    if network.get("ipPools"):
        note(f"spec.{source.operator_network}.ipPools", "pools are objects of the datastore: --as pools converts them")
    chained = [name for name in CHAINED if name != "portmap" or _SWITCH.get(network.get("hostPorts") or "Enabled")]
    others = (
        [{"type": TUNING, "sysctl": {each["key"]: each["value"] for each in network["sysctl"]}}]
        if network.get("sysctl")
        else []
    )
    return dict(json.loads(installation.render(entry, chained, CNI_VERSION, target, others)))


def from_netconf(plugin: Json, others: Sequence[Json], renaming: Renaming, note: Note) -> Json:
    """Return the resource that stands for a network configuration with these chained plugins."""
    source, target = renaming.source, renaming.target
    ipam = plugin.get("ipam") or {}
    is_host_local = ipam.get("type") == host_local.TYPE
    spec: Json = {
        "cni": {
            "type": target.operator_plugin,
            "ipam": {"type": HOST_LOCAL if is_host_local else target.operator_plugin},
        }
    }
    spec[target.operator_network] = _operator_network(plugin, others, note, is_host_local=is_host_local)
    if logging := _operator_logging(plugin):
        spec["logging"] = {"cni": logging}
    for path in _without_equivalent(plugin, source):
        note(path, "the operator's resource has no such field")
    for other in others:
        if type_of(other) not in (*CHAINED, TUNING):
            note(f"plugin {type_of(other)!r}", "the operator chains only portmap, bandwidth and tuning")
    if plugin.get("datastore_type", "etcdv3") not in (source.orch_datastore, *_WORDS):
        note("datastore_type", "the operator keeps addresses in the Kubernetes API")
    return _resource(spec, target)


def _resource(spec: Json, names: Names) -> Json:
    """Return the operator's resource with a spec."""
    metadata = {"name": NAME}
    return {"apiVersion": names.operator_api_version, "kind": KIND, "metadata": metadata, "spec": spec}


def _bytes(document: Document) -> bytes:
    return json.dumps(document.content).encode()


def _read(document: Document, names: Names) -> operator_resource.OperatorSettings:
    return operator_resource.read(_bytes(document), document.title.strip(": "), names)


def _renamed(spec: Mapping[str, Any], source: Names, target: Names) -> Json:
    result = {target.operator_network if name == source.operator_network else name: value for name, value in spec.items()}
    if isinstance(cni := result.get("cni"), dict):
        ipam = dict(cni.get("ipam") or {})
        kind = ipam.pop("plugin", None)  # the other spelling of `type`
        ipam = {"type": kind, **ipam} if kind is not None else ipam
        values = {source.operator_plugin: target.operator_plugin}
        renamed = {**cni, "ipam": {**ipam, "type": values.get(ipam["type"], ipam["type"])}} if "type" in ipam else dict(cni)
        result["cni"] = {**renamed, **({"type": values.get(cni["type"], cni["type"])} if "type" in cni else {})}
    return result


def _pool(pool: Json, renaming: Renaming) -> Json:
    selector = pool.get("nodeSelector")
    return {**pool, "nodeSelector": renaming.selector(selector)} if isinstance(selector, str) else pool


def _unread(spec: Mapping[str, Any], network: str) -> Iterator[str]:
    """Yield the paths of fields that have no meaning for the plugin."""
    known: dict[str, Sequence[str]] = {network: _OF_NETWORK, "cni": ("type", "ipam"), "logging": ("cni",)}
    for name, value in spec.items():
        if name not in known:
            yield name
        elif isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in value if inner not in known[name])


def _network_fields(place: str, network: Mapping[str, Any]) -> Json:
    """Return the fields of the network configuration for those of the operator's network. Raise CallerError."""
    errors = FieldErrors("nothing was converted", Code.INVALID_NETCONF)
    found: Json = {}
    if (mtu := network.get("mtu")) is not None:
        found["mtu"] = mtu
    for name in ("containerIPForwarding", "hostPorts"):
        if network.get(name) not in (None, *_SWITCH):
            errors.add(f"{place}.{name}", network[name], "is not known", f"give {' or '.join(_SWITCH)}")
    if _SWITCH.get(network.get("containerIPForwarding") or ""):
        found["container_settings"] = {"allow_ip_forwarding": True}
    given = network.get("sysctl") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) and {"key", "value"} <= each.keys() for each in given):
        errors.add(f"{place}.sysctl", given, "is not a list of settings", "give objects with key and value")
    errors.raise_if_any()
    return found


def _log_fields(place: str, given: Any) -> Json:
    """Return the fields of the network configuration for those of `logging.cni`. Raise CallerError."""
    errors = FieldErrors("nothing was converted", Code.INVALID_NETCONF)
    logging = object_at(place, given, errors)
    found = {field: logging[name] for name, field in _LOGGING.items() if logging.get(name) is not None}
    if "log_level" in found:
        found["log_level"] = str(found["log_level"]).upper()
    if "log_file_max_size" in found:
        size = _bytes_of(found["log_file_max_size"])
        if not size:
            errors.add(f"{place}.logFileMaxSize", found["log_file_max_size"], "is not a size", "give one such as 100Mi")
        found["log_file_max_size"] = max(size // _MIB, 1)
    errors.raise_if_any()
    return found


def _bytes_of(size: Any) -> int:
    """Return the bytes of a size such as 100Mi; 0 if it is not one."""
    match = re.fullmatch(r"([1-9][0-9]*)(Ki|Mi|Gi)?", str(size))
    return int(match[1]) * _SUFFIXES[match[2] or ""] if match else 0


def _operator_network(plugin: Json, others: Sequence[Json], note: Note, *, is_host_local: bool) -> Json:
    types = [type_of(other) for other in others]
    network: Json = {"hostPorts": "Enabled" if "portmap" in types else "Disabled"}
    forwarding = lookup(plugin, "container_settings.allow_ip_forwarding")
    network |= {} if forwarding is None else {"containerIPForwarding": "Enabled" if forwarding else "Disabled"}
    for name, field in (("mtu", "mtu"), ("linuxPolicySetupTimeoutSeconds", "policy_setup_timeout_seconds")):
        if plugin.get(field):
            network[name] = plugin[field]
    settings = next((other.get("sysctl") or {} for other in others if type_of(other) == TUNING), {})
    network |= {"sysctl": [{"key": key, "value": value} for key, value in settings.items()]} if settings else {}
    return network | {"ipPools": _operator_pools(plugin.get("ipam") or {}, note, is_host_local=is_host_local)}


def _operator_pools(ipam: Json, note: Note, *, is_host_local: bool) -> list[Json]:
    """Return the pools that the configuration names by their range; the operator assigns the families of its pools."""
    found: list[Json] = []
    for family, default in ((4, "true"), (6, "false")):
        given = [str(pool) for pool in ipam.get(f"ipv{family}_pools") or ()]
        found += [{"cidr": pool} for pool in given if "/" in pool]
        for pool in given:
            if "/" not in pool:
                note(f"ipam.ipv{family}_pools", f"the resource lists ranges, and {pool!r} is a name: add its pool to ipPools")
        is_assigned = ipam.get(f"assign_ipv{family}", default) == "true"
        if is_assigned and not is_host_local and not any("/" in pool for pool in given):
            note(f"ipam.assign_ipv{family}", f"the operator assigns IPv{family} if ipPools has such a pool: add one")
    if is_host_local:
        note("ipam.ranges", "the operator takes the families of the node's ranges from ipPools: add a pool of each family")
    return found


def _operator_logging(plugin: Json) -> Json:
    found = {name: plugin[field] for name, field in _LOGGING.items() if plugin.get(field)}
    if "logSeverity" in found:
        found["logSeverity"] = str(found["logSeverity"]).capitalize()
    if "logFileMaxSize" in found:
        found["logFileMaxSize"] = f"{found['logFileMaxSize']}Mi"
    return found


def _without_equivalent(plugin: Json, names: Names) -> Iterator[str]:
    """Yield the fields that the operator's resource cannot express. It derives the access to the Kubernetes API itself."""
    derived = {"name", "cniVersion", "type", "datastore_type", "policy", "log_file_path", names.orch_section, *_WORDS}
    derived |= {"nodename_file_optional", "endpoint_status_dir", "capabilities", "runtimeConfig"}
    expressed = {"mtu", "policy_setup_timeout_seconds", *_LOGGING.values()}
    for name, value in plugin.items():
        if name == "ipam":
            known = ("type", "assign_ipv4", "assign_ipv6", "ipv4_pools", "ipv6_pools", "ranges", "subnet")
            yield from (f"ipam.{inner}" for inner in value if inner not in known)
        elif name == "container_settings":
            yield from (f"container_settings.{inner}" for inner in value if inner != "allow_ip_forwarding")
        elif name not in derived | expressed:
            yield name
