"""Notifications of deleted links, from the running kernel."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from harness.core_netns import Side
from svc._core import netns
from svc._core.rtnl import Batch

pytestmark = pytest.mark.root

LONG = 20.0  # seconds; no test waits that long, unless something is broken
GROUP = 77


@pytest.fixture
def monitor(host: Side) -> Iterator[netns.LinkMonitor]:
    opened = netns.LinkMonitor(host.fd)
    yield opened
    opened.close()


def create(host_socket: netns.Socket, sandbox: Side, indexes: range) -> None:
    batch = Batch()
    for index in indexes:
        batch.create_veth(f"svc{index}", index, b"", 0, 1, f"eth{index}", 0, b"", sandbox.fd)
        batch.set_link(index, group=GROUP, up=True)
    host_socket.execute(batch)


def deletion(index: int) -> Batch:
    batch = Batch()
    batch.delete_link(index)
    return batch


def wait_for(monitor: netns.LinkMonitor, number: int) -> list[int]:
    """Several notifications may need several calls."""
    found: list[int] = []
    deadline = monotonic() + LONG
    while len(found) < number and monotonic() < deadline:
        found += monitor.wait(LONG)
    return found


def test_deletion_is_told_before_its_ack(host_socket: netns.Socket, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """The kernel answers after an RCU barrier; one early notification in five is enough on a busy machine."""
    indexes = range(1000, 1005)
    create(host_socket, sandbox, indexes)
    early = 0
    for index in indexes:
        with ThreadPoolExecutor(1) as pool:
            acknowledged = pool.submit(acknowledged_at, host_socket, index)
            assert monitor.wait(LONG) == [index]
            told = monotonic()
            early += told < acknowledged.result()
    assert early


def acknowledged_at(host_socket: netns.Socket, index: int) -> float:
    host_socket.execute(deletion(index))
    return monotonic()


def test_only_deletions_are_told(host: Side, host_socket: netns.Socket, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """Not a creation, not a change, not a port that leaves its bridge."""
    create(host_socket, sandbox, range(1000, 1001))
    host.netns.run("ip", "link", "add", "br0", "type", "bridge")
    for change in ("mtu 1400", "master br0", "nomaster", "down", "up"):
        host.netns.run("ip", "link", "set", "svc1000", *change.split())
    assert monitor.wait(0) == []
    host_socket.execute(deletion(1000))
    assert monitor.wait(LONG) == [1000]


def test_deletion_elsewhere_is_not_told(host: Side, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """The namespace of the monitor counts."""
    sandbox.netns.run("ip", "link", "add", "other", "type", "bridge")
    sandbox.netns.run("ip", "link", "del", "other")
    assert monitor.wait(0) == []


def test_group_dies_in_one_deletion(host: Side, host_socket: netns.Socket, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """Each link of it is reported; another group stays."""
    create(host_socket, sandbox, range(1000, 1020))
    bystander = Batch()
    bystander.create_veth("stays", 2000, b"", 0, 1, "eth0", 0, b"", sandbox.fd)
    host_socket.execute(bystander)
    batch = Batch()
    batch.delete_group(GROUP)
    host_socket.execute(batch)
    assert sorted(wait_for(monitor, 20)) == list(range(1000, 1020))
    assert host.netns.links() == ["stays"]


def test_wake_ends_a_wait(monitor: netns.LinkMonitor) -> None:
    """From another thread, and ahead of the wait; it counts once."""
    started = monotonic()
    timer = threading.Timer(0.02, monitor.wake)
    timer.start()
    assert monitor.wait(LONG) == []
    timer.join()
    monitor.wake()
    monitor.wake()
    assert monitor.wait(LONG) == []
    assert monotonic() - started < LONG / 2
    started = monotonic()
    assert monitor.wait(0.02) == []
    assert monotonic() - started >= 0.02


def test_close_ends_a_wait(monitor: netns.LinkMonitor) -> None:
    """The waiting thread gets nothing; a later caller is refused, and the thread may be as late as that."""
    started = monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(monitor.wait, LONG)
        monitor.close()
        refused = waiting.exception()
    assert monotonic() - started < LONG / 2
    assert isinstance(refused, ValueError) or waiting.result() == []
    monitor.close()
    monitor.wake()
    assert monitor.fileno() == -1
    with pytest.raises(ValueError, match="closed"):
        monitor.wait(0)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_impossible_timeout_is_refused(monitor: netns.LinkMonitor, timeout: float) -> None:
    """No sign for "for ever"."""
    with pytest.raises(ValueError, match="timeout"):
        monitor.wait(timeout)


def test_lost_notifications_are_told(host_socket: netns.Socket, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """The loss, then what was kept, then the monitor works again."""
    with socket.socket(fileno=os.dup(monitor.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least the kernel allows: a few notifications
    create(host_socket, sandbox, range(1000, 1030))
    batch = Batch()
    batch.delete_group(GROUP)
    host_socket.execute(batch)
    with pytest.raises(OSError, match="No buffer space") as loss:
        monitor.wait(LONG)
    assert loss.value.errno == errno.ENOBUFS
    assert 0 < len(monitor.wait(LONG)) < 30
    create(host_socket, sandbox, range(1000, 1001))
    host_socket.execute(deletion(1000))
    assert monitor.wait(LONG) == [1000]
