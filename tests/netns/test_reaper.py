"""Host interfaces are deleted fast, together, and only those that were meant."""

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
from svc.dataplane.kernel import Kernel
from svc.dataplane.reaper import Reaper
from svc.model.errors import Code, PeerError

pytestmark = pytest.mark.root

THREADS = 16
TIMEOUT_SECONDS = 20.0  # seconds

_numbers = count(1)


def _nothing() -> None: ...


class WatchedKernel(Kernel):
    """Counts exchanges that delete, and does something before or after each."""

    def __init__(self) -> None:
        super().__init__()
        self.deletions: list[list[str]] = []  # what each exchange does, message by message
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
    """Pairs with one end in the pod, as attachments are: index and name of the host's ends."""

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
    until = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < until, "it never came to pass"
        time.sleep(0.001)


def settled(futures: list[Future[Any]]) -> None:
    for future in futures:
        future.result(TIMEOUT_SECONDS)


def test_removed_link_is_gone_on_both_sides(netns: Netns, pod: Netns, reaper: Reaper, make_links: MakeLinks) -> None:
    (link,) = make_links(1)
    run("ip", "link", "set", link[1], "up")
    run("ip", "route", "add", "10.9.9.9/32", "dev", link[1])
    reaper.remove(*link)
    assert (netns.links(), netns.ip("route"), pod.links()) == ([], [], [])


def test_link_that_is_not_there_is_fine(reaper: Reaper, kernel: WatchedKernel) -> None:
    reaper.remove(4711, "svc1")
    assert kernel.deletions == []


def test_link_of_another_name_is_spared(netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks) -> None:
    """The index now belongs to another program's link."""
    ((index, name),) = make_links(1)
    reaper.remove(index, "svcother")
    assert netns.links() == [name]
    assert kernel.deletions == []


def test_many_links_die_in_few_deletions(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """Each is gone for good when its own caller is answered; those that wait at the same time go as a group."""

    def remove(index: int, name: str) -> bool:
        found = reaper.remove(index, name)
        assert kernel.find_link(index=index) is None
        return found

    links = make_links(40)
    settled([callers.submit(remove, *link) for link in links])
    assert netns.links() == []
    assert len(kernel.deletions) <= 20
    assert max(map(len, kernel.deletions)) > 2


def test_all_callers_of_one_link_are_answered(
    netns: Netns, reaper: Reaper, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    (link,) = make_links(1)
    settled([callers.submit(reaper.remove, *link) for _ in range(THREADS)])
    assert netns.links() == []


def test_answer_comes_before_the_acknowledgement(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks
) -> None:
    """The kernel's notification is the answer; threads that wait for a barrier do not delay other calls."""
    first, second = make_links(2)
    acknowledged = threading.Event()
    kernel.after = lambda: acknowledged.wait(TIMEOUT_SECONDS)
    reaper.remove(*first)
    reaper.remove(*second)
    assert not acknowledged.is_set()
    assert netns.links() == []
    acknowledged.set()


def test_link_that_has_the_index_of_one_before_is_not_taken_for_gone(
    netns: Netns, pod: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """The acknowledgement of the deletion before comes when the next one, of the same index, waits to be carried out."""
    ((index, name),) = make_links(1)
    acknowledged, next_one = threading.Event(), threading.Event()
    kernel.after = lambda: acknowledged.wait(TIMEOUT_SECONDS)
    reaper.remove(index, name)
    run("ip", "link", "add", name, "index", str(index), "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    kernel.before = lambda: next_one.wait(TIMEOUT_SECONDS)
    removal = callers.submit(reaper.remove, index, name)
    wait_for(lambda: len(kernel.deletions) == 2)
    acknowledged.set()
    time.sleep(0.1)  # for the wrong answer to come
    assert not removal.done()
    next_one.set()
    settled([removal])
    assert netns.links() == []


def test_link_that_disappears_by_itself_is_gone(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """As those of a dying sandbox do: before the deletion that waits for its turn, which must leave no trace of it."""
    first, second, third = make_links(3)
    may_delete = threading.Event()
    kernel.before = lambda: may_delete.wait(TIMEOUT_SECONDS)
    held = callers.submit(reaper.remove, *first)
    wait_for(lambda: bool(kernel.deletions))
    waiting = callers.submit(reaper.remove, *second)
    wait_for(lambda: second[0] in reaper._pending)
    run("ip", "link", "delete", second[1])
    waiting.result(TIMEOUT_SECONDS)
    may_delete.set()
    held.result(TIMEOUT_SECONDS)
    reaper.remove(*third, timeout=5)
    assert netns.links() == []


def test_lost_notifications_are_made_good_by_acknowledgements(
    netns: Netns, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf:
        """A monitor whose socket overflows all the time."""

        def __init__(self) -> None:
            self._woken = threading.Event()
            self.wake, self.close = self._woken.set, _nothing

        def wait(self, timeout: float) -> list[int]:
            self._woken.wait(0.01)
            raise OSError(errno.ENOBUFS, "lost")

    monkeypatch.setattr("svc.dataplane.reaper.netns.LinkMonitor", Deaf)
    reaper = Reaper(kernel)
    settled([callers.submit(reaper.remove, *link) for link in make_links(20)])
    reaper.close()
    assert netns.links() == []


@pytest.mark.parametrize(
    "failure",
    [rtnl.NetlinkError(errno.EPERM, "not permitted"), OSError(errno.EMFILE, "too many files"), TimeoutError(110, "no answer")],
    ids=["refused", "no-socket", "no-answer"],
)
def test_failed_deletion_is_told_and_the_next_one_works(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor, failure: OSError
) -> None:
    def fail() -> None:
        raise type(failure)(*failure.args)

    links = make_links(4)
    kernel.before = fail
    for future in [callers.submit(reaper.remove, *link, timeout=5) for link in links]:
        told = future.exception(TIMEOUT_SECONDS)
        assert isinstance(told, PeerError)
        assert told.code == Code.KERNEL
        assert "not gone after" not in told.msg
    kernel.before = _nothing
    settled([callers.submit(reaper.remove, *link, timeout=5) for link in links])
    assert netns.links() == []


def test_caller_does_not_wait_without_end(reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks) -> None:
    """The deletion itself goes on."""
    ((index, name),) = make_links(1)
    may_delete = threading.Event()
    kernel.before = lambda: may_delete.wait(TIMEOUT_SECONDS)
    with pytest.raises(PeerError, match=f"'{name}' is not gone after 0.05 s"):
        reaper.remove(index, name, timeout=0.05)
    may_delete.set()
    wait_for(lambda: kernel.find_link(index=index) is None)


def test_close_finishes_what_was_asked_for(
    netns: Netns, reaper: Reaper, kernel: WatchedKernel, make_links: MakeLinks, callers: ThreadPoolExecutor
) -> None:
    """With several idle deleters, one at work and more work waiting; then all threads end."""
    barrier = threading.Barrier(6)
    kernel.after = lambda: barrier.wait(TIMEOUT_SECONDS)
    for link in make_links(6):  # one after another, each in its barrier: so there are six deleters
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
    settled([*removals, closing])
    assert netns.links() == []
    assert not any(thread.name.startswith(("deleter", "link-monitor")) for thread in threading.enumerate())
