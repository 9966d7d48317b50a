"""The deadline of the call that runs on this thread. Every wait of the call is bounded by the time that is left.

The deadline is a context variable: a thread that works for the call gets it with `contextvars.copy_context()`. Without a
deadline nothing is bounded, as in an agent's own work.
"""

import math
import threading
import time
from contextvars import ContextVar, Token

RESERVED_SECONDS = 3.0  # of the limit of a call that can be rolled back: for the rollback, and for what is not counted
ROLLBACK_SECONDS = 2.0

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)  # of the monotonic clock


class _Block:
    """A block with another deadline. A class, because each call enters several, and a generator costs three times as much."""

    __slots__ = ("_seconds", "_token")

    _token: Token[float]

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __exit__(self, *_: object) -> None:
        _deadline.reset(self._token)


class limit(_Block):  # noqa: N801  it reads as a function
    """Limit the time that is left inside the block; never extend it."""

    __slots__ = ()

    def __enter__(self) -> None:
        self._token = _deadline.set(min(_deadline.get(), time.monotonic() + self._seconds))


class extended(_Block):  # noqa: N801
    """Give so much more time inside the block: for what ends a call whose time is over."""

    __slots__ = ()

    def __init__(self, seconds: float = ROLLBACK_SECONDS) -> None:
        super().__init__(seconds)

    def __enter__(self) -> None:
        self._token = _deadline.set(_deadline.get() + self._seconds)


def current() -> float:
    """Return the point of the monotonic clock; infinity without a deadline."""
    return _deadline.get()


def remaining(most: float) -> float:
    """Return the seconds that are left, and no more than `most`; zero when the time is over."""
    return max(0.0, min(most, _deadline.get() - time.monotonic()))


def is_over() -> bool:
    """Return whether no time is left."""
    return time.monotonic() >= _deadline.get()


def wait(event: threading.Event) -> bool:
    """Wait for the event; False when the deadline comes first."""
    until = _deadline.get()
    return event.wait(None if until == math.inf else max(0.0, until - time.monotonic()))
