"""The machine and the programs of a measurement, as the first line of its results says."""

import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.programs import versions

PACKAGES = ("cython", "grpcio", "etcd3", "kubernetes", "orjson")
COMPARED = ("kernel", "machine", "processors", "model", "governor", "virtual", "memory_mib", "python")
DESCRIBE = ("describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")

Json = dict[str, Any]


def environment() -> Json:
    """Return what decides the numbers of this machine: hardware, kernel, load, and versions of all programs involved."""
    return {
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "model": _model(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "none (the host decides)",
        "virtual": _virtual(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libc": " ".join(platform.libc_ver()),
        "commit": commit(),
        "versions": {**versions(), "sqlite": sqlite3.sqlite_version, **_packages(), **_programs()},
        "arguments": sys.argv[1:],
    }


def differences(one: Json, other: Json) -> list[str]:
    """Return what makes two runs hard to compare, one text for each difference."""
    return [f"{name}: {one.get(name)}, then {other.get(name)}" for name in COMPARED if one.get(name) != other.get(name)]


def commit() -> str:
    """Return the commit of the checkout, with `-dirty` if files differ from it; empty outside a repository."""
    found = _output("git", "-C", str(ROOT), "-c", "safe.directory=*", *DESCRIBE)
    return found.strip()


def words(found: Json) -> str:
    """Return the environment as one paragraph."""
    programs = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return (
        f"{found['began']}, commit {found['commit'] or 'unknown'}: Linux {found['kernel']} on {found['processors']} processors "
        f"({found['model']}, {found['machine']}, governor {found['governor']}, {found['virtual']}), "
        f"{found['memory_mib']} MiB of memory, load {found['load'][0]} before; {found['python']}, {found['libc']}, {programs}"
    )


def _model() -> str:
    match = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)", _text("/proc/cpuinfo"), re.M)
    return match[1] if match else "unknown model"


def _virtual() -> str:
    """Return the kind of virtual machine, as far as the machine admits it."""
    kind = _output("systemd-detect-virt", "--vm").strip()
    if kind in ("", "none") and re.search(r"^flags\s*:.*\bhypervisor\b", _text("/proc/cpuinfo"), re.M):
        kind = "a hypervisor"  # of an unknown kind, which a container does not see either
    container = _output("systemd-detect-virt", "--container").strip()
    return f"virtual: {kind or 'none'}, container: {container or 'none'}"


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _programs() -> dict[str, str]:
    match = re.search(r"etcd Version: (\S+)", _output("etcd", "--version"))
    return {"etcd": match[1]} if match else {}


def _output(*command: str) -> str:
    """Return the output of a program; empty if it is not installed. Its status does not count: some fail with an answer."""
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
