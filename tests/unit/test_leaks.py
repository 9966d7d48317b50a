"""The leak gate sees what it is there for, and nothing that was there before."""

import os
import subprocess
import threading
import time

import pytest

from harness.leaks import Footprint, left_since, remove_since
from harness.netns import Netns
from harness.patience import wait_until


def test_nothing_new_is_no_leak() -> None:
    assert left_since(Footprint.take(), patience=0) == []


def test_open_descriptor_is_told_with_its_target() -> None:
    before = Footprint.take()
    with open("/etc/hostname") as file:
        assert left_since(before, patience=0) == [f"descriptor {file.fileno()}: /etc/hostname"]


def test_descriptor_in_place_of_another_is_no_leak() -> None:
    old = os.open("/etc/hostname", os.O_RDONLY)
    before = Footprint.take()
    os.close(old)
    with open("/etc/hosts"):
        assert left_since(before, patience=0) == []


def test_descriptor_that_only_garbage_holds_is_no_leak() -> None:
    class Cycle:
        """Unreachable from outside, but closed by the collector alone."""

        def __init__(self) -> None:
            self.me = self
            self.fd = os.open("/etc/hostname", os.O_RDONLY)

        def __del__(self) -> None:
            os.close(self.fd)

    before = Footprint.take()
    Cycle()
    assert left_since(before) == []


def test_running_child_is_told_and_ended() -> None:
    before = Footprint.take()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert left_since(before, patience=0) == [f"process {child.pid}: sleep 60"]
        remove_since(before)
    assert left_since(before) == []


def test_orphan_of_a_child_is_told() -> None:
    before = Footprint.take()
    subprocess.run(["/bin/sh", "-c", "sleep 60 & exit"], stdout=subprocess.DEVNULL, check=True)
    wait_until(lambda: any(told.endswith(": sleep 60") for told in left_since(before, patience=0)))
    remove_since(before)
    assert left_since(before) == []


def test_child_that_has_ended_is_no_leak() -> None:
    before = Footprint.take()
    with subprocess.Popen(["true"]):
        assert left_since(before) == []


def test_thread_is_told_until_it_ends() -> None:
    before, go = Footprint.take(), threading.Event()
    thread = threading.Thread(target=go.wait, name="left-over")
    thread.start()
    assert left_since(before, patience=0) == ["thread left-over"]
    go.set()
    assert left_since(before) == []


@pytest.mark.root
def test_namespace_is_told_and_removed() -> None:
    before = Footprint.take()
    namespace = Netns("leak")
    assert f"network namespace {namespace.name}" in left_since(before, patience=0)
    remove_since(before)
    assert left_since(before, patience=0) == []


@pytest.mark.root
def test_namespace_of_another_live_process_is_no_leak() -> None:
    before = Footprint.take()
    with subprocess.Popen(["sleep", "60"]) as other:
        name = f"svc-node-{other.pid}-0"
        subprocess.run(["ip", "netns", "add", name], check=True)
        assert not any(name in line for line in left_since(before, patience=0))
        other.kill()
        other.wait()
        assert left_since(before, patience=0) == [f"network namespace {name}"]
        remove_since(before)


@pytest.mark.root
def test_link_of_the_host_is_told_and_removed() -> None:
    before = Footprint.take()
    subprocess.run(["ip", "link", "add", "leak-gate", "type", "bridge"], check=True)
    assert left_since(before, patience=0) == ["link leak-gate in the host"]
    remove_since(before)
    assert left_since(before, patience=0) == []


def test_patience_ends() -> None:
    before, started = Footprint.take(), time.monotonic()
    with open("/etc/hostname"):
        assert left_since(before, patience=0.2) != []
    assert time.monotonic() - started >= 0.2
