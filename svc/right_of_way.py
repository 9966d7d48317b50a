"""Right of way of short calls: while STATUS or CHECK is in flight, ADDs pause between their steps.

Only one thread at a time runs Python. Beside ADDs that compute, a short call waits for the interpreter after each of its system
calls, behind all of them. An ADD that pauses between two steps holds no lock that another call needs. Within a step it gives
the interpreter up earlier. Its caller's executables compete with the short call for the processors, so its thread has a higher
priority.

Each pause is bounded: a short call that takes longer waits for something else, such as a server.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

PAUSE_SECONDS = 0.01  # limit of a pause, from when the last short call came
SWITCH_SECONDS = 0.0002  # after which a thread gives the interpreter up while a short call is in flight
_RAISE: Final = 10  # steps of niceness; each is about 1.25 times the share of a processor


class RightOfWay:
    """The short calls in flight. Thread-safe. In a process that counts none, `give_way` returns at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._usual_switch_seconds = sys.getswitchinterval()
        self._until = 0.0  # when pauses end (monotonic clock)
        self._are_over = threading.Event()

    def begin(self) -> None:
        """Count a short call, before it is queued. `end` must follow."""
        with self._lock:
            if not self._number:
                self._usual_switch_seconds = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_SECONDS)
            self._number += 1
            self._until = time.monotonic() + PAUSE_SECONDS
            self._are_over.clear()

    def end(self) -> None:
        with self._lock:
            self._number -= 1
            if not self._number:
                sys.setswitchinterval(self._usual_switch_seconds)
                self._are_over.set()

    def give_way(self) -> None:
        """Pause until no short call is in flight, for PAUSE_SECONDS at most."""
        if self._number:
            self._are_over.wait(max(0.0, self._until - time.monotonic()))


RIGHT_OF_WAY: Final = RightOfWay()  # of the calls in this process


@contextmanager
def raised_priority() -> Iterator[None]:
    """Raise the priority of this thread and of those that it starts inside the block, unless the process lacks the right.

    On Linux the niceness is that of a thread (setpriority(2), section "C library/kernel differences").
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, before - _RAISE)
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
