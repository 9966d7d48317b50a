"""The datastore that svcctl works on: the one that the user names, else the one of the installed networks of this node.

In this order: `--embedded`, `--netconf`, `$SVC_NETCONF`, the network lists that `svcctl install` recorded in the state
directory, a network list in the runtime's directory (only with the default state directory, because others belong to other
agents), and the embedded store of the state directory.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from svc.datastore.open import EMBEDDED_FILE
from svc.model.errors import CallerError
from svc.model.field_errors import without_credentials
from svc.names import DEFAULT, Names
from svc.netconf.installed import InstalledNetwork, read_installed, read_networks
from svc.netconf.names_profiles import DEFAULT_NAME, load_profile
from svc.netconf.netconf import NetConf
from svc.netconf.networklist import check_file, find_lists, read_netconf
from svc.values import dataclass

NETWORKS: Final = Path("/etc/cni/net.d")
_EMBEDDED: Final = {"kind": "embedded"}


@dataclass(frozen=True, slots=True)
class Target:
    """A datastore's settings, the names in it, and the network configuration that they come from, if any."""

    names: Names
    settings: dict[str, str]
    state_dir: Path
    netconf: NetConf | None = None
    origin: str = ""

    @property
    def is_embedded(self) -> bool:
        return self.settings["kind"] == "embedded"

    @property
    def file(self) -> Path:
        """The file of an embedded store."""
        return self.state_dir / EMBEDDED_FILE

    def __str__(self) -> str:
        """Describe the datastore without credentials."""
        return f"{describe(self.settings, self.file)}{f', from {self.origin}' if self.origin else ''}"


@dataclass(frozen=True, slots=True)
class Given:
    """The user's choice: a names profile, a network configuration, or the embedded store of the state directory."""

    profile: str
    netconf: Path | None
    embedded: bool


def choose_target(given: Given, state_dir: Path) -> Target:
    """Return the datastore to work on. Raise CallerError if a file is invalid, or if several datastores qualify."""
    names = names_of(given, state_dir)
    if given.embedded:
        return Target(names, _EMBEDDED, state_dir, origin="--embedded")
    named, origin = _named(given, names)
    if named:
        check_file(named)
        netconf = read_netconf(named, names)
        return Target(names, netconf.datastore.to_json(), state_dir, netconf, origin)
    return _installed(names, state_dir) or _found(names, state_dir) or Target(names, _EMBEDDED, state_dir)


def names_of(given: Given, state_dir: Path) -> Names:
    """Return the names of `--names`, else those of the installation. Raise CallerError if several profiles are installed."""
    if given.profile or _named(given, DEFAULT)[0]:
        return load_profile(given.profile)
    profiles = list(dict.fromkeys(entry.profile for entry in read_installed(state_dir)))
    if len(profiles) > 1:
        listed = ", ".join(profile or DEFAULT_NAME for profile in profiles)
        raise CallerError(f"several names profiles are installed: {listed}", details="choose one with --names")
    return load_profile(profiles[0] if profiles else "")


def _named(given: Given, names: Names) -> tuple[Path | None, str]:
    """Return the file that the user names, and how."""
    if given.netconf:
        return given.netconf, str(given.netconf)
    for variable in dict.fromkeys(f"{prefix}NETCONF" for prefix in (names.environment_prefix, DEFAULT.environment_prefix)):
        if path := os.environ.get(variable):
            return Path(path), f"{path}, which ${variable} names"
    return None, ""


def _installed(names: Names, state_dir: Path) -> Target | None:
    networks, errors = read_networks(state_dir)
    if errors:
        raise CallerError(
            f"an installed network cannot be used: {errors[0].msg}",
            details=f"{errors[0].details}; or repeat `svcctl install --bin-dir DIR --conf-dir DIR`, or give --netconf",
            code=errors[0].code,
        )
    return _only([network for network in networks if network.names == names], state_dir)


def _found(names: Names, state_dir: Path) -> Target | None:
    if state_dir != Path(DEFAULT.state_dir):
        return None
    lists = find_lists(NETWORKS, names)
    return _only([InstalledNetwork(path, "", names, read_netconf(path, names)) for path in lists], state_dir)


def _only(networks: Sequence[InstalledNetwork], state_dir: Path) -> Target | None:
    """Return the datastore that all networks have in common."""
    if not networks:
        return None
    first = networks[0]
    if any(network.netconf.datastore != first.netconf.datastore for network in networks):
        listed = ", ".join(str(network.path) for network in networks)
        raise CallerError(f"the networks of this node have several datastores: {listed}", details="name one with --netconf")
    return Target(first.names, first.netconf.datastore.to_json(), state_dir, first.netconf, str(first.path))


def describe(settings: dict[str, str], file: Path) -> str:
    """Name a datastore without credentials; `file` is that of an embedded one."""
    match settings["kind"]:
        case "embedded":
            return f"embedded store {file}"
        case "etcdv3":
            return f"etcd {_servers(settings)}"
    if root := settings.get("orch_api_root"):
        return f"Kubernetes API {without_credentials(root)}"
    kubeconfig = settings.get("kubeconfig")
    return f"Kubernetes API of kubeconfig {kubeconfig}" if kubeconfig else "Kubernetes API of this pod's service account"


def _servers(settings: dict[str, str]) -> str:
    if domain := settings.get("etcd_discovery_srv"):
        return f"by the SRV records of {domain}"
    deprecated = f"{settings.get('etcd_scheme', 'http')}://{settings.get('etcd_authority', '127.0.0.1:2379')}"
    return without_credentials(settings.get("etcd_endpoints") or deprecated)
