"""Conversion between the operator's resource `Installation` and network configurations and pools, both ways."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from svc.admin import operator_resource
from svc.admin.columns import lookup
from svc.admin.convert import Note
from svc.admin.documents import Document
from svc.admin.installation import CHAINED
from svc.admin.installation_resource import rules
from svc.admin.installation_resource.network import LOGGING, TUNING, default_entry, network_list
from svc.admin.renaming import Renaming
from svc.model.errors import Code
from svc.model.field_errors import FieldErrors
from svc.model.installation import HOST_LOCAL, IPAM_KEYS, KIND, NAME, ipam_kind
from svc.model.pool import with_defaults
from svc.names import Names
from svc.netconf import host_local
from svc.netconf.networklist import type_of
from svc.values import replace

Json = dict[str, Any]

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
    """Return the network list that the resource stands for. Raise CallerError with every error of the fields that it needs."""
    source, target = renaming.source, renaming.target
    settings = _read(document, source)
    spec = document.content.get("spec") or {}
    known = {name: spec[name] for name in ("cni", source.operator_network, "logging") if name in spec}
    found = rules.check(known, source, together=False)
    errors = FieldErrors("nothing was converted", Code.INVALID_NETCONF)
    errors.found += [replace(error, field=f"{document.title}{error.field}") for error in found]
    errors.raise_if_any()
    for path in _unread(spec, source.operator_network):
        note(f"spec.{path}", "a network configuration has no such field")
    if (spec.get(source.operator_network) or {}).get("ipPools"):
        note(f"spec.{source.operator_network}.ipPools", "pools are objects of the datastore: --as pools converts them")
    return network_list(spec, settings.applied(default_entry(target)), target, source.operator_network)


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
        kind = ipam_kind(ipam)
        ipam = ({} if kind is None else {"type": kind}) | {key: value for key, value in ipam.items() if key not in IPAM_KEYS}
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
    found = {name: plugin[field] for name, field in LOGGING.items() if plugin.get(field)}
    if "logSeverity" in found:
        found["logSeverity"] = str(found["logSeverity"]).capitalize()
    if "logFileMaxSize" in found:
        found["logFileMaxSize"] = f"{found['logFileMaxSize']}Mi"
    return found


def _without_equivalent(plugin: Json, names: Names) -> Iterator[str]:
    """Yield the fields that the operator's resource cannot express. It derives the access to the Kubernetes API itself."""
    derived = {"name", "cniVersion", "type", "datastore_type", "policy", "log_file_path", names.orch_section, *_WORDS}
    derived |= {"nodename_file_optional", "endpoint_status_dir", "capabilities", "runtimeConfig"}
    expressed = {"mtu", "policy_setup_timeout_seconds", *LOGGING.values()}
    for name, value in plugin.items():
        if name == "ipam":
            known = ("type", "assign_ipv4", "assign_ipv6", "ipv4_pools", "ipv6_pools", "ranges", "subnet")
            yield from (f"ipam.{inner}" for inner in value if inner not in known)
        elif name == "container_settings":
            yield from (f"container_settings.{inner}" for inner in value if inner != "allow_ip_forwarding")
        elif name not in derived | expressed:
            yield name
