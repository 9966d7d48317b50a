"""The shipped systemd unit under a real systemd: start, rights, watchdog and end of the agent."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.booted import Booted
from harness.node import POOL4, pool_document
from harness.polling import wait_until
from harness.reference_plugins import REFERENCE, require_plugin
from svc.deploy.systemd import CAPABILITIES

pytestmark = [pytest.mark.root, pytest.mark.slow]

UNIT = "svc-agent.service"
WATCHDOG_SECONDS = 4
NUMBERS = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}

# ExecStartPre runs this with the rights of the unit. It fails if a right is missing or superfluous.
RIGHTS = """
import ctypes, errno, os, pathlib, socket
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    socket.socket(family, socket.SOCK_DGRAM).close()
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
def refusal(attempt):
    try:
        attempt()
    except OSError as failure:
        return failure.errno
    return 0
assert refusal(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) == errno.EAFNOSUPPORT
assert refusal(pathlib.Path("/usr/svc-test").touch) == errno.EROFS
assert refusal(pathlib.Path("/var/lib/other").touch) == errno.EROFS
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x00020000) == -1, "a mount namespace"
for directory in ("/var/lib/svc", "/run/svc", "/var/log/svc", "/var/lib/cni"):
    pathlib.Path(directory, "probe").touch()
    pathlib.Path(directory, "probe").unlink()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Booted]:
    """Start a machine with a pool and the agent as README.md installs it, but with a short watchdog timeout."""
    with Booted(tmp_path) as machine:
        chained = ("--without", "portmap", "--without", "bandwidth")
        machine.svcctl("install", "--bin-dir", str(machine.bin_dir), "--systemd")
        script = tmp_path / "rights.py"
        script.write_text(RIGHTS)
        drop_in = machine.units / f"{UNIT}.d" / "test.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(f"[Service]\nWatchdogSec={WATCHDOG_SECONDS}\nExecStartPre={sys.executable} {script}\n")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "enable", "--now", UNIT)
        machine.svcctl("install", "--bin-dir", str(machine.bin_dir), "--conf-dir", str(machine.conf_dir), *chained)
        machine.svcctl("pool", "apply", "-f", "-", stdin=pool_document("pool4", POOL4))
        machine.run("ip", "netns", "add", "pod")
        yield machine


def netconf(machine: Booted) -> dict[str, Any]:
    """Return the configuration that a runtime derives from the installed network list."""
    (file,) = machine.conf_dir.iterdir()
    network = json.loads(file.read_text())
    return {**network["plugins"][0], "name": network["name"], "cniVersion": network["cniVersion"]}


def statuses(machine: Booted, *verbs: str) -> list[int]:
    attachment = ("c1", "/run/netns/pod", "eth0")
    return [machine.call(verb, netconf(machine), *(() if verb == "STATUS" else attachment)).status for verb in verbs]


def test_agent_executes_calls_under_the_unit(machine: Booted) -> None:
    """The agent has only the rights of the unit. It is ready when `systemctl start` returns, and stops without error."""
    assert "Active: active (running)" in machine.run("systemctl", "status", "--no-pager", UNIT)
    pid = machine.unit_property(UNIT, "MainPID")
    lines = dict(line.split(":\t") for line in machine.run("cat", f"/proc/{pid}/status").splitlines())
    rights = f"{sum(1 << NUMBERS[name] for name in CAPABILITIES):016x}"
    assert (lines["CapBnd"], lines["CapEff"], lines["NoNewPrivs"], lines["Seccomp"]) == (rights, rights, "1", "2")
    assert machine.unit_property(UNIT, "RestrictAddressFamilies").split() == ["AF_INET", "AF_INET6", "AF_NETLINK", "AF_UNIX"]
    assert statuses(machine, "ADD", "STATUS", "DEL") == [0, 0, 0]
    machine.run("systemctl", "stop", UNIT)
    assert (machine.unit_property(UNIT, "Result"), machine.unit_property(UNIT, "ExecMainStatus")) == ("success", "0")


def test_agent_creates_missing_directories(machine: Booted) -> None:
    """The node has neither a directory for log files nor one for the records of host-local."""
    require_plugin("host-local")
    (machine.bin_dir / "host-local").symlink_to(REFERENCE / "host-local")
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.71.0.0/24"}]]}
    called = machine.call("ADD", {**netconf(machine), "ipam": ipam}, "c1", "/run/netns/pod", "eth0")
    assert called.status == 0, called
    assert machine.run("ls", "/var/lib/cni/networks/pods") == "10.71.0.2\nlast_reserved_ip.0\nlock"
    assert "ADD" in machine.run("cat", "/var/log/svc/cni/cni.log")
    assert machine.run("stat", "-c", "%a", "/var/log/svc", "/var/lib/cni").split() == ["755", "755"]
    assert machine.call("DEL", {**netconf(machine), "ipam": ipam}, "c1", "/run/netns/pod", "eth0").status == 0


def test_agent_starts_in_directories_outside_run(tmp_path: Path) -> None:
    directories = ("--state-dir", str(tmp_path / "state"), "--run-dir", str(tmp_path / "run"))
    with Booted(tmp_path) as machine:
        machine.svcctl(*directories, "install", "--bin-dir", str(machine.bin_dir), "--systemd")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", UNIT)
        assert machine.unit_property(UNIT, "ActiveState") == "active"


def test_stopped_agent_is_restarted_by_the_watchdog(machine: Booted) -> None:
    """The restart keeps the attachments."""
    pid = machine.unit_property(UNIT, "MainPID")
    assert statuses(machine, "ADD") == [0]
    machine.run("kill", "-STOP", pid)
    machine.run("tail", "-f", "/dev/null", "-s", "0.1", "--pid", pid)  # waits until the process has ended
    wait_until(
        lambda: machine.unit_property(UNIT, "NRestarts") == "1" and machine.unit_property(UNIT, "ActiveState") == "active"
    )
    assert machine.unit_property(UNIT, "MainPID") != pid
    assert statuses(machine, "STATUS", "DEL") == [0, 0]
    assert machine.run("ip", "-n", "pod", "-brief", "link", "show", "eth0", check=False) == ""
