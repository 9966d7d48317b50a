"""Detection of leaks of a test, on the machine and in its own process. Leaks are reported and then removed.

The check compares footprints. Other programs share the machine, so it counts and removes only what has a mark of this process:

* network namespaces: the mark in their name;
* links of the host: the mark as their alias, or a peer in a marked namespace, as the plugin makes them;
* processes: children of this process, which also adopts the orphans of its children;
* mounts: those below the folder of this run, and those of its files.

Links, iptables chains and sysctls inside a marked namespace end with it, and files end with the folder.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.netns import MARK

TIMEOUT_SECONDS = 5.0  # the kernel and threads may still be removing what was ended properly
_POLL = 0.02

_NAMESPACES = Path("/run/netns")
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # of prctl(2)


@dataclass(frozen=True)
class Footprint:
    """Everything that can leak, at one moment. It contains the links of all programs, because reading their marks is slow."""

    folder: Path | None
    namespaces: frozenset[str]
    links: frozenset[tuple[int, str]]
    children: frozenset[int]
    mounts: frozenset[str]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]

    @staticmethod
    def take(folder: Path | None = None) -> "Footprint":
        """Return the current footprint of the machine. Mounts count below `folder`, and of its files elsewhere."""
        return Footprint(
            folder,
            frozenset(_namespaces()),
            frozenset(socket.if_nameindex()),
            frozenset(_children()),
            frozenset(_mounts(folder)),
            frozenset(threading.enumerate()),
            frozenset(_descriptors()),
        )


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave running.

    A process that already has children does not adopt, because their orphans are not distinguishable from those of the
    tests.
    """
    if not _children():
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def adopts_orphans() -> bool:
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    return bool(adopts.value)


def left_since(before: Footprint, *, timeout: float = TIMEOUT_SECONDS) -> list[str]:
    """Return descriptions of what exists now and did not before. Anything that disappears within the timeout does not count."""
    until = time.monotonic() + timeout
    found = _compare(before, Footprint.take(before.folder))
    while found and time.monotonic() < until:
        gc.collect()
        time.sleep(_POLL)
        found = _compare(before, Footprint.take(before.folder))
    return found


def require_nothing_since(before: Footprint) -> None:
    """Fail the test if anything is left, and remove it."""
    if left := left_since(before):
        remove_since(before)
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


def remove_since(before: Footprint) -> None:
    """Remove everything that can be removed, so that one leak fails only one test."""
    now = Footprint.take(before.folder)
    for pid in now.children - before.children:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for name in _marked(now.links - before.links):  # before the namespaces, because some links are identified by them
        _run("ip", "link", "delete", name)
    for name in now.namespaces - before.namespaces:
        _run("ip", "netns", "delete", name)
    for path in sorted(now.mounts - before.mounts, reverse=True):
        _run("umount", "--lazy", path)


def _compare(before: Footprint, now: Footprint) -> list[str]:
    found = [f"network namespace {name}" for name in sorted(now.namespaces - before.namespaces)]
    found += [f"link {name} in the host" for name in _marked(now.links - before.links)]
    found += [f"process {pid}: {_command(pid)}" for pid in sorted(now.children - before.children)]
    found += [f"mount {path}" for path in sorted(now.mounts - before.mounts)]
    found += [f"thread {thread.name}" for thread in now.threads - before.threads]
    opened = now.descriptors - before.descriptors
    if len(opened) > len(before.descriptors - now.descriptors):  # a replacement of another one is not a leak
        found += [f"descriptor {fd}: {target}" for fd, target in sorted(opened)]
    return found


def _namespaces() -> list[str]:
    try:
        return [name for name in os.listdir(_NAMESPACES) if f"-{MARK}-" in name]
    except FileNotFoundError:
        return []


def _marked(links: frozenset[tuple[int, str]]) -> list[str]:
    """Return those links that this process made, or the plugin made for one of its sandboxes."""
    if not links:
        return []
    marked = {each["id"] for each in _listed("netns") if f"-{MARK}-" in each["name"] and "id" in each}
    return sorted(
        link["ifname"]
        for link in _listed("link")
        if (link["ifindex"], link["ifname"]) in links and (link.get("ifalias") == MARK or link.get("link_netnsid") in marked)
    )


def _listed(kind: str) -> list[Any]:
    """Return what `ip` lists, without entries that disappear while it reads them."""
    return list(json.loads(_run("ip", "-j", kind, "list") or "[]"))


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _mounts(folder: Path | None) -> list[str]:
    text = Path("/proc/self/mountinfo").read_text()
    if folder is None or f" {folder}/" not in text:
        return []
    found = [line.split()[3:5] for line in text.splitlines()]
    return [point for source, point in found if any(path.startswith(f"{folder}/") for path in (source, point))]


def _children() -> list[int]:
    """Return the running children. Their `Popen` waits for ended ones."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the file of a thread that ends
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if _runs(pid)]


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path("/proc", str(pid), "cmdline").read_text().replace("\0", " ").strip()
    return "already ended"


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that reads the directory
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found
