"""Parked calls: one thread enforces their deadlines and detects clients that disconnect."""

import heapq
import os
import select
import socket
import threading
import time
from contextlib import suppress
from itertools import count

from svc.call_trace import CallTrace
from svc.waits.wait import Wait, WaitOutcome

_MAX_POLL_SECONDS = 3600.0  # epoll does not accept timeouts of weeks
_MAX_STALE = 32  # ended waits that may remain in the heap of deadlines
_DISCONNECTED = select.EPOLLRDHUP  # the client has closed its sending side; epoll always reports EPOLLHUP and EPOLLERR


class ParkedCalls:
    """The calls that wait without a worker. The thread starts with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._woken, select.EPOLLIN)
        self._waits: dict[int, Wait] = {}  # by the descriptor of the connection
        self._calls: dict[Wait, tuple[float, CallTrace]] = {}  # since when the call waits (monotonic clock)
        self._deadlines: list[tuple[float, int, Wait]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._is_shut = False

    def park(self, wait: Wait, connection: socket.socket, trace: CallTrace) -> None:
        """Add a wait of the call that `trace` is of. The connection must stay open until it ends."""
        fd = connection.fileno()
        with self._lock:
            refused = WaitOutcome.SHUTDOWN if self._is_shut else self._start_thread()
            if refused is None:
                self._add(wait, fd)
                self._calls[wait] = time.monotonic(), trace
        if refused is not None:
            wait.end(refused)
        else:
            wait.then(lambda: self._remove(fd, wait))

    def report(self) -> list[tuple[Wait, float, CallTrace]]:
        """Return each wait, since when it waits (monotonic clock), and its call."""
        with self._lock:
            return [(wait, since, trace) for wait, (since, trace) in self._calls.items()]

    def end_all(self) -> None:
        """End every wait, and those that are parked later."""
        with self._lock:
            self._is_shut = True
            waits = tuple(self._waits.values())
        for wait in waits:
            wait.end(WaitOutcome.SHUTDOWN)

    def close(self) -> None:
        """End every wait, and the thread."""
        self.end_all()
        os.eventfd_write(self._woken, 1)
        if self._thread is not None:
            self._thread.join()
        self._epoll.close()
        os.close(self._woken)

    def _start_thread(self) -> WaitOutcome | None:
        """Start the thread. Return an outcome if the system refuses a thread, because deadlines could not be enforced."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="parked-calls", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return WaitOutcome.TIMEOUT
            self._thread = thread
        return None

    def _add(self, wait: Wait, fd: int) -> None:
        self._epoll.register(fd, _DISCONNECTED)
        self._waits[fd] = wait
        heapq.heappush(self._deadlines, (wait.deadline, next(self._numbers), wait))
        if self._deadlines[0][2] is wait:
            os.eventfd_write(self._woken, 1)

    def _remove(self, fd: int, wait: Wait) -> None:
        """Remove a wait that has ended. The connection may be closed, and another one may have its descriptor."""
        with self._lock:
            self._calls.pop(wait, None)
            if self._waits.get(fd) is wait:
                del self._waits[fd]
                with suppress(OSError):
                    self._epoll.unregister(fd)
                self._prune_deadlines()

    def _prune_deadlines(self) -> None:
        """Drop the deadlines of ended waits. The caller holds the lock."""
        if len(self._deadlines) > 2 * len(self._waits) + _MAX_STALE:
            self._deadlines = [entry for entry in self._deadlines if entry[2].outcome is None]
            heapq.heapify(self._deadlines)

    def _run(self) -> None:
        while not self._is_shut or self._waits:
            for fd, _ in self._epoll.poll(self._until_next_deadline()):
                if fd == self._woken:
                    os.eventfd_read(self._woken)
                else:
                    self._on_disconnect(fd)
            for wait in self._take_expired():
                wait.end(WaitOutcome.TIMEOUT)

    def _on_disconnect(self, fd: int) -> None:
        with self._lock:
            wait = self._waits.get(fd) if _is_disconnected(fd) else None
        if wait is not None:
            wait.end(WaitOutcome.DISCONNECTED)

    def _until_next_deadline(self) -> float | None:
        with self._lock:
            return min(max(0.0, self._deadlines[0][0] - time.monotonic()), _MAX_POLL_SECONDS) if self._deadlines else None

    def _take_expired(self) -> list[Wait]:
        """Remove and return the waits whose deadline has passed. Some may have already ended."""
        now, expired = time.monotonic(), []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= now:
                expired.append(heapq.heappop(self._deadlines)[2])
        return expired


def _is_disconnected(fd: int) -> bool:
    """Return True if the peer has closed, now: the event may be of a closed connection that had the same descriptor."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))
