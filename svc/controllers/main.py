"""svc-controllers: write to the datastore of a cluster what follows from objects of the Kubernetes API."""

import argparse
import logging
import os
import sys
from contextlib import closing
from pathlib import Path

import svc
from svc.call_trace import log_to_stderr
from svc.controllers import health_file
from svc.heap import limit_arenas
from svc.model.errors import SvcError, reason_of
from svc.model.shortage import shortage
from svc.netconf.names_profiles import load_profile

ARENAS = 2  # of malloc; otherwise the thread of each table keeps the memory of its largest page

log = logging.getLogger("svc.controllers")


def main() -> int:
    """Run until SIGTERM, or answer a probe. Return the exit status."""
    options = _parser().parse_args()
    limit_arenas(ARENAS)
    log_to_stderr("INFO")
    try:
        return _probe(options) if options.command == "health" else _run(options)
    except (SvcError, OSError, MemoryError) as failure:
        cause = shortage(failure) or failure
        log.error("cannot run: %s", cause.as_text() if isinstance(cause, SvcError) else reason_of(cause))
        return 1


def _run(options: argparse.Namespace) -> int:
    from svc.controllers.settings import RIGHT_REMEDY, read  # a probe needs neither this nor what follows
    from svc.datastore.open import open_client

    names = load_profile(options.names)
    settings = read(os.environ, names, options.netconf)
    log_to_stderr(settings.configuration.log_level)
    logging.getLogger("urllib3.util.retry").setLevel(logging.INFO)  # two lines of each request say nothing
    with closing(open_client(settings.api, right_remedy=RIGHT_REMEDY)) as client:
        from svc.controllers.program import run  # its packages come with an extra, which `open_client` has found

        return run(settings, names, client)


def _probe(options: argparse.Namespace) -> int:
    """Print whether the program that runs beside is live or ready. Return 1 if it is not."""
    names = load_profile(options.names)
    variables = (f"{names.environment_prefix}HEALTH_FILE", "HEALTH_FILE")
    given = next((text for variable in variables if (text := os.environ.get(variable, "").strip())), "")
    is_fine, reason = health_file.check(Path(given) if given else health_file.default_path(names.controllers), options.aspect)
    print(reason, file=sys.stdout if is_fine else sys.stderr)
    return 0 if is_fine else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svc-controllers", description=__doc__)
    parser.add_argument("--version", action="version", version=f"svc-controllers {svc.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    run = commands.add_parser(
        "run",
        help="run until SIGTERM, in the foreground",
        epilog="Environment variables have the other settings, such as ENABLED_CONTROLLERS: see docs/controllers.md.",
    )
    run.add_argument(
        "--netconf",
        type=Path,
        metavar="FILE",
        help="network configuration with the datastore and the access to the API server (default: environment variables)",
    )
    health = commands.add_parser("health", help="answer a probe: exit with 0 if the program that runs here is live, or ready")
    aspect = health.add_mutually_exclusive_group(required=True)
    for name, meaning in ((health_file.LIVE, "its threads work"), (health_file.READY, "its servers answer")):
        aspect.add_argument(
            f"-{name[0]}", f"--{name}", dest="aspect", action="store_const", const=name, help=f"whether {meaning}"
        )
    for command in (run, health):
        command.add_argument("--names", default="", metavar="NAME|FILE", help="names profile (default: svc)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
