"""The file that says that another program routed on this node, so that a new process and a new boot know it."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc.atomic_file import File, write

_NAME: Final = "routes.traces"  # in the state directory, with a line for each trace

log = logging.getLogger("svc.routes")


def read(directory: Path) -> tuple[str, ...]:
    """Return the traces that were found last; empty without any, and if they cannot be read."""
    try:
        return tuple((directory / _NAME).read_text().splitlines())
    except (OSError, UnicodeDecodeError):
        return ()


def note(directory: Path, traces: tuple[str, ...]) -> None:
    """Keep these traces in place of the former ones."""
    if read(directory) == traces:
        return
    try:
        write(File(directory / _NAME, "".join(f"{trace}\n" for trace in traces).encode(), 0o644))
    except OSError as failure:
        log.warning("%s cannot be written: %s", directory / _NAME, failure.strerror)


def remove(directory: Path) -> None:
    """Remove the file. Raise OSError."""
    with suppress(FileNotFoundError):
        (directory / _NAME).unlink()


def forget(directory: Path) -> None:
    """Remove the file if that is possible: otherwise the next process waits in vain, and then works."""
    with suppress(OSError):
        remove(directory)
