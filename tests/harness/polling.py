"""Waiting for actions of other threads and processes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT_SECONDS = 60.0  # far longer than any successful wait
SERVED_SECONDS = 0.03  # between reads of what a server takes some time for: each one costs it time, too
_POLL_SECONDS = 0.005


def wait_until(condition: Callable[[], bool], every: float = _POLL_SECONDS) -> None:
    """Wait until the condition is true. Raise AssertionError if it does not become true in time."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < until, "the condition did not become true in time"
        time.sleep(every)


def eventually(read: Callable[[], T], accept: Callable[[T], object], every: float = _POLL_SECONDS) -> T:
    """Read until a value is accepted, and return it."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while not accept(found := read()):
        assert time.monotonic() < until, f"no value was accepted in time; the last one is {found!r}"
        time.sleep(every)
    return found
