"""Deletion of host interfaces: in groups, before the acknowledgement, and only the requested ones."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from harness.netns import Netns, run
from svc._core import rtnl
from svc._core.netns import Socket
from svc.dataplane import reaper as module
from svc.dataplane.kernel import Kernel
from svc.dataplane.reaper import Reaper
from svc.model.errors import Code, PeerError

pytestmark = pytest.mark.root

THREADS = 16
TIMEOUT_SECONDS = 20.0

_numbers = count(1)


def _nothing() -> None: ...


class WatchedKernel(Kernel):
    """Kernel that records exchanges with deletions, and calls a function before and after each."""

    def __init__(self) -> None:
        super().__init__()
        self.deletions: list[list[str]] = []  # the labels of the messages of each exchange
        self.before: Callable[[], object] = _nothing
        self.after: Callable[[], object] = _nothing

    def host(self) -> Any:
        return _WatchedSocket(super().host(), self)


class _WatchedSocket:
    def __init__(self, socket: Socket, kernel: WatchedKernel) -> None:
        self._socket, self._kernel = socket, kernel
        self.query, self.close = socket.query, socket.close

    def execute(self, batch: rtnl.Batch) -> None:
        labels = [batch.label(number) for number in range(len(batch))]
        if not labels[-1].startswith("delete"):
            self._socket.execute(batch)
            return
        self._kernel.deletions.append(labels)
        self._kernel.before()
        self._socket.execute(batch)
        self._kernel.after()


@pytest.fixture
def kernel(netns: Netns) -> Iterator[WatchedKernel]:
    kernel = WatchedKernel()
    yield kernel
    kernel.host().close()
    kernel.close()


@pytest.fixture
def reaper(kernel: WatchedKernel) -> Iterator[Reaper]:
    reaper = Reaper(kernel)
    yield reaper
    reaper.close()


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as callers:
        yield callers


MakeLinks = Callable[[int], list[tuple[int, str]]]


@pytest.fixture
def make_links(kernel: WatchedKernel, pod: Netns) -> MakeLinks:
    """Return a function that creates veth pairs with one end in the pod, and returns index and name of the host's ends."""

    def make(number: int) -> list[tuple[int, str]]:
        fd, batch, made = os.open(pod.path, os.O_RDONLY), rtnl.Batch(), []
        for serial in (next(_numbers) for _ in range(number)):
            made.append((10_000 + serial, f"svc{serial}"))
            batch.create_veth(f"svc{serial}", 10_000 + serial, b"", 0, 1, f"eth{serial}", 0, b"", fd)
        kernel.host().execute(batch)
        os.close(fd)
        return made

    return make


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.001)


def wait_for_results(futures: list[Future[Any]]) -> None:
    for future in futures:
        future.result(TIMEOUT_SECONDS)


def test_link_is_removed_on_both_sides(netns: Netns, pod: Netns, reaper: Reaper, make_links: MakeLinks) -> None:
    (link,) = make_links(1)
    run("ip", "link", "set", link[1], "up")
    run("ip", "route", "add", "10.9.9.9/32", "dev", link[1])
    reaper.remove(*link)
    assert (netns.links(), netns.ip("route"), pod.links()) == ([], [], [])


def test_missing_link_is_not_an_error(reaper: Reaper, kernel: WatchedKernel) -> None:
    reaper.remove(4711, "svc1")
    assert kernel.deletions == []


def test_link_of_another_name_is_kept(netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks) -> None:
    """The index now belongs to the link of another program."""
    ((index, name),) = make_links(1)
    reaper.remove(index, "svcother")
    assert netns.links() == [name]
    assert kernel.deletions == []


def test_many_links_are_removed_in_few_deletions(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """Each link is removed when its caller returns. Links that wait at the same time are deleted as a group."""

    def remove(index: int, name: str) -> bool:
        found = reaper.remove(index, name)
        assert kernel.find_link(index=index) is None
        return found

    links = make_links(40)
    wait_for_results([callers.submit(remove, *link) for link in links])
    assert netns.links() == []
    assert len(kernel.deletions) <= 20
    assert max(map(len, kernel.deletions)) > 2


def test_all_callers_of_one_link_return(
    netns: Netns, reaper: Reaper, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    (link,) = make_links(1)
    wait_for_results([callers.submit(reaper.remove, *link) for _ in range(THREADS)])
    assert netns.links() == []


def test_remove_returns_before_the_acknowledgement(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks
) -> None:
    """The notification of the kernel is enough. Threads that wait for an acknowledgement do not delay other calls."""
    first, second = make_links(2)
    acknowledged = threading.Event()
    kernel.after = lambda: acknowledged.wait(TIMEOUT_SECONDS)
    reaper.remove(*first)
    reaper.remove(*second)
    assert not acknowledged.is_set()
    assert netns.links() == []
    acknowledged.set()


def test_acknowledgement_of_an_earlier_link_of_the_same_index_does_not_count(
    netns: Netns, pod: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """It arrives while the deletion of the next link with this index has not begun."""
    ((index, name),) = make_links(1)
    acknowledged, may_delete = threading.Event(), threading.Event()
    kernel.after = lambda: acknowledged.wait(TIMEOUT_SECONDS)
    reaper.remove(index, name)
    run("ip", "link", "add", name, "index", str(index), "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    kernel.before = lambda: may_delete.wait(TIMEOUT_SECONDS)
    removal = callers.submit(reaper.remove, index, name)
    wait_for(lambda: len(kernel.deletions) == 2)
    acknowledged.set()
    time.sleep(0.1)  # a wrong result would arrive in this time
    assert not removal.done()
    may_delete.set()
    wait_for_results([removal])
    assert netns.links() == []


def test_caller_returns_if_its_link_disappears(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """The link of a deleted sandbox disappears before its queued deletion, which must then be removed from the queue."""
    first, second, third = make_links(3)
    may_delete = threading.Event()
    kernel.before = lambda: may_delete.wait(TIMEOUT_SECONDS)
    blocked = callers.submit(reaper.remove, *first)
    wait_for(lambda: bool(kernel.deletions))
    waiting = callers.submit(reaper.remove, *second)
    wait_for(lambda: second[0] in reaper._pending)
    run("ip", "link", "delete", second[1])
    waiting.result(TIMEOUT_SECONDS)
    may_delete.set()
    blocked.result(TIMEOUT_SECONDS)
    reaper.remove(*third, timeout=5)
    assert netns.links() == []


def test_acknowledgements_replace_lost_notifications(
    netns: Netns, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OverflowingMonitor:
        """Monitor whose socket always overflows."""

        def __init__(self) -> None:
            self._woken = threading.Event()
            self.wake, self.close = self._woken.set, _nothing

        def wait(self, timeout: float) -> list[int]:
            self._woken.wait(0.01)
            raise OSError(errno.ENOBUFS, "lost")

    monkeypatch.setattr("svc.dataplane.reaper.netns.LinkMonitor", OverflowingMonitor)
    reaper = Reaper(kernel)
    wait_for_results([callers.submit(reaper.remove, *link) for link in make_links(20)])
    reaper.close()
    assert netns.links() == []


@pytest.mark.parametrize(
    "failure",
    [rtnl.NetlinkError(errno.EPERM, "not permitted"), OSError(errno.EMFILE, "too many files"), TimeoutError(110, "no answer")],
    ids=["refused", "no-socket", "no-answer"],
)
def test_failed_deletion_raises_and_the_next_one_works(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor, failure: OSError
) -> None:
    def fail() -> None:
        raise type(failure)(*failure.args)

    links = make_links(4)
    kernel.before = fail
    for future in [callers.submit(reaper.remove, *link, timeout=5) for link in links]:
        error = future.exception(TIMEOUT_SECONDS)
        assert isinstance(error, PeerError)
        assert error.code == Code.KERNEL
        assert "not gone after" not in error.msg
    kernel.before = _nothing
    wait_for_results([callers.submit(reaper.remove, *link, timeout=5) for link in links])
    assert netns.links() == []


def test_wait_of_a_caller_has_a_timeout(reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks) -> None:
    """The deletion itself continues."""
    ((index, name),) = make_links(1)
    may_delete = threading.Event()
    kernel.before = lambda: may_delete.wait(TIMEOUT_SECONDS)
    with pytest.raises(PeerError, match=f"'{name}' is not gone after 0.05 s"):
        reaper.remove(index, name, timeout=0.05)
    may_delete.set()
    wait_for(lambda: kernel.find_link(index=index) is None)


def test_caller_works_in_the_meantime(reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks) -> None:
    """The deletion has been asked for, and does not wait for the work."""
    (link,) = make_links(1)
    deleted = threading.Event()
    kernel.after = deleted.set
    assert reaper.remove(*link, meantime=lambda: deleted.wait(TIMEOUT_SECONDS))
    assert deleted.is_set()


def test_caller_beside_others_does_not_work_in_the_meantime(
    reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """Many releases share a write, and each would make the plans of the others useless."""
    first, second = make_links(2)
    may_delete, work = threading.Event(), list[int]()
    kernel.before = lambda: may_delete.wait(TIMEOUT_SECONDS)
    removals = [callers.submit(reaper.remove, *first)]
    wait_for(lambda: len(reaper._pending) == 1)
    removals.append(callers.submit(reaper.remove, *second, meantime=lambda: work.append(1)))
    wait_for(lambda: len(reaper._pending) == 2)
    may_delete.set()
    wait_for_results(removals)
    assert work == []


def test_idle_deleters_end_except_one(
    monkeypatch: pytest.MonkeyPatch, netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    barrier = threading.Barrier(6)
    kernel.after = lambda: barrier.wait(TIMEOUT_SECONDS)
    for link in make_links(6):  # each deleter waits in the barrier, so six deleters are started
        reaper.remove(*link)
    wait_for(lambda: [thread.name.startswith("deleter") for thread in threading.enumerate()].count(True) == 1)
    kernel.after = _nothing
    for link in make_links(3):
        assert reaper.remove(*link)
    assert netns.links() == []


def test_close_finishes_requested_deletions(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """There are several idle deleters, a busy one and queued deletions. All threads end."""
    barrier = threading.Barrier(6)
    kernel.after = lambda: barrier.wait(TIMEOUT_SECONDS)
    for link in make_links(6):  # each deleter waits in the barrier, so six deleters are started
        reaper.remove(*link)
    wait_for(lambda: reaper._idle == 6)
    may_delete = threading.Event()
    kernel.before, kernel.after = (lambda: may_delete.wait(TIMEOUT_SECONDS)), _nothing
    first, *others = make_links(4)
    removals: list[Future[Any]] = [callers.submit(reaper.remove, *first)]
    wait_for(lambda: len(kernel.deletions) == 7)
    removals += [callers.submit(reaper.remove, *link) for link in others]
    wait_for(lambda: len(reaper._pending) == 4)
    closing = callers.submit(reaper.close)
    wait_for(lambda: reaper._closing)
    may_delete.set()
    wait_for_results([*removals, closing])
    assert netns.links() == []
    assert not any(thread.name.startswith(("deleter", "link-monitor")) for thread in threading.enumerate())
