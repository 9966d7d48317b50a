"""Where calls wait without a thread of theirs: one thread minds all deadlines, and sees clients that hang up."""

import heapq
import select
import socket
import threading
import time
from contextlib import suppress
from itertools import count

from svc.waits.wait import End, Wait

_LONGEST = 3600.0  # seconds of one poll: the system takes no deadline that is weeks away
_SPARE = 32  # waits that ended may be as many before their deadlines are looked through
_GONE = select.EPOLLRDHUP  # the client has closed, or at least will send no more; EPOLLHUP and EPOLLERR come unasked


class Lobby:
    """The thread comes with the first call that waits. `dismiss` ends every wait there is, and from now on at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._waits: dict[int, Wait] = {}  # by the descriptor of the connection
        self._deadlines: list[tuple[float, int, Wait]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._dismissed = False

    def hold(self, wait: Wait, connection: socket.socket) -> None:
        """The connection must stay open until the wait has ended."""
        fd = connection.fileno()
        with self._lock:
            turned_away = End.STOPPING if self._dismissed else self._without_thread()
            if turned_away is None:
                self._take_in(wait, fd)
        if turned_away is not None:
            wait.end(turned_away)
        else:
            wait.then(lambda: self._let_go(fd, wait))

    def dismiss(self) -> None:
        with self._lock:
            self._dismissed = True
            waits = tuple(self._waits.values())
        for wait in waits:
            wait.end(End.STOPPING)

    def close(self) -> None:
        """When nobody waits any more."""
        self.dismiss()
        self._wake()
        if self._thread is not None:
            self._thread.join()
        for own in (self._epoll, self._wake_read, self._wake_write):
            own.close()

    def _without_thread(self) -> End | None:
        """Nobody waits where the system gives no thread that would mind the deadline."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="lobby", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return End.LATE
            self._thread = thread
        return None

    def _take_in(self, wait: Wait, fd: int) -> None:
        self._epoll.register(fd, _GONE)
        self._waits[fd] = wait
        heapq.heappush(self._deadlines, (wait.deadline, next(self._numbers), wait))
        if self._deadlines[0][2] is wait:
            self._wake()

    def _let_go(self, fd: int, wait: Wait) -> None:
        """Late, perhaps: the connection may be closed by then, and its number be another one's."""
        with self._lock:
            if self._waits.get(fd) is wait:
                del self._waits[fd]
                with suppress(OSError):
                    self._epoll.unregister(fd)
                self._forget_ended()

    def _forget_ended(self) -> None:
        """A deadline may be hours after the end. The caller holds the lock."""
        if len(self._deadlines) > 2 * len(self._waits) + _SPARE:
            self._deadlines = [entry for entry in self._deadlines if entry[2].outcome is None]
            heapq.heapify(self._deadlines)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is told already
            self._wake_write.send(b"x")

    def _run(self) -> None:
        while not self._dismissed or self._waits:
            for fd, _ in self._epoll.poll(self._until_next_deadline()):
                if fd == self._wake_read.fileno():
                    self._wake_read.recv(64)
                else:
                    self._hung_up(fd)
            for wait in self._late():
                wait.end(End.LATE)

    def _hung_up(self, fd: int) -> None:
        with self._lock:
            wait = self._waits.get(fd) if _is_hung_up(fd) else None
        if wait is not None:
            wait.end(End.GONE)

    def _until_next_deadline(self) -> float | None:
        with self._lock:
            return min(max(0.0, self._deadlines[0][0] - time.monotonic()), _LONGEST) if self._deadlines else None

    def _late(self) -> list[Wait]:
        """Those that ended before may be among them: nothing happens to these."""
        now, late = time.monotonic(), []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= now:
                late.append(heapq.heappop(self._deadlines)[2])
        return late


def _is_hung_up(fd: int) -> bool:
    """Right now: what the event was of may be closed, and its number be another one's."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))
