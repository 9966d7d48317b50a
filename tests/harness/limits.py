"""Limits of the kernel on a process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def task_group() -> Iterator[Path]:
    """Make a control group that counts tasks. Skip the test if that is not possible."""
    version1 = Path("/sys/fs/cgroup/pids")
    made = (version1 if version1.is_dir() else Path("/sys/fs/cgroup")) / f"svc-limits-{os.getpid()}"
    with suppress(OSError):
        made.mkdir()
    if not (made / "pids.max").exists():
        with suppress(OSError):
            made.rmdir()
        pytest.skip("no control group that counts tasks can be made here")
    try:
        yield made
    finally:
        made.rmdir()


def confine(group: Path, pid: int) -> None:
    """Forbid further threads of the process, until `max` is written to the group's `pids.max`."""
    (group / "cgroup.procs").write_text(str(pid))
    (group / "pids.max").write_text((group / "pids.current").read_text())


def release(group: Path, pid: int) -> None:
    (group.parent / "cgroup.procs").write_text(str(pid))


@contextmanager
def no_further_thread(pid: int) -> Iterator[None]:
    """Forbid further threads inside the `with` block."""
    with task_group() as group:
        confine(group, pid)
        try:
            yield
        finally:
            release(group, pid)
