"""What `svcctl install` installs: the executables, units of systemd, and a network list with access to the Kubernetes API.

The kubeconfig names a file with the token of the plugin's account, and seldom changes. `svcctl install --watch` renews the
token (`svc.admin.token_keeper`). Clients that open the file again have a valid token.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from svc.admin import units
from svc.admin.account_access import Access, kubeconfig_name
from svc.admin.account_token import obtain_or_keep
from svc.admin.install_records import (
    OtherInstallations,
    digest_of,
    is_same,
    known_files,
    other_installations,
    record_paths,
    recorded_settings,
    recorded_wait,
    repairs,
)
from svc.admin.installer import InstallSettings, Outcome, find_executable, require_own_list
from svc.admin.installer import install as install_files
from svc.admin.netconf_tokens import completed
from svc.atomic_file import File, write
from svc.attach.plugin_exec import supported_versions
from svc.cni.install_record import SOCKET_NAME
from svc.datastore.open import require_packages
from svc.deploy.systemd import HOST_LOCAL_DIR, directory_line, make_directories, plugin_of
from svc.model import cni_versions
from svc.model.errors import CallerError, Code, PeerError
from svc.model.field_errors import MISSING
from svc.names import Names
from svc.netconf import netconf as netconfs
from svc.netconf.fields import FILE_OPTIONS
from svc.netconf.installed import FILE_NAME, Installed, add_installed, remove_installed
from svc.netconf.networklist import check_file, read_file, read_others, read_plugin
from svc.orch.pod_cidrs import config_warning
from svc.values import dataclass, replace

Json = dict[str, Any]
Warn = Callable[[str], None]

CHAINED: Final[Mapping[str, Json]] = {
    "portmap": {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
    "bandwidth": {"type": "bandwidth", "capabilities": {"bandwidth": True}},
}
_FOREIGN: Final = ("ipMasq", "isGateway", "dns", "args.cni.ips")
_FOREIGN_IPAM: Final = ("ipam.subnet", "ipam.ranges", "ipam.routes")
_LISTS: Final = (".conf", ".conflist", ".json")  # suffixes of the files that runtimes read
_WITH_GC: Final = "1.1.0"
_NEWER_PLUGINS: Final = (
    "install containernetworking-plugins 1.6.0 or newer, or leave plugins out with --without, and repeat this"
)


@dataclass(frozen=True, slots=True)
class Installation:
    """The contents and the places of an installation. The directories are absolute. `conf_dir` is None to configure no network.

    `netconf` is a user's part of the network list, `installation` the operator's resource. `host_conf_dir` is the path of
    `conf_dir` on the host. Without `wait`, the record keeps what it has."""

    names: Names
    profile: str
    state_dir: Path
    run_dir: Path
    bin_dir: Path
    conf_dir: Path | None
    host_conf_dir: Path | None
    unit_dir: Path | None
    datastore: str
    netconf: Path | None
    installation: Path | None
    without: tuple[str, ...]
    cni_version: str | None
    service_account: Path | None
    socket: Path | None
    executable: Path | None
    systemd: bool
    wait: int | None = None
    routes: bool = False

    @property
    def network_list(self) -> Path | None:
        return self.conf_dir / self.names.conflist if self.conf_dir else None

    @property
    def record(self) -> Installed:
        """Return the entry for the record of the state directory."""
        executables = tuple(str(self.bin_dir / name) for name in (self.names.plugin, self.names.ipam_plugin))
        host_dir = self.host_conf_dir or self.conf_dir
        lists = [str(folder / self.names.conflist) if folder else "" for folder in (self.conf_dir, host_dir)]
        return Installed(self.profile, str(self.bin_dir), executables, *lists)

    @property
    def access(self) -> Access | None:
        """The access to the Kubernetes API that the installation gives to the node, if it gives one."""
        if not self.conf_dir or self.datastore != "orch":
            return None
        account = self.service_account or Path(f"/var/run/secrets/{self.names.orch_domain}/serviceaccount")
        return Access(account, os.environ, self.conf_dir, self.names)

    def credentials(self, folder: Path) -> list[File]:
        """Return kubeconfig and token of the account itself for `folder`, if they are needed. Raise as `Access.files`."""
        access = self.access
        return replace(access, conf_dir=folder).files() if access else []

    def reachable(self, settings: dict[str, str], folder: Path) -> dict[str, str]:
        """Return settings of the network's datastore that work before the installation: with its credentials in `folder`."""
        files, name = self.credentials(folder), kubeconfig_name(self.names)
        for file in files:
            write(file)
        installed = {str(each / name) for each in (self.conf_dir, self.host_conf_dir) if each} if files else set()
        return settings | ({"kubeconfig": str(folder / name)} if settings.get("kubeconfig") in installed else {})

    def read_netconf(self, folder: Path) -> tuple[Json, netconfs.NetConf]:
        """Return the part of svc in the network list, with a kubeconfig in `folder`; as JSON and decoded."""
        if self.netconf:
            check_file(self.netconf)
            entry = completed(read_plugin(self.netconf, self.names), os.environ, str(self.netconf))
        else:
            node, access = os.environ.get("KUBERNETES_NODE_NAME", ""), str(folder / kubeconfig_name(self.names))
            entry = default_entry(self.names, self.datastore, node, access)
        if self.installation:
            from svc.admin import operator_resource  # few installations have an operator

            document = operator_resource.read_checked(read_file(self.installation), str(self.installation), self.names)
            entry = operator_resource.settings_of(document["spec"], self.names).applied(entry)
        netconf = netconfs.read(entry | {"name": self.names.network}, self.names)
        if (settings := netconf.datastore.to_json())["kind"] == "etcdv3":
            from svc.datastore.etcd.settings import require_urls  # few networks have etcd

            require_urls(settings)
        return entry, netconf


def install(wanted: Installation, warn: Warn, prepare: Callable[[], None]) -> list[Outcome]:
    """Install and record all files, each atomically; return what was done to each.

    Call `prepare` when all is valid, before the first file. Raise CallerError, or an error of `prepare`, before a file is
    written, PeerError if a file cannot be written."""
    names = wanted.names
    for warning in repairs(wanted.bin_dir, names):
        warn(warning)
    _require_cluster(wanted)
    executable = wanted.executable or find_executable()
    earlier = _earlier_state_dir(wanted)
    others = other_installations(wanted.state_dir, wanted.profile, wanted.bin_dir)
    present = OtherInstallations([wanted.record, *others.entries])
    socket = wanted.socket or present.socket(wanted.run_dir) or wanted.run_dir / SOCKET_NAME
    python = Path(sys.executable)
    wait = recorded_wait(wanted.bin_dir, names) if wanted.wait is None else wanted.wait
    settings = InstallSettings(socket.absolute(), python, wanted.state_dir, wanted.run_dir, wanted.profile, wait)
    if wanted.network_list and not wanted.netconf:
        known = known_files(wanted.state_dir, record_paths(wanted.bin_dir, names)[0])
        require_own_list(wanted.network_list, known.get(wanted.network_list), names)
    log_dirs = sorted({Path(each.log_dir).parent for each in (names, *others.names())})
    writable = [*log_dirs, HOST_LOCAL_DIR, *([settings.socket.parent] if units.is_elsewhere(settings) else [])]
    folder = wanted.unit_dir or units.UNIT_DIR
    services = [units.of_agent(folder, names, settings, others, writable)] if wanted.systemd else []
    services += [units.of_routes(folder, names, settings)] if wanted.routes else []
    network = [*_access_files(wanted, warn), *_network_list(wanted, executable, warn)]
    outcomes = install_files(
        wanted.bin_dir, executable, names, settings, [*services, *network], prepare, lambda: [_recorded(wanted)]
    )
    if earlier != wanted.state_dir:
        remove_installed(earlier, wanted.profile, str(wanted.bin_dir))
    if services:
        make_directories([wanted.run_dir, *writable])
        name, names_of_all = services[0].path.name, " ".join(file.path.name for file in services)
        if plugin_of(name) != names.plugin:
            warn(f"note: {services[0].path} is the unit of the agent of these directories: it serves {names.plugin} too")
        start = f"systemctl daemon-reload && systemctl enable {names_of_all} && systemctl restart {names_of_all}"
        warn(f"start the agent with: {start}")
    return outcomes


def _require_cluster(wanted: Installation) -> None:
    """Raise CallerError if svc-routes is wanted for a network with the store of one node, which it refuses."""
    if not wanted.routes or not wanted.conf_dir:
        return
    kind = wanted.read_netconf(wanted.host_conf_dir or wanted.conf_dir)[1].datastore.kind
    if kind == "embedded":
        msg = f"--routes: the network has the store {kind!r} of one node, which needs no routes"
        raise CallerError(msg, details="leave --routes out, or give --netconf FILE with a datastore of the cluster")


def _recorded(wanted: Installation) -> Outcome:
    """Record the installation in the state directory. Raise the errors of `add_installed`."""
    is_new = add_installed(wanted.state_dir, wanted.record)
    return wanted.state_dir / FILE_NAME, "installed" if is_new else "unchanged"


def _earlier_state_dir(wanted: Installation) -> Path:
    """Return the state directory that the executables have until now. Raise CallerError if its attachments need them."""
    recorded = recorded_settings(wanted.bin_dir, wanted.names)
    state_dir = Path(recorded.get("state_dir", wanted.state_dir))
    if is_same(state_dir, wanted.state_dir):
        return wanted.state_dir
    from svc.admin.node_state import read_attachments  # few installations change the directory

    if attachments := read_attachments(state_dir, recorded.get("profile", "")):
        raise CallerError(
            f"executables in {str(wanted.bin_dir)!r} belong to state directory {str(state_dir)!r}, "
            f"which has {len(attachments)} attachments",
            details=f"give --state-dir {state_dir}, or delete these containers first",
        )
    return state_dir


def drop_log_directory(names: Names, others: OtherInstallations) -> None:
    """Remove the line of these names from the units of other installations, except modified ones. Raise OSError."""
    folder = Path(names.log_dir).parent
    is_used = any(Path(each.log_dir).parent == folder for each in others.names())
    for unit in () if is_used else others.units():
        data = unit.read_bytes()
        if others.digests[unit] == digest_of(data):
            file = File(unit, data.replace(os.fsencode(f"{directory_line(folder)}\n"), b""), 0o644)
            for changed in (file, *others.updated({unit: digest_of(file.data)})):
                write(changed)


def _access_files(wanted: Installation, warn: Warn) -> list[File]:
    """Return token and kubeconfig, if the network needs them. Raise SvcError if they cannot be had."""
    access = wanted.access
    if access is None:
        return []
    try:
        access.files()
    except CallerError as error:
        if wanted.netconf:
            error.details = "leave --datastore orch out: the file given with --netconf names the datastore"
        raise
    return access.files(obtain_or_keep(access, warn).text)


def _network_list(wanted: Installation, executable: Path, warn: Warn) -> list[File]:
    if not wanted.conf_dir:
        return []
    names = wanted.names
    chained = [name for name in CHAINED if name not in wanted.without]
    others = read_others(wanted.netconf, {names.plugin, *CHAINED}) if wanted.netconf else []
    for plugin in others:
        supported = " and ".join(CHAINED)
        warn(f"warning: plugin {plugin['type']!r} is kept in the chain, but only {supported} are supported there")
    folders = [wanted.bin_dir, *(Path(folder) for folder in os.environ.get("CNI_PATH", "").split(":") if folder)]
    programs = {names.plugin: executable} | find_plugins([*chained, *(each["type"] for each in others)], folders)
    entry, netconf = wanted.read_netconf(wanted.host_conf_dir or wanted.conf_dir)
    asked = wanted.cni_version or entry.get("cniVersion")
    version = common_version(programs, asked or cni_versions.LATEST)
    document = render(entry, chained, version, names, others)
    require_packages(netconf.datastore.kind)
    if netconf.orchestrator and (netconf.policy or not netconf.ipam.is_delegated):  # an ADD reads pods or namespaces
        require_packages("orch")
    foreign = _FOREIGN if netconf.ipam.is_delegated else (*_FOREIGN, *_FOREIGN_IPAM)
    if ignored := [path for path in foreign if netconfs.lookup(entry, path) is not MISSING]:
        warn(f"warning: the network has fields of other plugins, which svc ignores: {', '.join(ignored)}")
    for path in _missing_files(wanted, netconf):
        warn(f"warning: {path} does not exist: the network names it, and each ADD needs it")
    if warning := config_warning(netconf.ipam.type, netconf.datastore.kind, os.environ):
        warn(warning)
    if not cni_versions.at_least(version, _WITH_GC):
        limiting = " and ".join([*chained, *(each["type"] for each in others)])
        source = "--cni-version asks for" if wanted.cni_version else "--netconf asks for"
        cause, remedy = (source, "") if version == asked else (f"{limiting} allow only", f". For {_WITH_GC}: {_NEWER_PLUGINS}")
        warn(f"note: {cause} CNI {version}, so the runtime will not call GC and STATUS{remedy}")
    if earlier := _earlier_list(wanted.conf_dir, names.conflist):
        warn(f"warning: {earlier} comes before {names.conflist}, so the runtime uses that network: move it away")
    return [File(wanted.conf_dir / names.conflist, document, 0o600)]


def _earlier_list(conf_dir: Path, name: str) -> Path | None:
    """Return the network list of another program that runtimes take in place of the named one: they take the first by name."""
    if not conf_dir.is_dir():
        return None
    found = min((path.name for path in conf_dir.iterdir() if path.suffix in _LISTS), default=name)
    return conf_dir / found if found < name else None


def _missing_files(wanted: Installation, netconf: netconfs.NetConf) -> list[str]:
    """Return the kubeconfig, certificates and keys of the network that are missing; none if the host has other paths."""
    if wanted.host_conf_dir not in (None, wanted.conf_dir):
        return []
    installed = [str(wanted.access.kubeconfig)] if wanted.access else []
    settings = {
        **dict(netconf.orchestrator),
        **netconf.datastore.to_json(),
        "readiness_gates_ca_file": netconf.gates.trust.ca_file,
    }
    named = dict.fromkeys(path for name, path in settings.items() if name in FILE_OPTIONS and path)
    return [path for path in named if path not in installed and not Path(path).exists()]


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
    """Return the newest version up to `at_most` that all plugins support. Raise PeerError if none is, or if one fails."""
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
