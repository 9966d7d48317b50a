"""Waiting as something that can be handed on: whoever waits need not be a thread.

A call that may have to wait is a generator (`Steps`): it yields a `Wait`, and is carried on when that has ended. Whoever
carries it out decides what to do meanwhile: the agent lets its thread go, a process of one call sits it out.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import TypeVar

from svc import deadline

T = TypeVar("T")


class End(Enum):
    """How a wait ended; the value is what counters call it."""

    DONE = "done"
    LATE = "late"  # its deadline came
    GONE = "gone"  # nobody would learn of the result: the client has hung up
    DELETED = "deleted"  # a DEL of the same container has come
    STOPPING = "stopping"  # this process may not go on: the agent ends, or another process serves the node now


class Wait:
    """Ends once, by whoever is first; then the callbacks run, on that one's thread, in the order they were given.

    `deadline` is of the monotonic clock: the holder of the wait ends it then.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.outcome: End | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def end(self, outcome: End) -> None:
        """No caller may hold a lock that a callback needs."""
        with self._lock:
            if self.outcome is not None:
                return
            self.outcome = outcome
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def supersede(self, outcome: End) -> None:
        """Replace the outcome of a wait that has ended, and of which nobody has learnt yet."""
        self.outcome = outcome

    def then(self, callback: Callable[[], None]) -> None:
        """Called once; at once when the wait has ended already."""
        with self._lock:
            if self.outcome is None:
                self._callbacks.append(callback)
                return
        callback()

    def join(self) -> None:
        """Sits it out on this thread, until the deadline at most."""
        ended = threading.Event()
        self.then(ended.set)
        if not ended.wait(max(0.0, self.deadline - time.monotonic())):
            self.end(End.LATE)


class Suspended(Exception):
    """The call is to be repeated in another process: this one may not go on, and what was waited for has not come.

    `generation` is that of its row in the journal; the repeated call names it, and fails if the row is gone by then.
    """

    def __init__(self, generation: int) -> None:
        super().__init__(generation)
        self.generation = generation


Steps = Generator[Wait, None, T]


def limited(steps: Steps[T], seconds: float, inside: Callable[[], AbstractContextManager[None]] = nullcontext) -> Steps[T]:
    """The same steps under a deadline; the time in which they wait does not count. Each is carried out in `inside()`."""
    try:
        while True:
            began = time.monotonic()
            with deadline.limit(seconds), inside():
                try:
                    wait = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
            seconds -= time.monotonic() - began
            yield wait
    finally:
        steps.close()


def carried_out(steps: Steps[T]) -> T:
    """All of it on this thread, which waits where the steps wait; what they return."""
    while True:
        try:
            wait = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        wait.join()
