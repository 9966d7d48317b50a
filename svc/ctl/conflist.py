"""The network list that a container runtime reads: our plugin and those chained to it, in a version that all of them speak."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from svc.attach.plugin_exec import supported_versions
from svc.model import versions
from svc.model.errors import CallerError, Code, PeerError
from svc.names import Names
from svc.netconf import netconf as netconfs

Json = dict[str, Any]

CHAINED: Final[Mapping[str, Json]] = {
    "portmap": {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
    "bandwidth": {"type": "bandwidth", "capabilities": {"bandwidth": True}},
}


def default_entry(names: Names, datastore: str, node: str, kubeconfig: str) -> Json:
    """Our plugin's part, where the user gives none; an empty node name means the host's."""
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
    """The document; `others` are plugins behind those that we know. CallerError when our plugin would refuse its part."""
    network = str(entry.get("name") or names.network)
    netconfs.read(entry | {"name": network, "cniVersion": version}, names)
    own = {key: value for key, value in entry.items() if key not in ("name", "cniVersion", "plugins")}
    document = {"cniVersion": version, "name": network, "plugins": [own, *(CHAINED[name] for name in chained), *others]}
    return json.dumps(document, indent=2).encode() + b"\n"


def common_version(programs: Mapping[str, Path], at_most: str = versions.LATEST) -> str:
    """The newest version of the specification that all plugins speak, and no newer than `at_most`.

    PeerError when there is none, or a plugin does not answer.
    """
    told_by = {name: supported_versions(path) for name, path in programs.items()}
    common = frozenset.intersection(*told_by.values())
    allowed = [version for version in common if versions.at_least(at_most, version)]
    if not allowed:
        told = "; ".join(f"{name}: {', '.join(sorted(known))}" for name, known in told_by.items())
        raise PeerError(
            f"the plugins {', '.join(programs)} have no CNI version up to {at_most} in common",
            details=f"install others, or leave one out with --without; they speak {told}",
            code=Code.INCOMPATIBLE_VERSION,
        )
    return max(allowed, key=versions.parse)


def find_plugins(names: Sequence[str], folders: Sequence[Path]) -> dict[str, Path]:
    """Each in the first folder that has it. CallerError for those that are nowhere."""
    found = {name: folder / name for name in names for folder in reversed(folders) if (folder / name).is_file()}
    missing = [name for name in names if name not in found]
    if missing:
        raise CallerError(
            f"plugins {', '.join(missing)} are not in {', '.join(map(str, folders))}",
            details="install them there, name their folder in CNI_PATH, or leave them out with --without",
        )
    return found
