"""What a test leaves behind on the machine and in its own process: seen by comparing footprints, removed once it was told.

Several runs may share a machine: a namespace of another process that is alive is none of ours.
"""

import ctypes
import gc
import os
import re
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PATIENCE = 5.0  # seconds: kernel and threads may still be busy with what was ended in an orderly way
_POLL = 0.02

_NAMESPACES = Path("/run/netns")
_HARNESS_NAME = re.compile(r"svc-.+-(\d+)-\d+")  # as `Netns` makes them: the number is the process's
_SET_CHILD_SUBREAPER = 36  # of prctl(2)


@dataclass(frozen=True)
class Footprint:
    """Everything that can leak, at one moment."""

    namespaces: frozenset[str]
    links: frozenset[str]
    children: frozenset[int]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]

    @staticmethod
    def take() -> "Footprint":
        return Footprint(
            frozenset(_namespaces()),
            frozenset(os.listdir("/sys/class/net")),
            frozenset(_children()),
            frozenset(threading.enumerate()),
            frozenset(_descriptors()),
        )


def adopt_orphans() -> None:
    """Makes this process the parent of what its children leave running, so that it is seen."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def left_since(before: Footprint, *, patience: float = PATIENCE) -> list[str]:
    """What is there now and was not before, in words; what vanishes within the patience does not count."""
    until = time.monotonic() + patience
    found = _compare(before, Footprint.take())
    while found and time.monotonic() < until:
        gc.collect()
        time.sleep(_POLL)
        found = _compare(before, Footprint.take())
    return found


def demand_nothing_since(before: Footprint) -> None:
    """Fails the test when anything is left, and removes it."""
    if left := left_since(before):
        remove_since(before)
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


def remove_since(before: Footprint) -> None:
    """Removes what can be removed, so that one leak fails one test."""
    now = Footprint.take()
    for pid in now.children - before.children:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for name in now.namespaces - before.namespaces:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    for name in now.links - before.links:
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)


def _compare(before: Footprint, now: Footprint) -> list[str]:
    found = [f"network namespace {name}" for name in sorted(now.namespaces - before.namespaces)]
    found += [f"link {name} in the host" for name in sorted(now.links - before.links)]
    found += [f"process {pid}: {_command(pid)}" for pid in sorted(now.children - before.children)]
    found += [f"thread {thread.name}" for thread in now.threads - before.threads]
    opened = now.descriptors - before.descriptors
    if len(opened) > len(before.descriptors - now.descriptors):  # one that took the place of another is no leak
        found += [f"descriptor {fd}: {target}" for fd, target in sorted(opened)]
    return found


def _namespaces() -> list[str]:
    try:
        return [name for name in os.listdir(_NAMESPACES) if not _is_foreign(name)]
    except FileNotFoundError:
        return []


def _is_foreign(name: str) -> bool:
    made_by = _HARNESS_NAME.fullmatch(name)
    return made_by is not None and int(made_by[1]) != os.getpid() and Path("/proc", made_by[1]).exists()


def _children() -> list[int]:
    """Those that run: one that has ended is its `Popen`'s to wait for."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # of a thread that ends
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if _runs(pid)]


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path("/proc", str(pid), "cmdline").read_text().replace("\0", " ").strip()
    return "gone meanwhile"


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that reads the directory
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found
