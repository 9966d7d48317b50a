"""svcctl install and uninstall.

While a node is updated, its agent waits for `install` in a container. So that imports only what it needs itself.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from svc.admin import installation, installer
from svc.admin.install_records import other_installations, recorded_settings
from svc.admin.installation import CHAINED, Installation
from svc.admin.units import UNIT_DIR
from svc.cni.install_record import MAX_WAIT_SECONDS
from svc.ctl.cli_context import CliContext, Target, names_option, rehearse
from svc.ctl.interrupts import import_interrupts, one_interrupt
from svc.ctl.path_option import PATH
from svc.ctl.terminal import echo
from svc.datastore.open import open_backend
from svc.model import cni_versions
from svc.model.errors import SvcError
from svc.netconf.installed import FILE_NAME, remove_installed
from svc.netconf.names_profiles import canonical
from svc.netconf.networklist import read_file
from svc.values import replace

_EMBEDDED = "embedded"
_OF_THE_NETWORK = ("netconf", "host_conf_dir", "installation", "without", "cni_version")
_DIRECTORIES = ("state_dir", "run_dir")  # of the agent, in the record of the executables
_bin_dir_option = click.option(
    "--bin-dir", type=PATH, required=True, help="Directory in which the container runtime looks for plugins."
)


@click.command(name="install")
@_bin_dir_option
@click.option("--conf-dir", type=PATH, help="Directory in which the runtime looks for networks.  [default: configure none]")
@click.option("--host-conf-dir", type=PATH, help="Path of --conf-dir on the host.  [default: the same]")
@click.option(
    "--datastore",
    type=click.Choice([_EMBEDDED, "orch"]),
    default=_EMBEDDED,
    show_default=True,
    help="Datastore of the network.",
)
@click.option("--netconf", type=PATH, help="Part of svc in the network list, in place of one from --datastore.")
@click.option("--installation", type=PATH, help="The operator's resource, whose settings override those of the network.")
@click.option("--apply-pools", is_flag=True, help="Write the pools that the operator's resource lists to the datastore.")
@click.option("--without", type=click.Choice(list(CHAINED)), multiple=True, help="Leave a chained plugin out.")
@click.option(
    "--cni-version", type=click.Choice(cni_versions.SUPPORTED), help="Highest CNI version of the network, for an older runtime."
)
@click.option("--service-account", type=PATH, help="For --datastore orch: directory of the account.  [default: the pod's]")
@click.option(
    "--watch",
    is_flag=True,
    help="For --datastore orch: run until SIGTERM, renew the token, note the version, and register the node in etcd.",
)
@click.option("--socket", type=PATH, help="Socket of the agent.  [default: agent.sock in the run directory]")
@click.option("--executable", type=PATH, help="Executable to install.  [default: the one installed with this Python]")
@click.option(
    "--wait",
    type=click.IntRange(0, MAX_WAIT_SECONDS),
    metavar="SECONDS",
    help="Let calls wait so long for an agent, without Python; 0: run them without one.  [default: as installed, else 0]",
)
@click.option("--systemd", is_flag=True, help="Install a systemd unit for the agent, too.")
@click.option("--routes", is_flag=True, help="With --systemd: install a unit for svc-routes as well.")
@click.option("--unit-dir", type=PATH, help=f"Directory of the unit.  [default: {UNIT_DIR}]")
@names_option
@click.pass_obj
def install(context: CliContext, /, watch: bool, apply_pools: bool, **options: Any) -> None:
    """Install executables and network, each file atomically. A file of another deployment is kept beside, and
    `svcctl uninstall` puts it back.

    \b
    Examples:
      svcctl install --bin-dir /opt/cni/bin --conf-dir /etc/cni/net.d --systemd
      svcctl install --bin-dir /opt/cni/bin --conf-dir /etc/cni/net.d --netconf svc.json --without bandwidth
      svcctl install --bin-dir /opt/cni/bin --conf-dir /etc/cni/net.d --datastore orch --watch
    """
    _require_effect(options, watch=watch, apply_pools=apply_pools)
    context = _with_recorded(context.with_own_names, options["bin_dir"].resolve())
    folders = {_flag(name): options[name] for name in ("bin_dir", "conf_dir", "unit_dir")}
    installer.require_directories(folders | {"--state-dir": context.state_dir, "--run-dir": context.run_dir})
    wanted = _installation(context, options)
    if wanted.installation:
        from svc.ctl.installation_file import read_installation  # few installations have an operator

        read_installation(read_file(wanted.installation), str(wanted.installation), wanted.names)
    # the pools before the files: with the network list the runtime starts pods
    prepare = partial(_apply_pools, wanted) if apply_pools else lambda: None
    with one_interrupt() as signals:
        outcomes = installation.install(wanted, partial(echo, err=True), prepare)
        with suppress(*([KeyboardInterrupt] if watch else [])), import_interrupts():  # that is how the watch ends
            for path, outcome in outcomes:
                echo(f"{path} {outcome}")
            if watch:
                _keep_fresh(wanted, signals)


@click.command(name="uninstall")
@_bin_dir_option
@names_option
@click.pass_obj
def uninstall(context: CliContext, bin_dir: Path) -> None:
    """Remove what `svcctl install` wrote. Put back the files that it replaced, and keep modified ones.

    \b
    Examples:
      svcctl uninstall --bin-dir /opt/cni/bin
      svcctl uninstall --bin-dir /opt/cni/bin --names calico
    """
    context, folder = context.with_own_names, bin_dir.resolve()
    recorded, profile = recorded_settings(folder, context.names), canonical(context.profile)
    state_dir = Path(recorded.get("state_dir", context.state_dir))
    others = other_installations(state_dir, profile, folder)
    for path, outcome in installer.uninstall(folder, context.names, others):
        echo(f"{path} {outcome}")
    installation.drop_log_directory(context.names, others)
    if remove_installed(state_dir, profile, str(folder)):
        echo(f"{state_dir / FILE_NAME} removed")
    _warn_of_leftovers(state_dir, profile, is_last=all(entry.profile != profile for entry in others.entries))


def _warn_of_leftovers(state_dir: Path, profile: str, *, is_last: bool) -> None:
    """Warn of attachments without an executable, and of DELs that wait for an agent."""
    from svc.admin.node_state import read_attachments
    from svc.admin.node_status import spooled
    from svc.attach.record import DELETING
    from svc.cni.spool_file import DIRECTORY, waiting

    with suppress(SvcError):  # a journal that cannot be read: the files are removed
        attached = [record for record in read_attachments(state_dir, profile) if record.state != DELETING]
        if attached and is_last:
            warning = "their DELs will fail until svc is installed again"
            echo(f"warning: {len(attached)} attachments are recorded: {warning}", err=True)
    with suppress(OSError):
        if number := waiting(state_dir).number:
            warning = "an agent of this state directory has to run until `svcctl status` shows none"
            echo(f"warning: {spooled(number)} in {state_dir / DIRECTORY}: {warning}", err=True)


def _with_recorded(context: CliContext, bin_dir: Path) -> CliContext:
    """Return the context with the directories that the executables have until now, except those that the user gives."""
    recorded, command = recorded_settings(bin_dir, context.names), click.get_current_context()
    sources = {name: [each.get_parameter_source(name) for each in (command, command.find_root())] for name in _DIRECTORIES}
    missing = [name for name in _DIRECTORIES if name in recorded and ParameterSource.COMMANDLINE not in sources[name]]
    settings: dict[str, Any] = {name: Path(recorded[name]) for name in missing}
    return replace(context, **settings)


def _require_effect(options: Mapping[str, Any], *, watch: bool, apply_pools: bool) -> None:
    """Raise UsageError for an option that would do nothing without another one."""
    has_network, has_token = options["conf_dir"] is not None, options["datastore"] == "orch"
    if watch and not (has_network and has_token):
        raise click.UsageError("--watch needs --conf-dir and --datastore orch: nothing else has a token")
    of_network = [("--datastore orch", has_token), *((_flag(name), options[name]) for name in _OF_THE_NETWORK)]
    for option, is_given, has_effect, needed in (
        *((option, is_given, has_network, "--conf-dir: it is about the network") for option, is_given in of_network),
        ("--service-account", options["service_account"], has_token, "--datastore orch: nothing else has a token"),
        ("--apply-pools", apply_pools, options["installation"], "--installation: it lists the pools"),
        ("--unit-dir", options["unit_dir"], options["systemd"], "--systemd: it is about the unit"),
        ("--routes", options["routes"], options["systemd"], "--systemd: it is about a unit"),
    ):
        if is_given and not has_effect:
            raise click.UsageError(f"{option} needs {needed}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _installation(context: CliContext, options: Mapping[str, Any]) -> Installation:
    """Return the options with those of the context, and absolute directories; those of an executable or a list resolved."""
    folders = {name: options[name].resolve() for name in ("bin_dir", "conf_dir", "unit_dir") if options[name]}
    return Installation(
        **{**options, **folders, "netconf": options["netconf"] or context.netconf},
        names=context.names,
        profile=canonical(context.profile),
        state_dir=context.state_dir.absolute(),
        run_dir=context.run_dir.absolute(),
    )


def _apply_pools(wanted: Installation) -> None:
    """Write the listed pools to the datastore of the network. Raise CallerError before anything is written, StoreError."""
    from tempfile import TemporaryDirectory

    from svc.admin import operator_resource  # few installations have an operator

    assert wanted.installation is not None  # see `_require_effect`
    assert wanted.conf_dir is not None
    names, now = wanted.names, datetime.now(timezone.utc)
    listed = operator_resource.read_pools(read_file(wanted.installation), str(wanted.installation), names)
    settings = wanted.read_netconf(wanted.conf_dir)[1].datastore.to_json()
    target = Target(names, settings, wanted.state_dir, origin=str(wanted.network_list))
    rehearse(target, lambda draft: operator_resource.apply_pools(draft, listed, names, now))
    with TemporaryDirectory() as folder:
        with closing(open_backend(wanted.reachable(settings, Path(folder)), wanted.state_dir, names)) as store:
            for name, outcome in operator_resource.apply_pools(store, listed, names, now):
                echo(f"pool {name} {outcome}")
    echo(f"datastore: {target}")


def _keep_fresh(wanted: Installation, signals: Sequence[int]) -> None:
    """Keep token and version as they should be until SIGTERM or SIGINT."""
    from svc.admin import installation_watch

    assert wanted.access is not None  # see `_require_effect`
    installation_watch.keep(wanted, wanted.access, lambda line, is_failure: echo(line, err=is_failure), lambda: bool(signals))
