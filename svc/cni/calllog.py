"""Where the lines of a call go: to the log file of its netconf, and back to the runtime's standard error."""

import os
from pathlib import Path

from svc.trace import Trace


def write_lines(trace: Trace, log_file: str | None) -> bytes:
    """Appends the lines to the file in one write, so that several processes do not mix theirs, and returns them.

    A file that cannot be written is reported in the lines and fails nothing.
    """
    if log_file and trace.lines:
        try:
            _append(Path(log_file), "".join(trace.lines).encode(errors="backslashreplace"))
        except OSError as failure:
            trace.warning(f"log file {log_file!r} cannot be written: {failure.strerror}")
    return "".join(trace.lines).encode(errors="backslashreplace")


def _append(path: Path, data: bytes) -> None:
    try:
        fd = _open(path)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = _open(path)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """Never waits: a pipe that nobody reads cannot be written."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
