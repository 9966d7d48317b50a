"""Where the lines of a call go: to the log file of its netconf, and back to the runtime's standard error."""

import logging
import threading
import time
from contextlib import suppress
from typing import Final

from svc.call_trace import CallTrace
from svc.cni.logfile import append
from svc.netconf.netconf import NetConf

MEGABYTE: Final = 1 << 20
_DAY: Final = 86400

_tidied: dict[str, float] = {}  # log file: when this process last looked after its rotated files

_log = logging.getLogger(__name__)


def write_lines(trace: CallTrace, netconf: NetConf | None) -> bytes:
    """Appends the lines to the file that the network names, if any, and returns them.

    A file that cannot be written is reported in the lines and fails nothing.
    """
    data = _encoded(trace)
    if netconf is None or not netconf.log_file_path or not data:
        return data
    try:
        rotated = append(netconf.log_file_path, data, netconf.log_file_max_size * MEGABYTE)
    except OSError as failure:
        trace.warning(f"log file {netconf.log_file_path!r} cannot be written: {failure.strerror}")
        return _encoded(trace)
    now = time.monotonic()
    if rotated or now - _tidied.get(netconf.log_file_path, -_DAY) >= _DAY:
        with suppress(RuntimeError):  # no further thread for now: the next call tries again
            threading.Thread(target=_tidy, args=(netconf,), name="log-rotation").start()
            _tidied[netconf.log_file_path] = now
    return data


def _encoded(trace: CallTrace) -> bytes:
    return "".join(trace.lines).encode(errors="backslashreplace")


def _tidy(netconf: NetConf) -> None:
    """Beside the calls: a process that ends waits for it, after its reply."""
    from svc.cni.rotated import tidy  # seldom needed

    assert netconf.log_file_path
    try:
        tidy(netconf.log_file_path, netconf.log_file_max_age, netconf.log_file_max_count)
    except OSError as failure:
        _log.warning("rotated files of %s cannot be tidied up: %s", netconf.log_file_path, failure)
