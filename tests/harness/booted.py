"""A machine with systemd as the first process of its own namespaces.

It shares the file system with the test, except the directories that systemd and the agent write. It has only the units that a
test installs, and none of the distribution, because some of those clean `/tmp` and set up devices.
"""

import os
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import orjson
import pytest

from harness.cgroups import Groups
from harness.node import BIN, Called
from harness.polling import wait_until
from harness.skips import NO_CGROUP2, NO_SYSTEMD

_SYSTEMD: Final = Path("/lib/systemd/systemd")
_UNITS: Final = Path("/etc/systemd/system")
_TARGETS: Final = ("sysinit", "basic", "local-fs", "multi-user", "shutdown")  # that every service refers to
_BOOT: Final = f"""
set -e
mount -t cgroup2 none /sys/fs/cgroup
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount --bind /proc/sys/net /proc/sys/net
mount -o remount,bind,rw /proc/sys/net
mount --bind /dev/null /dev/console
for directory in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs $directory; done
mount --bind "$0" {_UNITS}
mkdir /run/netns
ip link set lo up
exec env -i container=svc-test PATH="$PATH" SYSTEMD_UNIT_PATH={_UNITS} {_SYSTEMD} --system --unit=multi-user.target
"""


class Booted:
    """A booted machine. `directory` is for its units, executables and network list. The process ends with the `with` block."""

    def __init__(self, directory: Path) -> None:
        self.units, self.bin_dir, self.conf_dir = (directory / name for name in ("units", "bin", "net.d"))
        _require_systemd()
        top = _unified_groups()
        self.units.mkdir(parents=True)
        for name in _TARGETS:
            (self.units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        self._groups = Groups()
        group = top / self._groups.parent[1:]
        group.mkdir()
        namespaces = ("--pid", "--mount", "--net", "--uts", "--ipc", "--cgroup", "--mount-proc", "--fork")
        enter = f'echo $$ > {shlex.quote(str(group / "cgroup.procs"))}; exec unshare {" ".join(namespaces)} "$@"'
        self._parent = subprocess.Popen(
            ["sh", "-c", enter, "sh", "sh", "-c", _BOOT, str(self.units)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(self._is_running)
        except BaseException:
            self.close()
            raise

    def run(self, *command: str, check: bool = True, stdin: str | None = None) -> str:
        """Run a program on the machine and return its output."""
        done = subprocess.run([*self._inside(), *command], capture_output=True, text=True, check=False, input=stdin)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def svcctl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run svcctl with the default directories."""
        return self.run(str(BIN / "svcctl"), *arguments, stdin=stdin)

    def call(self, verb: str, config: dict[str, Any], container: str = "", netns: str = "", ifname: str = "") -> Called:
        """Execute the installed plugin as a runtime does."""
        variables = {"COMMAND": verb, "CONTAINERID": container, "NETNS": netns, "IFNAME": ifname, "PATH": str(self.bin_dir)}
        environment = [f"CNI_{name}={value}" for name, value in variables.items()]
        command = [*self._inside(), "env", *environment, str(self.bin_dir / "svc")]
        done = subprocess.run(command, capture_output=True, check=False, input=orjson.dumps(config))
        output = orjson.loads(done.stdout) if done.stdout else None
        return Called(done.returncode, output, done.stderr.decode(), done.stdout)

    def unit_property(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", unit, "--property", name, "--value")

    def close(self) -> None:
        """Kill its first process, and with it all others."""
        for pid in _children_of(self._parent.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._parent.wait()
        self._groups.remove()

    def __enter__(self) -> "Booted":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _inside(self) -> list[str]:
        (first,) = _children_of(self._parent.pid)
        return ["nsenter", "--target", str(first), "--all"]

    def _is_running(self) -> bool:
        assert self._parent.poll() is None, "systemd has ended"
        return bool(_children_of(self._parent.pid)) and self.run("systemctl", "is-system-running", check=False) == "running"


def _require_systemd() -> None:
    if not _SYSTEMD.exists():
        pytest.skip(NO_SYSTEMD)


def _unified_groups() -> Path:
    """Return the directory of the control groups that systemd uses."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2" and os.access(mount[1], os.W_OK)]
    if not found:
        pytest.skip(NO_CGROUP2)
    return found[0]


def _children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
