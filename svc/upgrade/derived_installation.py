"""The Installation that stands for a deployment by manifests, and what of that deployment it cannot stand for."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from svc.admin.installation_resource.network import CONF_DIR, LOGGING, TUNING
from svc.model import installation as shape
from svc.model.resource import Resource
from svc.names import Names
from svc.netconf import host_local
from svc.upgrade.object_states import differences
from svc.values import dataclass

Json = dict[str, Any]

_PER_NODE: Final = frozenset({"nodename"})  # what the operator leaves to the installer


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the operator would add to the network list, and what it would change. A change forbids the move."""

    added: tuple[str, ...]
    changed: tuple[str, ...]


def derive(network: Json, pools: Iterable[Resource], variables: Mapping[str, str], names: Names) -> Json:
    """Return the spec of the Installation for a network list, the pools of the datastore, and the agent's variables."""
    entry = _entry(network, names)
    is_host_local = (entry.get("ipam") or {}).get("type") == host_local.TYPE
    own = names.operator_plugin
    listed = [] if is_host_local else [_without_empty(shape.entry_of(pool)) for pool in pools]
    section: Json = {"bgp": _bgp(listed, variables, is_host_local=is_host_local)}
    section |= {} if is_host_local else {"ipPools": listed}
    section |= {"mtu": entry["mtu"]} if entry.get("mtu") is not None else {}
    if (seconds := entry.get("policy_setup_timeout_seconds")) is not None:
        section[shape.SECONDS] = seconds
    if (entry.get("container_settings") or {}).get("allow_ip_forwarding"):
        section["containerIPForwarding"] = shape.ENABLED
    if settings := _sysctls(network):
        section["sysctl"] = settings
    cni: Json = {"type": own, "ipam": {"type": shape.HOST_LOCAL if is_host_local else own}}
    folder = str(PurePosixPath(str((entry.get(names.orch_section) or {}).get("kubeconfig") or CONF_DIR + "/x")).parent)
    cni |= {"confDir": folder} if folder != CONF_DIR else {}
    cni |= {"specVersion": network["cniVersion"]} if network.get("cniVersion") in shape.SPEC_VERSIONS else {}
    spec: Json = {"variant": own, "cni": cni, names.operator_network: section}
    if logging := _logging(entry):
        spec["logging"] = {"cni": logging}
    return spec


def compare(live: Json, rendered: Json, names: Names) -> Comparison:
    """Compare the network list of the cluster with the one that the operator would write."""
    before, after = _entry(live, names), _entry(rendered, names)
    found = list(differences(_spelled(before), _spelled(after)))
    found += differences(_chained(live), {name: each for name, each in _chained(rendered).items() if name in _chained(live)})
    found += differences(_head(live), _head(rendered))
    added = [f"{field}: {new!r} is added" for field, old, new in found if old is None]
    changed = [
        f"the network list has {field} = {old!r}, and the operator would write {new!r}"
        for field, old, new in found
        if old is not None and field not in _PER_NODE
    ]
    added += [f"plugin {name} is added" for name in _chained(rendered) if name not in _chained(live)]
    added += [f"{field}: {old!r} is left to the installer" for field, old, _ in found if field in _PER_NODE and old is not None]
    return Comparison(tuple(added), tuple(changed))


def without_field(workload: str, expected: Json, live: Json) -> Iterator[str]:
    """Yield a sentence for each difference of a spec from that of its manifest: the Installation has no field for it."""
    for path, wanted, found in differences(expected, live, "spec"):
        yield f"{workload}: {path} is {found!r}, the manifest says {wanted!r}, and the Installation has no field for it"


def network_of(text: str, names: Names) -> Json:
    """Return the network list of a ConfigMap. Raise ValueError if it cannot be read, or if it has no part of svc."""
    found = json.loads(text)
    plugins = found.get("plugins") if isinstance(found, dict) else None
    if not isinstance(plugins, list) or not all(isinstance(each, dict) for each in plugins):
        raise ValueError("it is not a network list")
    entry = _entry(found, names)
    for field in ("ipam", "container_settings", names.orch_section):
        if not isinstance(entry.get(field) or {}, dict):
            raise ValueError(f"{field} is {entry[field]!r}, which is not an object")
    if not isinstance(_chained(found).get(TUNING, {}).get("sysctl") or {}, dict):
        raise ValueError(f"the sysctl of {TUNING} is not an object")
    return dict(found)


def _entry(network: Json, names: Names) -> Json:
    for each in network["plugins"]:
        if each.get("type") == names.plugin:
            return dict(each)
    raise ValueError(f"it has no plugin of type {names.plugin}")


def _head(network: Json) -> Json:
    """Return the fields of a list beside its plugins."""
    return {field: value for field, value in network.items() if field != "plugins"}


def _chained(network: Json) -> Json:
    return {str(each.get("type")): each for each in network["plugins"][1:]}


def _spelled(entry: Json) -> Json:
    """Return an entry in which both spellings of the ranges of host-local are the same."""
    ipam = dict(entry.get("ipam") or {})
    if "subnet" in ipam:
        ipam["ranges"] = [[{"subnet": ipam.pop("subnet")}]]
    return {**entry, "ipam": ipam}


def _sysctls(network: Json) -> list[Json]:
    settings = _chained(network).get(TUNING, {}).get("sysctl") or {}
    return [{"key": key, "value": value} for key, value in settings.items()]


def _logging(entry: Json) -> Json:
    found = {name: entry[field] for name, field in LOGGING.items() if entry.get(field) is not None}
    if "logSeverity" in found:
        found["logSeverity"] = str(found["logSeverity"]).capitalize()
    if "logFileMaxSize" in found:
        found["logFileMaxSize"] = f"{found['logFileMaxSize']}Mi"
    return found


def _bgp(pools: Sequence[Json], variables: Mapping[str, str], *, is_host_local: bool) -> str:
    """Return whether BGP is used: as the variables say, and where pools need it."""
    needs = not is_host_local and not all(pool["encapsulation"].startswith("VXLAN") for pool in pools)
    return shape.ENABLED if needs or "bgp" in variables.get("CLUSTER_TYPE", "").split(",") else shape.DISABLED


def _without_empty(entry: Json) -> Json:
    return {name: value for name, value in entry.items() if value not in (None, "", [])}
