"""svc-agent: the resident part of the plugin, one on each node."""

import argparse
import gc
import logging
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import svc
from svc.agent import garbage
from svc.agent.server import Agent, Settings
from svc.call_trace import log_to_stderr
from svc.cni.install_record import SOCKET_NAME
from svc.dataplane.sysctls import sysctls_folder
from svc.heap import limit_arenas
from svc.model.errors import SvcError, reason_of
from svc.model.shortage import shortage
from svc.names import DEFAULT

log = logging.getLogger("svc.agent")

OPTIONS = (
    "socket",
    "state_dir",
    "run_dir",
    "takeover",
    "metrics",
    "traces",
    "log_level",
)  # in the configuration file, with `_` for `-`
MAX_TAKEOVER_SECONDS = 86_400
_NICE = -10
_UNIX = "unix:"  # before the path of a socket


def main() -> int:
    """Run until SIGTERM. Return the exit status."""
    options = _options()
    log_to_stderr(options.log_level)
    _raise_fd_limit()
    limit_arenas(2)
    _raise_priority()
    gc.freeze()  # the collector need not traverse loaded modules, which stay
    gc.set_threshold(*garbage.THRESHOLDS)
    socket = options.socket or options.run_dir / SOCKET_NAME
    try:
        sysctls = sysctls_folder(os.environ)
        addresses, traces = options.metrics or (), options.traces or ""
        settings = Settings(socket, options.state_dir, options.run_dir, addresses, traces, options.takeover, sysctls)
        return Agent(settings).run()
    except (SvcError, OSError, RuntimeError, MemoryError) as failure:
        cause = shortage(failure) or failure
        if isinstance(cause, RuntimeError):  # a bug
            raise
        log.error("cannot run: %s", reason_of(cause))
        return 1


def _raise_fd_limit() -> None:
    """Raise the limit of descriptors to its maximum: a parked call has two, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _raise_priority() -> None:
    """Raise the priority unless the caller has set one. Otherwise calls on a busy node mostly wait for a CPU.

    Measured without it: with all CPUs busy an ADD takes 1.65 times as long, a DEL 1.58 times; on an idle node a burst of ADDs
    takes 7 % longer. The systemd unit sets the priority too; this is for agents that are started otherwise.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _options() -> argparse.Namespace:
    """Parse the command line and the configuration file. Exit with an error if they contradict each other."""
    parser = _parser()
    options = _parsed(parser)
    own = options.socket or options.run_dir / SOCKET_NAME
    if own in (options.metrics or ()):
        parser.error(f"--metrics {_UNIX}{own} is the agent's own socket: name another path")
    return options


def _parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line. Options of the configuration file apply if they are missing there."""
    options = parser.parse_args()
    if options.config is None:
        return options
    command, *given = sys.argv[1:]
    try:
        configured = [f"--{name.replace('_', '-')}={value}" for name, value in _read_config(options.config).items()]
    except ValueError as error:
        parser.error(str(error))
    return parser.parse_args([command, *configured, *given])


def _read_config(path: Path) -> dict[str, str]:
    """Return the options of a configuration file. Raise ValueError that names the file and the problem."""
    if sys.version_info >= (3, 11):  # imported here, because most agents have no such file
        import tomllib
    else:
        import tomli as tomllib
    try:
        values = tomllib.loads(path.read_text())
    except OSError as failure:
        raise ValueError(f"{path} cannot be read: {failure.strerror}") from None
    except (ValueError, RecursionError) as failure:
        raise ValueError(f"{path} is not TOML: {failure}") from None
    errors = []
    for name, value in values.items():
        if name not in OPTIONS:
            errors.append(f"{name} is not an option: use some of {', '.join(OPTIONS)}")
        elif not isinstance(value, str):
            errors.append(f"{name} = {value!r} is not a string: write it in quotes")
    if errors:
        raise ValueError(f"{path}: {'; '.join(errors)}")
    return values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svc-agent", description=__doc__)
    parser.add_argument("--version", action="version", version=f"svc-agent {svc.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve until SIGTERM, in the foreground")
    run.add_argument("--version", action="version", version=f"svc-agent {svc.__version__}")
    run.add_argument("--config", type=_path, metavar="FILE", help="TOML file with options; command-line options override it")
    run.add_argument("--socket", type=_path, help=f"where the executable finds the agent (default: RUN_DIR/{SOCKET_NAME})")
    state_help, run_help = "journal and embedded store (default: %(default)s)", "socket and lock (default: %(default)s)"
    run.add_argument("--state-dir", type=_path, default=DEFAULT.state_dir, help=state_help)
    run.add_argument("--run-dir", type=_path, default=DEFAULT.run_dir, help=run_help)
    run.add_argument(
        "--takeover",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="wait so long for another agent of these directories to end, and then serve in its place (default: end at once)",
    )
    run.add_argument(
        "--metrics",
        type=_addresses,
        metavar="ADDRESS[,ADDRESS]",
        help="serve metrics for Prometheus on HOST:PORT, or on unix:PATH for root alone (default: none)",
    )
    run.add_argument(
        "--traces",
        type=_traces,
        metavar="FILE|URL",
        help="write a span for each call, as OTLP/JSON, to a file, or to a collector such as http://127.0.0.1:4318/v1/traces "
        "(default: none)",
    )
    run.add_argument(
        "--log-level",
        default="INFO",
        choices=["DEBUG", "INFO", "WARNING", "ERROR"],
        help="least severe message to log (default: %(default)s)",
    )
    return parser


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a path is empty: give one")
    return Path(text)


def _seconds(text: str) -> float:
    if not text.isdecimal() or int(text) > MAX_TAKEOVER_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds up to {MAX_TAKEOVER_SECONDS}: give one")
    return float(text)


def _addresses(text: str) -> tuple[tuple[str, int] | Path, ...]:
    found = tuple(map(_address, text.split(",")))
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an address twice: name it once")
    return found


def _address(text: str) -> tuple[str, int] | Path:
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX))
        if not path.is_absolute():
            raise argparse.ArgumentTypeError(
                f"{text!r} has no absolute path: give one, such as {_UNIX}{DEFAULT.run_dir}/metrics.sock"
            )
        return path
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9405 or [::1]:9405, and not unix:PATH")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _traces(text: str) -> str:
    if "://" not in text:
        host, _, port = text.rpartition(":")
        if host and "/" not in text and port.isdecimal():
            raise argparse.ArgumentTypeError(f"{text!r} is neither a URL nor a path: give http://{text}/v1/traces, or ./{text}")
        return str(_path(text).absolute())
    from urllib.parse import urlsplit  # imported here, because most agents write no traces

    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or unbalanced brackets
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(
            "the value is not a URL of HTTP: give the one of a collector, such as http://127.0.0.1:4318/v1/traces, or a file"
        )
    if parts.username is not None or parts.password is not None:
        raise argparse.ArgumentTypeError("the URL has a user name or password: give the URL of a collector that needs none")
    return text


if __name__ == "__main__":
    sys.exit(main())
