"""svc-controllers: write to the datastore of a cluster what follows from objects of the Kubernetes API."""

import argparse
import logging
import os
import sys
from contextlib import closing
from pathlib import Path

import svc
from svc.call_trace import log_to_stderr
from svc.controllers.settings import read
from svc.datastore.open import open_client
from svc.heap import limit_arenas
from svc.model.errors import SvcError, reason_of
from svc.model.shortage import shortage
from svc.netconf.names_profiles import load_profile

ARENAS = 2  # of malloc; otherwise the thread of each table keeps the memory of its largest page

log = logging.getLogger("svc.controllers")


def main() -> int:
    """Run until SIGTERM. Return the exit status."""
    options = _parser().parse_args()
    limit_arenas(ARENAS)
    log_to_stderr("INFO")
    try:
        names = load_profile(options.names)
        settings = read(os.environ, names, options.netconf)
        log_to_stderr(settings.configuration.log_level)
        for variable in settings.without_effect:
            log.warning("%s has no effect: this version does not use it", variable)
        with closing(open_client(settings.api)) as client:
            from svc.controllers.program import run  # its packages come with an extra, which `open_client` has found

            return run(settings, names, client)
    except (SvcError, OSError, MemoryError) as failure:
        cause = shortage(failure) or failure
        log.error("cannot run: %s", cause.as_text() if isinstance(cause, SvcError) else reason_of(cause))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svc-controllers", description=__doc__)
    parser.add_argument("--version", action="version", version=f"svc-controllers {svc.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
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
    run.add_argument("--names", default="", metavar="NAME|FILE", help="names profile (default: svc)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
