"""svc-routes: routes, tunnels and NAT between the nodes of a cluster."""

import argparse
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from svc.admin.routes_report import SOCKET, read_report
from svc.call_trace import log_to_stderr
from svc.cni.locks import DIRECTORY, LockFile
from svc.datastore.open import open_backend, wait_quietly
from svc.end_request import end_signals
from svc.heap import limit_arenas
from svc.metrics import StoreMeter
from svc.metrics.server import TextServer
from svc.model.errors import CallerError, SvcError, reason_of
from svc.model.shortage import shortage
from svc.private_directory import create_directories, make_private
from svc.routes import settings as options_of
from svc.routes.kernel_part import KernelPart
from svc.routes.program import Program
from svc.routes.report import as_json, as_table
from svc.routes.settings import LOCK, OFF, Settings
from svc.routes.telemetry import Telemetry

ARENAS = 2  # of malloc
THRESHOLDS = (20_000, 20, 20)  # of garbage collections: what is read from the datastore has no cycles
RIGHT_REMEDY = "grant it to the user of svc-routes: docs/routes.md, section Rights, lists what it needs"
_LOCK_POLL_SECONDS = 0.5

log = logging.getLogger("svc.routes")


def main() -> int:
    """Carry out a command. Return the exit status."""
    options = options_of.parse(sys.argv[1:], os.environ)
    limit_arenas(ARENAS)
    gc.freeze()  # the collector need not traverse loaded modules, which stay
    gc.set_threshold(*THRESHOLDS)
    log_to_stderr(options.log_level)
    try:
        return _COMMANDS[options.command](options)
    except (SvcError, OSError, MemoryError) as failure:
        cause = shortage(failure) or failure
        log.error("cannot %s: %s", options.command, cause.as_text() if isinstance(cause, SvcError) else reason_of(cause))
        return 1


def _run(options: argparse.Namespace) -> int:
    settings = options_of.settings_of(options, os.environ)
    with end_signals() as end, ExitStack() as stack:
        stack.enter_context(_only_instance(settings))
        if settings.mode == OFF:
            log.info("the mode is off: nothing is changed")
            if settings.once:
                return 0
            stack.enter_context(_serving(settings, Telemetry(settings.datastore["kind"], StoreMeter())))
            end.wait(None)
            return 0
        backend = stack.enter_context(
            closing(open_backend(settings.datastore, Path(), settings.names, right_remedy=RIGHT_REMEDY))
        )
        if not settings.once:
            wait_quietly(settings.datastore["kind"])  # the main thread sends no requests
        log.info("the datastore is %s", backend.place)
        telemetry = Telemetry(settings.datastore["kind"], backend.meter)
        kernel = stack.enter_context(closing(KernelPart(settings.names)))
        program = Program(settings, backend, kernel, telemetry)
        if settings.once:
            return program.run_once()
        stack.enter_context(_serving(settings, telemetry))
        return program.run(end)


def _show(options: argparse.Namespace) -> int:
    document = read_report(options.run_dir / SOCKET)
    return 0 if _is_written(as_json(document) if options.output == "json" else as_table(document)) else 1


def _is_written(text: str) -> bool:
    """Write to standard output. Return False if its reader has ended. Raise CallerError if it cannot be written."""
    stream = sys.stdout
    if stream is None:
        raise CallerError("the answer cannot be written to standard output", details="it is closed")
    try:
        stream.write(text)
        stream.flush()
    except OSError as failure:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), stream.fileno())  # Python would write what is buffered again at exit, and fail
        if isinstance(failure, BrokenPipeError):
            return False
        raise CallerError("the answer cannot be written to standard output", details=reason_of(failure)) from None
    return True


def _clean(options: argparse.Namespace) -> int:
    from svc.routes.cleaning import clean_datastore, clean_node  # loads IPAM, for which `run` does not wait

    settings = options_of.settings_of(options, os.environ)
    with ExitStack() as stack:
        stack.enter_context(_only_instance(settings))
        kernel = stack.enter_context(closing(KernelPart(settings.names)))
        kinds = clean_node(settings, kernel)
        backend = stack.enter_context(
            closing(open_backend(settings.datastore, Path(), settings.names, right_remedy=RIGHT_REMEDY))
        )
        for kept in clean_datastore(settings, backend, kernel, kinds):
            log.warning("%s", kept)
    return 0


_COMMANDS = {"run": _run, "show": _show, "clean": _clean}


@contextmanager
def _only_instance(settings: Settings) -> Iterator[None]:
    """Hold the lock of the run directory. Raise CallerError if another process has it, or if it cannot be written."""
    try:
        create_directories(settings.run_dir)
        make_private(settings.run_dir / DIRECTORY, 0o700)
    except OSError as failure:
        msg = f"run directory {str(settings.run_dir)!r} cannot be used: {reason_of(failure)}"
        raise CallerError(msg, details="name another one with --run-dir, or have it writable") from None
    with closing(LockFile(settings.run_dir / DIRECTORY / LOCK)) as lock:
        until = time.monotonic() + settings.takeover
        while not lock.take():
            if time.monotonic() >= until:
                holder = lock.holder()
                msg = f"another svc-routes has run directory {str(settings.run_dir)!r}: {holder}"
                raise CallerError(msg, details="end it first")
            time.sleep(_LOCK_POLL_SECONDS)
        lock.note("svc-routes")
        yield


@contextmanager
def _serving(settings: Settings, telemetry: Telemetry) -> Iterator[None]:
    """Serve the report on the socket of the run directory, and metrics on the addresses of the settings. Raise OSError."""
    with ExitStack() as stack:
        report = stack.enter_context(closing(TextServer(lambda: as_json(telemetry.report.document()), "/routes", "report")))
        report.add(_listening(settings.run_dir / SOCKET))
        report.start()
        if settings.metrics:
            metrics = stack.enter_context(closing(TextServer(telemetry.text)))
            for address in settings.metrics:
                _listen(metrics, *address)
            metrics.start()
        yield


def _listen(server: TextServer, host: str, port: int) -> None:
    """Raise CallerError if the address cannot be served."""
    try:
        server.listen_on(host, port)
    except OSError as failure:
        msg = f"--metrics {host}:{port} cannot be served: {reason_of(failure)}"
        raise CallerError(msg, details="give an address of this machine, and a port that no other program uses") from None


def _listening(path: Path) -> socket.socket:
    """Listen on a Unix socket for root, in place of one that an earlier process has left. Raise OSError."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.setblocking(False)
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


if __name__ == "__main__":
    sys.exit(main())
