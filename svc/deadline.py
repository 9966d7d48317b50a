"""Deadline of the call that runs on this thread. Every wait of the call is bounded by the remaining time.

The deadline is a context variable. A thread that works for the call gets it with `contextvars.copy_context()`. Without a
deadline, as in the agent's maintenance, the remaining time is infinite.
"""

import math
import threading
import time
from contextvars import ContextVar, Token

RESERVED_SECONDS = 3.0  # kept back from the timeout of a call with a rollback: for the rollback and for overhead
ROLLBACK_SECONDS = 2.0

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)  # monotonic time


class _Block:
    """Block with another deadline. It is a class, because each call enters several, and a generator takes 3 times as long."""

    __slots__ = ("_seconds", "_token")

    _token: Token[float]

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __exit__(self, *_: object) -> None:
        _deadline.reset(self._token)


class limit(_Block):  # noqa: N801  used like a function
    """Limit the remaining time inside the block to `seconds`; never extend it."""

    __slots__ = ()

    def __enter__(self) -> None:
        self._token = _deadline.set(min(_deadline.get(), time.monotonic() + self._seconds))


class extended(_Block):  # noqa: N801
    """Extend the deadline by `seconds` inside the block, for the rollback of a call after its deadline."""

    __slots__ = ()

    def __init__(self, seconds: float = ROLLBACK_SECONDS) -> None:
        super().__init__(seconds)

    def __enter__(self) -> None:
        self._token = _deadline.set(_deadline.get() + self._seconds)


def current() -> float:
    """Return the deadline as monotonic time; infinity without a deadline."""
    return _deadline.get()


def remaining(most: float) -> float:
    """Return the remaining time in seconds, from 0 to `most`."""
    return max(0.0, min(most, _deadline.get() - time.monotonic()))


def is_over() -> bool:
    """Return whether the deadline has passed."""
    return time.monotonic() >= _deadline.get()


def wait(event: threading.Event) -> bool:
    """Wait for the event and return True. Return False if the deadline passes first."""
    until = _deadline.get()
    return event.wait(None if until == math.inf else max(0.0, until - time.monotonic()))
