"""Leak check of the tests: it reports and removes leftovers of a test, and nothing older or foreign."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.leaks import Footprint, left_since, remove_since
from harness.netns import MARK, Netns, run
from harness.polling import wait_until
from harness.shim import ROOT

LINK = f"svc{MARK[-8:]}"  # unique to this process: other processes may run these tests at the same time


def test_unchanged_process_has_no_leak() -> None:
    assert left_since(Footprint.take(), timeout=0) == []


def test_open_descriptor_is_reported_with_its_target() -> None:
    before = Footprint.take()
    with open("/etc/hostname") as file:
        assert left_since(before, timeout=0) == [f"descriptor {file.fileno()}: /etc/hostname"]


def test_descriptor_that_replaces_another_is_not_a_leak() -> None:
    old = os.open("/etc/hostname", os.O_RDONLY)
    before = Footprint.take()
    os.close(old)
    with open("/etc/hosts"):
        assert left_since(before, timeout=0) == []


def test_descriptor_of_unreachable_object_is_not_a_leak() -> None:
    class Cycle:
        """Unreachable object with a descriptor that only the garbage collector closes."""

        def __init__(self) -> None:
            self.me = self
            self.fd = os.open("/etc/hostname", os.O_RDONLY)

        def __del__(self) -> None:
            os.close(self.fd)

    before = Footprint.take()
    Cycle()
    assert left_since(before) == []


def test_running_child_is_reported_and_ended() -> None:
    before = Footprint.take()
    with subprocess.Popen(["sleep", "60"]) as child:
        wait_until(lambda: left_since(before, timeout=0) == [f"process {child.pid}: sleep 60"])  # exec sets its name
        remove_since(before)
    assert left_since(before) == []


def test_orphan_of_a_child_is_reported() -> None:
    before = Footprint.take()
    subprocess.run(["/bin/sh", "-c", "sleep 60 & exit"], stdout=subprocess.DEVNULL, check=True)
    wait_until(lambda: any(leak.endswith(": sleep 60") for leak in left_since(before, timeout=0)))
    remove_since(before)
    assert left_since(before) == []


def test_ended_child_is_not_a_leak() -> None:
    before = Footprint.take()
    with subprocess.Popen(["true"]):
        assert left_since(before) == []


def test_thread_is_reported_until_it_ends() -> None:
    before, go = Footprint.take(), threading.Event()
    thread = threading.Thread(target=go.wait, name="left-over")
    thread.start()
    assert left_since(before, timeout=0) == ["thread left-over"]
    go.set()
    assert left_since(before) == []


@pytest.mark.root
def test_namespace_is_reported_and_removed() -> None:
    before = Footprint.take()
    namespace = Netns("leak")
    assert f"network namespace {namespace.name}" in left_since(before, timeout=0)
    remove_since(before)
    assert left_since(before, timeout=0) == []


@pytest.mark.root
@pytest.mark.parametrize(
    "name", [f"svc-node-{os.getpid()}-0", f"svc-node-{2**22}-0", "leak-gate-cni"], ids=["mine", "dead", "cni"]
)
def test_namespace_without_the_mark_is_not_a_leak(name: str) -> None:
    """It may belong to another run of the harness, to a killed one or to a container runtime."""
    before = Footprint.take()
    run("ip", "netns", "add", name)
    try:
        assert left_since(before, timeout=0) == []
        remove_since(before)
        assert Path("/run/netns", name).exists()
    finally:
        run("ip", "netns", "delete", name)


@pytest.mark.root
def test_link_of_the_host_is_reported_and_removed() -> None:
    before = Footprint.take()
    run("ip", "link", "add", LINK, "type", "bridge")
    run("ip", "link", "set", LINK, "alias", MARK)
    assert left_since(before, timeout=0) == [f"link {LINK} in the host"]
    remove_since(before)
    assert left_since(before, timeout=0) == []


@pytest.mark.root
def test_link_to_a_sandbox_is_reported_and_removed() -> None:
    with Netns("leak") as sandbox:
        before = Footprint.take()
        run("ip", "link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", sandbox.name)
        assert left_since(before, timeout=0) == [f"link {LINK} in the host"]
        remove_since(before)
        assert left_since(before, timeout=0) == []


@pytest.mark.root
def test_link_without_the_mark_is_not_a_leak() -> None:
    before = Footprint.take()
    run("ip", "link", "add", LINK, "type", "bridge")
    try:
        assert left_since(before, timeout=0) == []
        remove_since(before)
        assert LINK in [name for _, name in socket.if_nameindex()]
    finally:
        run("ip", "link", "delete", LINK)


@pytest.mark.root
def test_mount_is_reported_and_removed(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    before = Footprint.take(tmp_path)
    run("mount", "-t", "tmpfs", "tmpfs", str(place))
    assert left_since(before, timeout=0) == [f"mount {place}"]
    remove_since(before)
    assert left_since(before, timeout=0) == []


@pytest.mark.root
def test_mounted_file_is_reported_elsewhere_too(tmp_path: Path) -> None:
    """A mount over a file of the machine would change what other tests read."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    for file in (own / "file", other):
        file.touch()
    before = Footprint.take(own)
    run("mount", "--bind", str(own / "file"), str(other))
    assert left_since(before, timeout=0) == [f"mount {other}"]
    remove_since(before)
    assert left_since(before, timeout=0) == []


@pytest.mark.root
def test_mount_elsewhere_is_not_a_leak(tmp_path: Path) -> None:
    place, own = tmp_path / "place", tmp_path / "own"
    place.mkdir()
    before = Footprint.take(own)
    run("mount", "-t", "tmpfs", "tmpfs", str(place))
    assert left_since(before, timeout=0) == []
    remove_since(before)
    run("umount", str(place))


def test_orphans_of_earlier_children_are_not_adopted(tmp_path: Path) -> None:
    """A shell that started another program may become pytest by `exec`."""
    go, pid_file = tmp_path / "go", tmp_path / "pid"
    other = 'until test -e "$2"; do sleep 0.01; done; sleep 1000002 & echo $! >"$3.new"; mv "$3.new" "$3"'
    program = (
        "import sys; from harness.leaks import Footprint, adopt_orphans, left_since; adopt_orphans();"
        "before = Footprint.take(); print(flush=True); sys.stdin.read(); print(left_since(before, timeout=0))"
    )
    with subprocess.Popen(
        ["sh", "-c", f'{{ {other}; }} >/dev/null & exec "$0" -c "$1"', sys.executable, program, go, pid_file],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        go.touch()
        wait_until(pid_file.exists)
        process.stdin.close()
        assert process.stdout.read() == "[]\n"
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_wait_for_leaks_has_a_timeout() -> None:
    before, started = Footprint.take(), time.monotonic()
    with open("/etc/hostname"):
        assert left_since(before, timeout=0.2) != []
    assert time.monotonic() - started >= 0.2
