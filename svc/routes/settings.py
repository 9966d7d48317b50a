"""Options of svc-routes: from the command line, environment variables and a TOML file, in this order of precedence."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import gethostname
from typing import Final, NoReturn

import svc
from svc.model.errors import CallerError
from svc.names import DEFAULT, Names
from svc.netconf.installed import read_installed
from svc.netconf.names_profiles import canonical, load_profile
from svc.netconf.netconf import NetConf
from svc.netconf.networklist import read_netconf
from svc.netconf.node_files import node_name
from svc.orch.pod_cidrs import uses_pod_cidr
from svc.values import dataclass

OFF, AUTO, ON = MODES = ("off", "auto", "on")
SWITCHES: Final = ("on", "off")
PREFIX: Final = f"{DEFAULT.environment_prefix}ROUTES_"
OPTIONS: Final = (
    "netconf",
    "names",
    "mode",
    "nat",
    "tunnels",
    "interface",
    "mtu",
    "metrics",
    "once",
    "takeover",
    "state_dir",
    "run_dir",
    "log_level",
)
"""Those that a TOML file and, in upper case after the prefix, environment variables may have."""

_KINDS: Final = ("etcdv3", "orch")
_MTUS: Final = range(576, 65536)
_MAX_TAKEOVER_SECONDS: Final = 86_400
LOCK: Final = "routes"

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """Valid settings. `datastore` has the form in which sessions are opened, `state_dir` the MTU file."""

    datastore: dict[str, str]
    node: str
    names: Names = DEFAULT
    mode: str = OFF
    use_nat: bool = True
    use_tunnels: bool = True
    use_pod_cidr: bool = False
    interface: str = ""
    mtu: int = 0
    metrics: tuple[Address, ...] = ()
    once: bool = False
    takeover: float = 0.0
    state_dir: Path = Path(DEFAULT.state_dir)
    run_dir: Path = Path(DEFAULT.run_dir)


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """Return the options of the command line, completed by the environment and the TOML file. Exit on an error."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command, *given = arguments
    try:
        configured = {} if options.config is None else _read_config(options.config)
    except ValueError as error:
        parser.error(str(error))
    values = {name: (text, f"{name} of {options.config}") for name, text in configured.items()}
    for name in OPTIONS:
        if text := environment.get(variable := f"{PREFIX}{name.upper()}", "").strip():
            values[name] = text, f"variable {variable}"
    known = vars(options)
    more = {name: f"--{name.replace('_', '-')}={text}" for name, (text, _) in values.items() if name in known}
    for name, argument in more.items():
        parser.check([command, argument], values[name][1])
    return parser.parse_args([command, *more.values(), *given])


def settings_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings. Raise CallerError if the network configuration is missing or invalid, or for another datastore."""
    names = load_profile(options.names)
    path = options.netconf or _installed_list(options.state_dir, options.names)
    netconf = read_netconf(path, names)
    _require_cluster(netconf, path, names)
    return Settings(
        datastore=netconf.datastore.to_json(),
        node=node_name(netconf, names, gethostname()),
        names=names,
        mode=getattr(options, "mode", OFF),
        use_nat=getattr(options, "nat", "on") == "on",
        use_tunnels=getattr(options, "tunnels", "on") == "on",
        use_pod_cidr=uses_pod_cidr(environment),
        interface=getattr(options, "interface", ""),
        mtu=getattr(options, "mtu", 0),
        metrics=getattr(options, "metrics", ()),
        once=getattr(options, "once", "off") == "on",
        takeover=getattr(options, "takeover", 0.0),
        state_dir=_mtu_dir(options.state_dir, names),
        run_dir=options.run_dir,
    )


def _mtu_dir(state_dir: Path, names: Names) -> Path:
    """Return the directory in which calls with these names look for the MTU file, unless another one is given."""
    return Path(names.state_dir) if state_dir == Path(DEFAULT.state_dir) else state_dir


def _installed_list(state_dir: Path, profile: str) -> Path:
    """Return the network list that `svcctl install` has written for these names."""
    found = [entry for entry in read_installed(state_dir) if entry.profile == canonical(profile)]
    path = found[0].find_list() if found else None
    if path is None:
        remedy = "give --netconf FILE, or run `svcctl install` first"
        raise CallerError(f"no network configuration is installed for state directory {str(state_dir)!r}", details=remedy)
    return path


def _require_cluster(netconf: NetConf, path: Path, names: Names) -> None:
    kind = netconf.datastore.kind
    if kind not in _KINDS:
        raise CallerError(
            f"network configuration {str(path)!r}: datastore_type = {kind!r} is the store of one node, which needs no routes",
            details=f"name a file with a datastore of the cluster: {_KINDS[0]} or {names.orch_datastore}",
        )


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the variable or the file of an option that is not on the command line."""

    _origin = ""  # for the parsers of all commands

    def check(self, arguments: Sequence[str], origin: str) -> None:
        """Exit on an error in an option of this origin."""
        _Parser._origin = origin
        try:
            self.parse_args(arguments)
        finally:
            _Parser._origin = ""

    def error(self, message: str) -> NoReturn:
        super().error(f"{_Parser._origin}: {message}" if _Parser._origin else message)


def _parser() -> _Parser:
    parser = _Parser(prog="svc-routes", description="Routes, tunnels and NAT between the nodes of a cluster.")
    parser.add_argument("--version", action="version", version=f"svc-routes {svc.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    run = commands.add_parser("run", help="keep the routes of this node current until SIGTERM, in the foreground")
    show = commands.add_parser("show", help="list each block with its next hop and the reason")
    clean = commands.add_parser("clean", help="remove everything that svc-routes made on this node")
    for command in (run, show, clean):
        _add_common(command)
    _add_run(run)
    show.add_argument("-o", "--output", choices=("table", "json"), default="table", help="format (default: %(default)s)")
    return parser


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=_path, metavar="FILE", help="TOML file with options; the command line overrides it")
    command.add_argument(
        "--netconf",
        type=_path,
        metavar="FILE",
        help="network configuration with the datastore (default: the one that `svcctl install` wrote)",
    )
    command.add_argument("--names", default="", metavar="NAME|FILE", help="names profile (default: svc)")
    command.add_argument("--state-dir", type=_path, default=Path(DEFAULT.state_dir), help="default: %(default)s")
    command.add_argument("--run-dir", type=_path, default=Path(DEFAULT.run_dir), help="lock and socket (default: %(default)s)")
    levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
    command.add_argument("--log-level", default="INFO", choices=levels, help="least severe message (default: %(default)s)")


def _add_run(run: argparse.ArgumentParser) -> None:
    mode_help = "auto: only if no other program routes (default: %(default)s, which does nothing)"
    run.add_argument("--mode", choices=MODES, default=OFF, help=mode_help)
    run.add_argument("--nat", choices=SWITCHES, default="on", help="masquerade for pools with natOutgoing (default: on)")
    run.add_argument("--tunnels", choices=SWITCHES, default="on", help="make the tunnels that pools ask for (default: on)")
    run.add_argument("--interface", default="", metavar="NAME", help="default: the one with the InternalIP of the node")
    run.add_argument("--mtu", type=_mtu, default=0, help="of the interface, before the tunnel's header (default: as it is)")
    run.add_argument(
        "--metrics", type=_addresses, default=(), metavar="HOST:PORT[,...]", help="serve metrics for Prometheus (default: none)"
    )
    run.add_argument(
        "--takeover",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="wait so long for another instance to end (default: refuse to start)",
    )
    once_help = "bring the node to what it needs once, and end"
    run.add_argument("--once", choices=SWITCHES, nargs="?", const="on", default="off", help=once_help)


def _read_config(path: Path) -> dict[str, str]:
    """Return the options of a TOML file. Raise ValueError that names the file and the problem."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        values = tomllib.loads(path.read_text())
    except OSError as failure:
        raise ValueError(f"{path} cannot be read: {failure.strerror}") from None
    except (ValueError, RecursionError) as failure:
        raise ValueError(f"{path} is not TOML: {failure}") from None
    errors = [f"{name} is not an option: use some of {', '.join(OPTIONS)}" for name in values if name not in OPTIONS]
    mistyped = [(name, value) for name, value in values.items() if not isinstance(value, str)]
    errors += [f"{name} = {value!r} is not a string: write it in quotes" for name, value in mistyped]
    if errors:
        raise ValueError(f"{path}: {'; '.join(errors)}")
    return values


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a path is empty: give one")
    return Path(text)


def _mtu(text: str) -> int:
    if not text.isdecimal() or int(text) not in _MTUS:
        raise argparse.ArgumentTypeError(f"{text!r} is not an MTU: give {_MTUS[0]} to {_MTUS[-1]}")
    return int(text)


def _seconds(text: str) -> float:
    if not text.isdecimal() or int(text) > _MAX_TAKEOVER_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds up to {_MAX_TAKEOVER_SECONDS}: give one")
    return float(text)


def _addresses(text: str) -> tuple[Address, ...]:
    return tuple(map(_address, text.split(",")))


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9406 or [::1]:9406")
    return host.removeprefix("[").removesuffix("]"), int(port)
