"""Stopped processes: they exist, but do nothing."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.polling import wait_until


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process inside the `with` block."""
    try:
        stop(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def stop(pid: int) -> None:
    """Stop the process. On a busy machine its threads run on for a moment after the signal: wait until each has stopped."""
    os.kill(pid, signal.SIGSTOP)
    await_stop(pid)


def await_stop(pid: int) -> None:
    """Wait until each thread of a process has stopped."""
    wait_until(lambda: all(_is_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()))


def _is_stopped(task: Path) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    return True
