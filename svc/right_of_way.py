"""Right of way of short calls: while STATUS or CHECK is in flight, ADDs pause between their steps.

Only one thread at a time runs Python. Beside ADDs that compute, a short call waits for the interpreter after each of its system
calls, behind all of them. An ADD that pauses between two steps holds no lock that another call needs. Within a step it gives
the interpreter up earlier. Its caller's executables compete with the short call for the processors, so a thread that has read
one takes precedence until it is carried out. Threads that wait for any call do not: their wake-ups would interrupt ADDs.

Each pause is bounded: a short call that takes longer waits for something else, such as a server.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Final

PAUSE_SECONDS = 0.01  # limit of a pause, from when the last short call came
SWITCH_SECONDS = 0.0002  # after which a thread gives the interpreter up while a short call is in flight
_LOWEST_REALTIME: Final = os.sched_param(1)
_USUAL: Final = os.sched_param(0)


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


_thread = threading.local()  # has_precedence: whether the thread has taken precedence

RIGHT_OF_WAY: Final = RightOfWay()  # of the calls in this process


def take_precedence() -> None:
    """Let this thread run before those with the usual policy, unless the system refuses. It must not compute for long.

    The kernel interrupts system calls of other threads for it. For a thread that has only a higher priority, most kernels first
    complete them, or wait for the next tick (sched(7)). Threads and programs that it starts run as all others do.
    """
    if not getattr(_thread, "has_precedence", False):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, _LOWEST_REALTIME)
            _thread.has_precedence = True


def take_usual_priority() -> None:
    """Give this thread the priority of the process, which a thread does not get from one with precedence."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getpid()))


def end_precedence() -> None:
    """Let this thread run as all others do."""
    if getattr(_thread, "has_precedence", False):
        os.sched_setscheduler(0, os.SCHED_OTHER, _USUAL)
        _thread.has_precedence = False
