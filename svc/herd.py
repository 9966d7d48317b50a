"""A crowd of threads is kept together on one processor.

Only one thread at a time runs Python, and whoever lets go of the interpreter wakes the next one. On another processor that one
has to be roused first, which costs more than what it was let go for, often finds the interpreter taken again, and works with
cold caches. On one processor a burst of ADDs takes a fifth less time, and one of DELs a quarter.

It is never for long: who knows what else wants that processor. After each stretch the system's scheduler has its way again,
and the next crowd gathers wherever it has put us.
"""

import os
import threading
import time
from contextlib import suppress

STRETCH = 0.1  # seconds


class Herd:
    """All threads of this process, of whatever library."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pasture: set[int] = set()  # the processors for all of them; empty while they are not kept together
        self._gathered = 0.0

    def call_begins(self, *, crowd: bool) -> None:
        """On the thread that is going to carry it out; `crowd`: others are at work."""
        if not self._lock.acquire(blocking=False):  # somebody else sees to it
            return
        try:
            if not self._pasture:
                if crowd:
                    self._gather()
            elif time.monotonic() - self._gathered > STRETCH:
                self._scatter()
        finally:
            self._lock.release()

    def scatter(self) -> None:
        """All of them, at once."""
        with self._lock:
            self._scatter()

    def leave(self) -> None:
        """The calling thread alone, and with it what it executes from now on, may run anywhere; until the next crowd."""
        if pasture := self._pasture:
            with suppress(OSError):
                os.sched_setaffinity(0, pasture)

    def _gather(self) -> None:
        """Where all may run is asked of the main thread: one that has just been started may have missed the last change."""
        pasture = os.sched_getaffinity(os.getpid())
        if len(pasture) > 1:
            self._pasture, self._gathered = pasture, time.monotonic()
            _drive_to({_here()})

    def _scatter(self) -> None:
        if self._pasture:
            _drive_to(self._pasture)
            self._pasture = set()


HERD = Herd()


def _drive_to(processors: set[int]) -> None:
    """What cannot be moved, because it has ended or may not be touched, stays where it is."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            os.sched_setaffinity(int(thread), processors)


def _here() -> int:
    """The processor that the calling thread runs on: field 39 of proc(5), counted from behind the name in parentheses."""
    with open("/proc/thread-self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[36])
