"""Delete host interfaces fast.

The kernel acknowledges RTM_DELLINK only after an RCU barrier of some 20 ms; the link, its addresses and its routes are gone
after 1 ms. So a caller returns when the kernel's notification for its link arrives, and deleter threads wait for the
acknowledgement.

Rule 1. One deletion at a time unlinks: the kernel serializes that part anyway. Requests that arrive in this time are collected
into one group and deleted together.
Rule 2. Deletions wait for their barriers in parallel, one per thread.
Rule 3. A thread is started if all existing ones wait for barriers. Idle threads end after IDLE_SECONDS, except one.
"""

import errno
import itertools
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from svc import deadline
from svc._core import netns, rtnl
from svc.dataplane.kernel import Kernel, is_host_side, kernel_error
from svc.model.errors import Code, PeerError
from svc.model.shortage import no_thread

_MAX_DELETERS = 32  # an RCU barrier takes some 30 times as long as the unlinking before it
IDLE_SECONDS = 1.0
_GROUP_BASE = 0x53760000  # link groups are plain numbers; a high base avoids the groups of other programs
_MONITOR_POLL = 5.0  # seconds; close() wakes the monitor, so no caller waits for this time


def _nothing() -> None: ...


class _Removal:
    """One link that is being deleted. Callers wait for a plain lock, because an Event makes a DEL 15 us slower."""

    __slots__ = ("_lock", "failure", "index", "is_done")

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_done = False
        self.failure: PeerError | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def end(self, failure: PeerError | None) -> None:
        """Wake all waiting callers. Call it once."""
        self.failure = failure
        self.is_done = True
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Return True if the removal has ended within the time."""
        if self._lock.acquire(timeout=max(0.0, seconds)):
            self._lock.release()  # for the next waiting caller
        return self.is_done


class Reaper:
    """Deletion of host interfaces, by `remove` from any thread. `close` completes all requests and ends the threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._monitor = netns.LinkMonitor()
        self._groups = itertools.count(_GROUP_BASE)
        self._lock = threading.Condition()
        self._asked: list[_Removal] = []
        self._pending: dict[int, _Removal] = {}
        self._unlinking: set[_Removal] = set()
        self._idle = 0
        self._deleters: list[threading.Thread] = []
        self._numbers = itertools.count()
        self._closing = False
        self._watcher = threading.Thread(target=self._watch, name="link-monitor")
        self._watcher.start()

    def remove(
        self, index: int, name: str, *, peer_index: int = 0, timeout: float = 20.0, meantime: Callable[[], object] = _nothing
    ) -> bool:
        """Wait until the host's link does not exist. Return whether it existed. Raise PeerError.

        The link has this index and name. With `peer_index`, it may be renamed if it is a host side of svc with that peer.
        `meantime` is called while the kernel removes the link, unless it removes others too.
        """
        if _name_of(index) != name:
            link = self._kernel.find_link(index=index)
            if link is None or not (link["name"] == name or (peer_index and is_host_side(link, peer_index))):
                return False
        removal = self._ask(index)
        if len(self._pending) == 1:
            meantime()
        timeout = deadline.remaining(timeout)
        if not removal.wait(timeout):
            raise PeerError(
                f"interface {name!r} is not gone after {timeout:.3g} s",
                details="the kernel is busy, or the interface is held: see dmesg",
                code=Code.KERNEL,
            )
        if removal.failure is not None:
            raise removal.failure
        return True

    def close(self) -> None:
        with self._lock:
            self._closing = True
            self._lock.notify_all()
            deleters = tuple(self._deleters)
        for thread in deleters:
            thread.join()
        self._monitor.wake()
        self._watcher.join()
        self._monitor.close()

    def _ask(self, index: int) -> _Removal:
        with self._lock:
            removal = self._pending.get(index)
            if removal is not None:
                return removal
            if self._idle == 0 and len(self._deleters) < _MAX_DELETERS:
                self._start_deleter()
            removal = self._pending[index] = _Removal(index)
            self._asked.append(removal)
            self._lock.notify()
        return removal

    def _start_deleter(self) -> None:
        """Start a deleter; the caller holds the lock. Raise PeerError if the system has no thread and no deleter exists."""
        thread = threading.Thread(target=self._delete_asked, name=f"deleter-{next(self._numbers)}")
        try:
            thread.start()
        except RuntimeError as failure:
            if not self._deleters:
                raise no_thread() from failure
        else:
            self._deleters.append(thread)

    def _complete(self, removal: _Removal, failure: PeerError | None = None) -> None:
        """End a removal. A second call, by monitor or deleter, is ignored: another link may already have the index."""
        with self._lock:
            if self._pending.get(removal.index) is not removal:
                return
            del self._pending[removal.index]
            if removal in self._asked:  # the link disappeared before its turn
                self._asked.remove(removal)
            self._unlinking.discard(removal)
            if self._closing:
                self._lock.notify_all()
            elif not self._unlinking:
                self._lock.notify()
        removal.end(failure)

    def _watch(self) -> None:
        while True:
            with self._lock:
                if self._closing and not any(thread.is_alive() for thread in self._deleters):
                    return
            try:
                gone = self._monitor.wait(_MONITOR_POLL)
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise
                continue  # notifications were lost: the acknowledgements end the affected removals
            with self._lock:
                removals = [self._pending[index] for index in gone if index in self._pending]
            for removal in removals:
                self._complete(removal)

    def _delete_asked(self) -> None:
        while removals := self._take_asked():
            if len(removals) > 1:
                self._delete_group(removals)
            for removal in removals:
                self._delete_rest(removal)

    def _take_asked(self) -> list[_Removal]:
        """Wait until no deletion is unlinking, and return all requests; empty if this thread has to end."""
        with self._lock:
            self._idle += 1
            is_in_time = True
            while self._unlinking or not self._asked:
                is_spare = not (is_in_time or self._asked or self._unlinking) and len(self._deleters) > 1
                if is_spare or (self._closing and not self._asked):
                    self._deleters.remove(threading.current_thread())
                    break
                is_in_time = self._lock.wait(IDLE_SECONDS)
            self._idle -= 1
            removals, self._asked = self._asked, []
            self._unlinking.update(removals)
        return removals

    def _delete_group(self, removals: list[_Removal]) -> None:
        """Delete several links as one group. `_delete_rest` handles failures: most mean that a link no longer exists."""
        group = next(self._groups)
        batch = rtnl.Batch()
        for removal in removals:
            batch.set_link(removal.index, group=group)
        batch.delete_group(group)
        with suppress(OSError):
            self._kernel.host().execute(batch)

    def _delete_rest(self, removal: _Removal) -> None:
        if removal.is_done:
            return
        batch = rtnl.Batch()
        batch.delete_link(removal.index)
        try:
            self._kernel.host().execute(batch)
        except OSError as failure:  # a refusal, no reply, or no socket could be opened
            is_gone = isinstance(failure, rtnl.NetlinkError) and failure.errno == errno.ENODEV
            self._complete(removal, None if is_gone else kernel_error(failure))
        else:
            self._complete(removal)


def _name_of(index: int) -> str:
    """Return the name of the link, or an empty string. Unlike a netlink request, this never waits for a deletion."""
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""
