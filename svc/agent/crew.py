"""The agent's threads: one at least is idle and listens, however many calls wait for something.

A thread that begins to work and leaves nobody idle behind starts another one. When there are enough idle ones, a thread that
has done its work ends.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from svc.herd import HERD

KEPT = 8  # idle threads that stay: a burst finds them, and each costs some 50 KiB
MOST = 128  # calls at a time; the rest wait in the queue
BUSY_SECONDS = 40.0  # one of so many calls begins or ends within this time, unless all are stuck

Job = Callable[[], None]


class Crew:
    """`turn` is called again and again by every thread: it waits for a job and returns it, or None when all is over."""

    def __init__(self, turn: Callable[[], Job | None]) -> None:
        self._turn = turn
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._over = False
        self._number = 0
        self._progress = 0.0  # when a job began or ended last, of the monotonic clock

    def start(self) -> None:
        with self._lock:
            for _ in range(KEPT):
                self._start_one()

    def dismiss(self, deadline: float) -> int:
        """Waits, until the deadline (of the monotonic clock), for all to find that it is over; how many have not."""
        with self._lock:
            self._over = True
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        HERD.scatter()
        return sum(thread.is_alive() for thread in threads)

    def is_busy(self) -> bool:
        """Tell whether all threads are occupied, and one of them has begun or ended a job of late."""
        with self._lock:
            return not self._idle and time.monotonic() - self._progress < BUSY_SECONDS

    def _start_one(self) -> None:
        """The caller holds the lock."""
        self._number += 1
        thread = threading.Thread(target=self._serve, name=f"worker-{self._number}", daemon=True)
        thread.start()
        self._threads.add(thread)
        self._idle += 1

    def _serve(self) -> None:
        while (job := self._turn()) is not None:
            self._begin()
            job()
            if not self._is_wanted():
                return

    def _begin(self) -> None:
        with self._lock:
            self._idle -= 1
            self._progress = time.monotonic()
            crowd = len(self._threads) - self._idle > 1
            if not self._idle and not self._over and len(self._threads) < MOST:
                with suppress(RuntimeError):  # the system gives no further thread: this one listens when it has done its work
                    self._start_one()
        HERD.call_begins(crowd=crowd)

    def _is_wanted(self) -> bool:
        """Where all is over, everybody is: what is still queued must be done."""
        with self._lock:
            if self._idle >= KEPT and not self._over:
                self._threads.discard(threading.current_thread())
                return False
            self._idle += 1
            self._progress = time.monotonic()
            return True
