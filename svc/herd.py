"""A crowd of threads is kept together on one processor.

Only one thread at a time runs Python, and whoever lets go of the interpreter wakes the next one. On another processor that one
has to be roused first, which costs more than what it was let go for, often finds the interpreter taken again, and works with
cold caches. On one processor a burst of ADDs takes a fifth less time, and one of DELs a quarter.

It is never for long: who knows what else wants that processor. After each stretch the system's scheduler has its way again,
and the next crowd gathers wherever it has put us.

The main thread, which only waits for the end, stays out of it: where it may run is where all may, as the system's
administrator has said, or says meanwhile.
"""

import os
import threading
import time
from contextlib import suppress

STRETCH = 0.1  # seconds


class Herd:
    """All threads of this process but the main one, of whatever library."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._together = False
        self._gathered = 0.0

    def call_begins(self, *, crowd: bool) -> None:
        """On the thread that is going to carry it out; `crowd`: others are at work."""
        if not self._lock.acquire(blocking=False):  # somebody else sees to it
            return
        try:
            if not self._together:
                if crowd:
                    self._gather()
            elif time.monotonic() - self._gathered > STRETCH:
                self._scatter()
        except OSError:  # want of a descriptor, say: the next call tries again
            pass
        finally:
            self._lock.release()

    def scatter(self) -> None:
        """All of them, at once."""
        with self._lock, suppress(OSError):
            self._scatter()

    def leave(self) -> None:
        """The calling thread alone, and with it what it executes from now on, may run anywhere; until the next crowd."""
        if self._together:
            with suppress(OSError):
                os.sched_setaffinity(0, _pasture())

    def _gather(self) -> None:
        if len(_pasture()) > 1:
            _drive_to({_here()})
            self._together, self._gathered = True, time.monotonic()

    def _scatter(self) -> None:
        if self._together:
            _drive_to(_pasture())
            self._together = False


HERD = Herd()


def _pasture() -> set[int]:
    """The processors for all."""
    return os.sched_getaffinity(os.getpid())


def _drive_to(processors: set[int]) -> None:
    """What cannot be moved, because it has ended or may not be touched, stays where it is. OSError: nothing has moved."""
    for thread in map(int, os.listdir("/proc/self/task")):
        if thread != os.getpid():
            with suppress(OSError):
                os.sched_setaffinity(thread, processors)


def _here() -> int:
    """The processor that the calling thread runs on: field 39 of proc(5), counted from behind the name in parentheses."""
    with open("/proc/thread-self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[36])
