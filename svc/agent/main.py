"""svc-agent: the resident half of the plugin, one on each node."""

import argparse
import ctypes
import gc
import logging
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import svc
from svc.agent.agent import Agent, Settings
from svc.cni.install import SOCKET_NAME
from svc.model.errors import SvcError
from svc.model.shortage import shortage
from svc.names import DEFAULT
from svc.trace import log_to_stderr

log = logging.getLogger("svc.agent")

_GC_THRESHOLDS = (20_000, 20, 20)  # a call makes some thousand objects and leaves no cycles: collecting seldom is enough
_NICE = -10
_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


def main() -> int:
    """Runs until it is told to stop; the exit status."""
    options = _options()
    log_to_stderr(options.log_level)
    _allow_descriptors()
    _share_heaps()
    _go_first()
    gc.freeze()  # what was loaded stays: no need to look at it again and again
    gc.set_threshold(*_GC_THRESHOLDS)
    socket = options.socket or options.run_dir / SOCKET_NAME
    settings = Settings(socket, options.state_dir, options.run_dir, options.metrics)
    try:
        return Agent(settings).run()
    except (SvcError, OSError, RuntimeError, MemoryError) as failure:
        told = shortage(failure) or failure
        if isinstance(told, RuntimeError):  # a mistake of ours
            raise
        log.error("cannot run: %s", told)
        return 1


def _allow_descriptors() -> None:
    """As many as may be: a call that waits holds two of them, and the usual soft limit of 1024 is soon met by a burst."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _share_heaps() -> None:
    """glibc gives threads heaps of their own, up to eight a processor: a burst leaves some MiB in each, which two do with."""
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def _go_first() -> None:
    """A pod's start waits for us, who need little: on a node that is busy with a crowd of pods, waiting for the processor would
    be most of what a call takes. Whoever runs the agent may have said otherwise."""
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _options() -> argparse.Namespace:
    """Of the command line; what it leaves out, of the file that it names."""
    parser = _parser()
    options = parser.parse_args()
    if options.config is None:
        return options
    from svc.agent.config import arguments_of

    command, *given = sys.argv[1:]
    try:
        return parser.parse_args([command, *arguments_of(options.config), *given])
    except ValueError as fault:
        parser.error(str(fault))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svc-agent", description=__doc__)
    parser.add_argument("--version", action="version", version=f"svc-agent {svc.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve until SIGTERM, in the foreground")
    run.add_argument("--version", action="version", version=f"svc-agent {svc.__version__}")
    run.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML with options of these names; options of the command line replace them"
    )
    run.add_argument("--socket", type=Path, help=f"where the executable finds the agent (default: RUN_DIR/{SOCKET_NAME})")
    run.add_argument("--state-dir", type=Path, default=Path(DEFAULT.state_dir), help="journal and embedded store (%(default)s)")
    run.add_argument("--run-dir", type=Path, default=Path(DEFAULT.run_dir), help="socket and lock (%(default)s)")
    run.add_argument(
        "--metrics", type=_address, metavar="HOST:PORT", help="serve figures there, for Prometheus (default: not at all)"
    )
    run.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9405 or [::1]:9405")
    return host.removeprefix("[").removesuffix("]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
