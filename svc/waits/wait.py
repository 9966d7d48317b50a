"""Waits that do not block a thread.

A call that may have to wait is a generator (`Resumable`). It yields a `Wait`, and its runner resumes it when the wait has
ended. The agent parks the call and frees its worker; a one-shot process blocks.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import TypeVar

from svc import deadline

T = TypeVar("T")


class WaitOutcome(Enum):
    """How a wait ended. The value is a label of metrics."""

    READY = "ready"
    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"  # the client of the call has closed its connection
    DELETED = "deleted"  # a DEL of the same container has arrived
    SHUTDOWN = "shutdown"  # this process may not continue: the agent stops, or another process serves the node


class Wait:
    """A wait that ends once. The first call of `end` sets the outcome and runs the callbacks, in their order, on its thread.

    `deadline` is a point of the monotonic clock: the runner of the call ends the wait then.
    """

    def __init__(self, deadline: float, reason: str = "") -> None:
        self.deadline = deadline
        self._reason = reason
        self.outcome: WaitOutcome | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def waits_for(self) -> str:
        """Return what the call waits for, for a user."""
        return self._reason

    def end(self, outcome: WaitOutcome) -> None:
        """Set the outcome, unless the wait has already ended. The caller must not hold a lock that a callback needs."""
        with self._lock:
            if self.outcome is not None:
                return
            self.outcome = outcome
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def then(self, callback: Callable[[], None]) -> None:
        """Add a callback. If the wait has already ended, call it at once."""
        with self._lock:
            if self.outcome is None:
                self._callbacks.append(callback)
                return
        callback()

    def join(self) -> None:
        """Block this thread until the wait ends, or until its deadline."""
        ended = threading.Event()
        self.then(ended.set)
        if not ended.wait(max(0.0, self.deadline - time.monotonic())):
            self.end(WaitOutcome.TIMEOUT)


class Suspended(Exception):
    """The call must be repeated in another process. It names the `generation` of its row, and fails if the row is missing."""

    def __init__(self, generation: int) -> None:
        super().__init__(generation)
        self.generation = generation


Resumable = Generator[Wait, None, T]


def limited(
    call: Resumable[T], seconds: float, inside: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Resumable[T]:
    """Run the call under a deadline, which does not count its waits. Each part between two waits runs inside `inside()`."""
    try:
        while True:
            began = time.monotonic()
            with deadline.limit(seconds), inside():
                try:
                    wait = next(call)
                except StopIteration as end:
                    result: T = end.value
                    return result
            seconds -= time.monotonic() - began
            yield wait
    finally:
        call.close()
