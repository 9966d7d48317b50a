"""Log lines of a call: written to the log file of its network configuration, and returned for the runtime."""

import logging
import threading
import time
from contextlib import suppress
from typing import Final

from svc.call_trace import CallTrace
from svc.logs.log_file import append
from svc.netconf.netconf import NetConf

_MEGABYTE: Final = 1 << 20
_DAY: Final = 86400

_pruned: dict[str, float] = {}  # log file: when this process last checked its rotated files

_log = logging.getLogger(__name__)


def write_lines(trace: CallTrace, netconf: NetConf | None) -> bytes:
    """Append the lines to the network's log file, if any, and return them. A failure only adds a warning to the lines."""
    data = _encoded(trace)
    if netconf is None or not netconf.log_file_path or not data:
        return data
    try:
        rotated = append(netconf.log_file_path, data, netconf.log_file_max_size * _MEGABYTE)
    except OSError as failure:
        trace.warning(f"log file {netconf.log_file_path!r} cannot be written: {failure.strerror}")
        return _encoded(trace)
    now = time.monotonic()
    if rotated or now - _pruned.get(netconf.log_file_path, -_DAY) >= _DAY:
        with suppress(RuntimeError):  # the system is out of threads: the next call tries again
            threading.Thread(target=_prune, args=(netconf,), name="log-rotation").start()
            _pruned[netconf.log_file_path] = now
    return data


def _encoded(trace: CallTrace) -> bytes:
    return "".join(trace.lines).encode(errors="backslashreplace")


def _prune(netconf: NetConf) -> None:
    """Compress and remove rotated files, in a thread of its own. A process that ends waits for it after its reply."""
    from svc.logs.rotation import prune  # rarely needed

    assert netconf.log_file_path
    try:
        prune(netconf.log_file_path, netconf.log_file_max_age, netconf.log_file_max_count)
    except OSError as failure:
        _log.warning("rotated files of %s cannot be tidied up: %s", netconf.log_file_path, failure)
