"""Notifications of deleted links from the real kernel."""

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

TIMEOUT_SECONDS = 20.0  # only a failing test waits that long
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
    """Return at least this number of notifications, unless the timeout ends first."""
    found: list[int] = []
    deadline = monotonic() + TIMEOUT_SECONDS
    while len(found) < number and monotonic() < deadline:
        found += monitor.wait(TIMEOUT_SECONDS)
    return found


def test_deletion_is_reported_before_its_ack(host_socket: netns.Socket, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """The kernel sends the ack after an RCU barrier. On a busy machine, one early notification in five is enough."""
    indexes = range(1000, 1005)
    create(host_socket, sandbox, indexes)
    early = 0
    for index in indexes:
        with ThreadPoolExecutor(1) as pool:
            acknowledged = pool.submit(acknowledged_at, host_socket, index)
            assert monitor.wait(TIMEOUT_SECONDS) == [index]
            reported = monotonic()
            early += reported < acknowledged.result()
    assert early


def acknowledged_at(host_socket: netns.Socket, index: int) -> float:
    host_socket.execute(deletion(index))
    return monotonic()


def test_only_deletions_are_reported(host: Side, host_socket: netns.Socket, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """Creations, changes, and ports that leave their bridge are not reported."""
    create(host_socket, sandbox, range(1000, 1001))
    host.netns.run("ip", "link", "add", "br0", "type", "bridge")
    for change in ("mtu 1400", "master br0", "nomaster", "down", "up"):
        host.netns.run("ip", "link", "set", "svc1000", *change.split())
    assert monitor.wait(0) == []
    host_socket.execute(deletion(1000))
    assert monitor.wait(TIMEOUT_SECONDS) == [1000]


def test_deletion_in_another_namespace_is_not_reported(host: Side, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """The monitor reports only links of its own namespace."""
    sandbox.netns.run("ip", "link", "add", "other", "type", "bridge")
    sandbox.netns.run("ip", "link", "del", "other")
    assert monitor.wait(0) == []


def test_one_deletion_removes_a_group(host: Side, host_socket: netns.Socket, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """Each link of the group is reported. Links of another group are kept."""
    create(host_socket, sandbox, range(1000, 1020))
    other_group = Batch()
    other_group.create_veth("stays", 2000, b"", 0, 1, "eth0", 0, b"", sandbox.fd)
    host_socket.execute(other_group)
    batch = Batch()
    batch.delete_group(GROUP)
    host_socket.execute(batch)
    assert sorted(wait_for(monitor, 20)) == list(range(1000, 1020))
    assert host.netns.links() == ["stays"]


def test_wake_ends_a_wait(monitor: netns.LinkMonitor) -> None:
    """Another thread can call it, also before the wait. Several calls end only one wait."""
    started = monotonic()
    timer = threading.Timer(0.02, monitor.wake)
    timer.start()
    assert monitor.wait(TIMEOUT_SECONDS) == []
    timer.join()
    monitor.wake()
    monitor.wake()
    assert monitor.wait(TIMEOUT_SECONDS) == []
    assert monotonic() - started < TIMEOUT_SECONDS / 2
    started = monotonic()
    assert monitor.wait(0.02) == []
    assert monotonic() - started >= 0.02


def test_close_ends_a_wait(monitor: netns.LinkMonitor) -> None:
    """The waiting thread gets an empty list, or ValueError if it started after the close, like every later caller."""
    started = monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(monitor.wait, TIMEOUT_SECONDS)
        monitor.close()
        refused = waiting.exception()
    assert monotonic() - started < TIMEOUT_SECONDS / 2
    assert isinstance(refused, ValueError) or waiting.result() == []
    monitor.close()
    monitor.wake()
    assert monitor.fileno() == -1
    with pytest.raises(ValueError, match="closed"):
        monitor.wait(0)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_invalid_timeout_is_refused(monitor: netns.LinkMonitor, timeout: float) -> None:
    """No value means an infinite timeout."""
    with pytest.raises(ValueError, match="timeout"):
        monitor.wait(timeout)


def test_lost_notifications_are_reported(host_socket: netns.Socket, sandbox: Side, monitor: netns.LinkMonitor) -> None:
    """The monitor reports the loss, then the remaining notifications, and works again."""
    with socket.socket(fileno=os.dup(monitor.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the minimum of the kernel: room for a few notifications
    create(host_socket, sandbox, range(1000, 1030))
    batch = Batch()
    batch.delete_group(GROUP)
    host_socket.execute(batch)
    with pytest.raises(OSError, match="No buffer space") as loss:
        monitor.wait(TIMEOUT_SECONDS)
    assert loss.value.errno == errno.ENOBUFS
    assert 0 < len(monitor.wait(TIMEOUT_SECONDS)) < 30
    create(host_socket, sandbox, range(1000, 1001))
    host_socket.execute(deletion(1000))
    assert monitor.wait(TIMEOUT_SECONDS) == [1000]
