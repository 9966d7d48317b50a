"""The network list that an Installation stands for."""

import json
from collections.abc import Mapping
from typing import Any, Final

from svc.admin import installation
from svc.admin.installation import CHAINED
from svc.admin.installation_resource.rules import mebibytes
from svc.model import installation as shape
from svc.names import Names

Json = dict[str, Any]

CONF_DIR: Final = "/etc/cni/net.d"
CNI_VERSION: Final = "1.0.0"  # the newest that the chained plugins of all supported systems have
TUNING: Final = "tuning"
LOGGING: Final = {  # fields of logging.cni, and those of the network configuration
    "logSeverity": "log_level",
    "logFileMaxSize": "log_file_max_size",
    "logFileMaxAgeDays": "log_file_max_age",
    "logFileMaxCount": "log_file_max_count",
}


def default_entry(names: Names, conf_dir: str = CONF_DIR) -> Json:
    """Return the part of svc for a cluster whose datastore is the Kubernetes API, before the resource is applied."""
    return installation.default_entry(names, "orch", "", f"{conf_dir}/{names.plugin}-kubeconfig")


def network_list(spec: Mapping[str, Any], entry: Json, names: Names, network_key: str) -> Json:
    """Return the list with the part `entry` of svc, completed by a valid spec. `network_key` is its section of the network."""
    network = spec.get(network_key) or {}
    entry = entry | _network_fields(network) | _log_fields((spec.get("logging") or {}).get("cni") or {})
    chained = [name for name in CHAINED if name != "portmap" or shape.SWITCH[network.get("hostPorts") or shape.ENABLED]]
    settings = {each["key"]: each["value"] for each in network.get("sysctl") or ()}
    others = [{"type": TUNING, "sysctl": settings}] if settings else []
    version = (spec.get("cni") or {}).get("specVersion") or shape.AUTO
    rendered = installation.render(entry, chained, CNI_VERSION if version == shape.AUTO else version, names, others)
    return dict(json.loads(rendered))


def _network_fields(network: Mapping[str, Any]) -> Json:
    found: Json = {"mtu": network["mtu"]} if network.get("mtu") is not None else {}
    if shape.SWITCH[network.get("containerIPForwarding") or shape.DISABLED]:
        found["container_settings"] = {"allow_ip_forwarding": True}
    return found


def _log_fields(logging: Mapping[str, Any]) -> Json:
    found = {field: logging[name] for name, field in LOGGING.items() if logging.get(name) is not None}
    if "log_level" in found:
        found["log_level"] = found["log_level"].upper()
    if "log_file_max_size" in found:
        found["log_file_max_size"] = mebibytes(found["log_file_max_size"])
    return found
