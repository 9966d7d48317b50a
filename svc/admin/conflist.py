"""The network list that a container runtime reads: svc and the plugins chained to it, in a version that all support."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from svc.attach.plugin_exec import supported_versions
from svc.model import cni_versions
from svc.model.errors import CallerError, Code, PeerError
from svc.names import Names
from svc.netconf import netconf as netconfs

Json = dict[str, Any]

CHAINED: Final[Mapping[str, Json]] = {
    "portmap": {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
    "bandwidth": {"type": "bandwidth", "capabilities": {"bandwidth": True}},
}


def default_entry(names: Names, datastore: str, node: str, kubeconfig: str) -> Json:
    """Return the part of svc if the user gives none. If the node name is empty, the host's counts."""
    entry: Json = {
        "type": names.plugin,
        "datastore_type": names.orch_datastore if datastore == "orch" else datastore,
        "log_file_path": f"{names.log_dir}/cni.log",
        "ipam": {"type": names.ipam_plugin},
    }
    entry |= {"nodename": node} if node else {}
    if datastore == "orch":
        entry |= {"policy": {"type": names.orch_policy}, names.orch_section: {"kubeconfig": kubeconfig}}
    return entry


def render(entry: Json, chained: Sequence[str], version: str, names: Names, others: Sequence[Json] = ()) -> bytes:
    """Return the document; `others` are further plugins at its end. Raise CallerError if svc would refuse its part."""
    network = str(entry.get("name") or names.network)
    netconfs.read(entry | {"name": network, "cniVersion": version}, names)
    own = {key: value for key, value in entry.items() if key not in ("name", "cniVersion", "plugins")}
    document = {"cniVersion": version, "name": network, "plugins": [own, *(CHAINED[name] for name in chained), *others]}
    return json.dumps(document, indent=2).encode() + b"\n"


def common_version(programs: Mapping[str, Path], at_most: str = cni_versions.LATEST) -> str:
    """Return the newest version of the specification that all plugins support, `at_most` or older.

    Raise PeerError if there is none, or if a plugin does not answer."""
    supported = {name: supported_versions(path) for name, path in programs.items()}
    common = frozenset.intersection(*supported.values())
    allowed = [version for version in common if cni_versions.at_least(at_most, version)]
    if not allowed:
        listed = "; ".join(f"{name}: {', '.join(sorted(known))}" for name, known in supported.items())
        raise PeerError(
            f"the plugins {', '.join(programs)} have no CNI version up to {at_most} in common",
            details=f"install others, or leave one out with --without; they speak {listed}",
            code=Code.INCOMPATIBLE_VERSION,
        )
    return max(allowed, key=cni_versions.parse)


def find_plugins(names: Sequence[str], folders: Sequence[Path]) -> dict[str, Path]:
    """Return the path of each plugin in the first folder that has it. Raise CallerError for those that no folder has."""
    found = {name: folder / name for name in names for folder in reversed(folders) if (folder / name).is_file()}
    missing = [name for name in names if name not in found]
    if missing:
        raise CallerError(
            f"plugins {', '.join(missing)} are not in {', '.join(map(str, folders))}",
            details="install them there, name their folder in CNI_PATH, or leave them out with --without",
        )
    return found
