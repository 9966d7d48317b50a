"""svcctl install."""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from svc.admin import conflist, kubeconfig
from svc.admin.install_records import Others, known_files, other_installations, record_paths
from svc.admin.installer import InstallSettings, Outcome, find_executable, require_directories
from svc.admin.installer import install as install_files
from svc.admin.originals import require_own_list
from svc.atomic_file import File, write
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.cli_context import CliContext, names_option
from svc.ctl.target import Target
from svc.deploy.systemd import AgentUnit, unit_name
from svc.model import cni_versions
from svc.model.errors import SvcError
from svc.names import Names
from svc.netconf import netconf as netconfs
from svc.netconf.installed import FILE_NAME, Installed, add_installed
from svc.netconf.names_profiles import canonical
from svc.netconf.networklist import check_file, read_file, read_others, read_plugin
from svc.orch.pod_cidrs import config_warning
from svc.values import dataclass

if TYPE_CHECKING:
    from svc.admin.operator_installation import Listing  # few installations have an operator

_EMBEDDED = "embedded"
WATCH_SECONDS = 1.0  # between reads of the service account: two small files
_WITH_GC = "1.1.0"
_NEWER_PLUGINS = "install containernetworking-plugins 1.6.0 or newer, or leave plugins out with --without, and repeat this"
UNIT_DIR = Path("/etc/systemd/system")
_SUPPORTED = " and ".join(conflist.CHAINED)
_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command."""

    bin_dir: Path
    conf_dir: Path | None
    host_conf_dir: Path | None
    datastore: str
    netconf: Path | None
    installation: Path | None
    apply_pools: bool
    without: tuple[str, ...]
    cni_version: str | None
    service_account: Path | None
    socket: Path | None
    executable: Path | None
    systemd: bool
    unit_dir: Path | None


@click.command(name="install")
@click.option("--bin-dir", type=_PATH, required=True, help="Directory in which the container runtime looks for plugins.")
@click.option("--conf-dir", type=_PATH, help="Directory in which it looks for networks.  [default: configure none]")
@click.option("--host-conf-dir", type=_PATH, help="Path of the same directory on the host.  [default: --conf-dir]")
@click.option(
    "--datastore", type=click.Choice([_EMBEDDED, "orch"]), default=_EMBEDDED, show_default=True, help="Its datastore."
)
@click.option("--netconf", type=_PATH, help="Part of svc in the network list, in place of one from --datastore.")
@click.option("--installation", type=_PATH, help="The operator's resource, whose settings override those of the network.")
@click.option("--apply-pools", is_flag=True, help="Write the pools that the operator's resource lists to the datastore.")
@click.option("--without", type=click.Choice(list(conflist.CHAINED)), multiple=True, help="Leave a chained plugin out.")
@click.option(
    "--cni-version", type=click.Choice(cni_versions.SUPPORTED), help="Newest version, for a runtime that supports no newer."
)
@click.option("--service-account", type=_PATH, help="For --datastore orch: directory of the account.  [default: the pod's]")
@click.option("--watch", is_flag=True, help="For --datastore orch: run until SIGTERM, and renew the token.")
@click.option("--socket", type=_PATH, help="Socket of the agent.  [default: agent.sock in the run directory]")
@click.option("--executable", type=_PATH, help="Executable to install.  [default: the one installed with this Python]")
@click.option("--systemd", is_flag=True, help="Install a systemd unit for the agent, too.")
@click.option("--unit-dir", type=_PATH, help=f"Directory of the unit.  [default: {UNIT_DIR}]")
@names_option
@click.pass_obj
def install(context: CliContext, /, watch: bool, **options: object) -> None:
    """Install executables and network, each file atomically. A file of another deployment is kept beside, and
    `svcctl uninstall` puts it back."""
    chosen = Options(**options)  # type: ignore[arg-type]
    _require_effect(chosen, watch=watch)
    context = context.with_own_names
    require_directories(_directories(context, chosen))
    listed = _listed_pools(context, chosen)
    for path, outcome in _install(context, chosen):
        click.echo(f"{path} {outcome}")
    if listed:
        _apply_pools(context, chosen, listed)
    if watch:
        _keep_fresh(context, chosen)


def _require_effect(options: Options, *, watch: bool) -> None:
    """Raise UsageError for an option that would do nothing without another one."""
    has_network, has_token = options.conf_dir is not None, options.datastore == "orch"
    if watch and not (has_network and has_token):
        raise click.UsageError("--watch needs --conf-dir and --datastore orch: nothing else has a token")
    about_network = {
        "--datastore orch": has_token,
        "--netconf": options.netconf,
        "--host-conf-dir": options.host_conf_dir,
        "--installation": options.installation,
        "--without": options.without,
        "--cni-version": options.cni_version,
    }
    for option, value in about_network.items():
        _require(has_network or not value, option, "--conf-dir: it is about the network")
    _require(has_token or not options.service_account, "--service-account", "--datastore orch: nothing else has a token")
    _require(bool(options.installation) or not options.apply_pools, "--apply-pools", "--installation: it lists the pools")
    _require(options.systemd or not options.unit_dir, "--unit-dir", "--systemd: it is about the unit")


def _require(has_effect: bool, option: str, needed: str) -> None:
    if not has_effect:
        raise click.UsageError(f"{option} needs {needed}")


def _directories(context: CliContext, options: Options) -> dict[str, Path | None]:
    """Return the directories that are written, by the option that names them."""
    return {
        "--bin-dir": options.bin_dir,
        "--conf-dir": options.conf_dir,
        "--unit-dir": options.unit_dir,
        "--state-dir": context.state_dir,
        "--run-dir": context.run_dir,
    }


def _install(context: CliContext, options: Options) -> Sequence[Outcome]:
    executable, profile = options.executable or find_executable(), canonical(context.profile)
    bin_dir, state_dir, run_dir = (path.absolute() for path in (options.bin_dir, context.state_dir, context.run_dir))
    others = other_installations(state_dir, profile, bin_dir)
    known = known_files(state_dir, record_paths(bin_dir, context.names)[0])
    socket = options.socket or others.socket(run_dir) or run_dir / SOCKET_NAME
    settings = InstallSettings(socket.absolute(), Path(sys.executable), state_dir, run_dir, profile)
    if options.conf_dir and not (options.netconf or context.netconf):
        path = options.conf_dir.absolute() / context.names.conflist
        require_own_list(path, known.get(path), context.names)
    unit = _unit(context, options, others, settings) if options.systemd else None
    network = [*_access(context, options), *_conflist(context, options, executable)]
    files = [unit.file, *network] if unit else network
    outcomes = install_files(bin_dir, executable, context.names, settings, files, known, others)
    is_new = add_installed(state_dir, _record(context, options, profile))
    if unit:
        _start(unit, context.names)
    return [*outcomes, (state_dir / FILE_NAME, "installed" if is_new else "unchanged")]


def _unit(context: CliContext, options: Options, others: Others, settings: InstallSettings) -> AgentUnit:
    """Return the unit of the agent, which another names profile may have installed already."""
    names = context.names
    own = (options.unit_dir or UNIT_DIR).absolute() / unit_name(names.plugin)
    path = own if own.exists() else next(iter(others.units()), own)
    socket = settings.socket if settings.socket != settings.run_dir / SOCKET_NAME else None
    log_dirs = {Path(each.log_dir).parent for each in (names, *others.names())}
    return AgentUnit(path, settings.state_dir, settings.run_dir, socket, tuple(sorted(log_dirs)))


def _start(unit: AgentUnit, names: Names) -> None:
    """Make the directories of the agent, and print how to start it."""
    unit.make_directories()
    if unit.plugin != names.plugin:
        click.echo(f"note: {unit.path} is the unit of the agent of these directories: it serves {names.plugin} too", err=True)
    name = unit.path.name
    click.echo(
        f"start the agent with: systemctl daemon-reload && systemctl enable {name} && systemctl restart {name}", err=True
    )


def _listed_pools(context: CliContext, options: Options) -> "Listing | None":
    """Read the pools before anything is installed, so that nothing changes if one is invalid."""
    if not options.apply_pools or options.installation is None:
        return None
    from svc.admin import operator_installation

    data, source = read_file(options.installation), str(options.installation)
    operator_installation.read(data, source, context.names)
    return operator_installation.read_pools(data, source, context.names)


def _apply_pools(context: CliContext, options: Options, listed: "Listing") -> None:
    """Write the pools to the datastore of the installed network, with the credentials in the directory of this process."""
    from svc.admin import operator_pools

    assert options.conf_dir
    names, conf_dir = context.names, options.conf_dir.absolute()
    entry = _entry(context, options, str(conf_dir / kubeconfig.kubeconfig_name(names)))
    netconf = netconfs.read(entry | {"name": names.network}, names)
    target = Target(names, netconf.datastore.to_json(), context.state_dir, netconf, str(conf_dir / names.conflist))
    with context.changing(target, create=True) as store:
        for name, outcome in operator_pools.apply(store, listed, names, datetime.now(timezone.utc)):
            click.echo(f"pool {name} {outcome}")


def _record(context: CliContext, options: Options, profile: str) -> Installed:
    names, bin_dir, conf_dir = context.names, options.bin_dir.absolute(), options.conf_dir
    executables = tuple(str(bin_dir / name) for name in (names.plugin, names.ipam_plugin))
    if conf_dir is None:
        return Installed(profile, str(bin_dir), executables)
    host_dir = options.host_conf_dir or conf_dir.absolute()
    return Installed(
        profile, str(bin_dir), executables, str(conf_dir.absolute() / names.conflist), str(host_dir / names.conflist)
    )


def _access(context: CliContext, options: Options) -> list[File]:
    """Return credentials for the Kubernetes API, if they are needed."""
    if not options.conf_dir or options.datastore != "orch":
        return []
    account = options.service_account or kubeconfig.service_account_dir(context.names)
    return kubeconfig.files(account, os.environ, options.conf_dir.absolute(), context.names)


def _conflist(context: CliContext, options: Options, executable: Path) -> list[File]:
    if not options.conf_dir:
        return []
    names, conf_dir = context.names, options.conf_dir.absolute()
    chained = [name for name in conflist.CHAINED if name not in options.without]
    folders = [options.bin_dir, *(Path(folder) for folder in os.environ.get("CNI_PATH", "").split(":") if folder)]
    others = _others(context, options)
    programs = {names.plugin: executable} | conflist.find_plugins([*chained, *(each["type"] for each in others)], folders)
    version = conflist.common_version(programs, options.cni_version or cni_versions.LATEST)
    access = (options.host_conf_dir or conf_dir) / kubeconfig.kubeconfig_name(names)
    entry = _entry(context, options, str(access))
    document = conflist.render(entry, chained, version, names, others)
    _warn_of_ranges(netconfs.read(entry | {"name": names.network}, names))
    _warn_of_version(version, options)
    return [File(conf_dir / names.conflist, document, 0o600)]


def _warn_of_version(version: str, options: Options) -> None:
    """Warn that the runtime will not call GC and STATUS."""
    if cni_versions.at_least(version, _WITH_GC):
        return
    cause = "as --cni-version asks" if version == options.cni_version else _NEWER_PLUGINS
    click.echo(f"note: the network is CNI {version}: the runtime never calls GC and STATUS of {_WITH_GC}; {cause}", err=True)


def _others(context: CliContext, options: Options) -> list[conflist.Json]:
    """Return the plugins of the user's list that svc does not know, with a warning: they stay in the chain."""
    given = options.netconf or context.netconf
    others = read_others(given, {context.names.plugin, *conflist.CHAINED}) if given else []
    for plugin in others:
        warning = f"plugin {plugin['type']!r} is kept in the chain, but only {_SUPPORTED} are supported there"
        click.echo(f"warning: {warning}", err=True)
    return others


def _warn_of_ranges(netconf: netconfs.NetConf) -> None:
    if warning := config_warning(netconf.ipam.type, netconf.datastore.kind, os.environ):
        click.echo(warning, err=True)


def _entry(context: CliContext, options: Options, access: str) -> conflist.Json:
    entry = _plain_entry(context, options, access)
    if options.installation is None:
        return entry
    from svc.admin import operator_installation  # few installations have an operator

    settings = operator_installation.read(read_file(options.installation), str(options.installation), context.names)
    return settings.applied(entry)


def _plain_entry(context: CliContext, options: Options, access: str) -> conflist.Json:
    given = options.netconf or context.netconf
    if given:
        check_file(given)
        return read_plugin(given, context.names)
    return conflist.default_entry(context.names, options.datastore, os.environ.get("KUBERNETES_NODE_NAME", ""), access)


def _keep_fresh(context: CliContext, options: Options) -> None:
    """Renew the token until SIGTERM or SIGINT. Retry after a failure, and report each one once."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    reported = ""
    while signal.sigtimedwait(ends, WATCH_SECONDS) is None:
        failure = ""
        try:
            for file in _access(context, options):
                if write(file):
                    click.echo(f"{file.path} renewed")
        except (SvcError, OSError) as error:
            failure = str(error)
        if failure not in ("", reported):
            click.echo(f"not renewed: {failure}", err=True)
        reported = failure
