"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable

TIMEOUT_SECONDS = 30.0  # seconds: nothing takes that long unless it is broken


def wait_until(condition: Callable[[], bool]) -> None:
    """Returns once it holds; AssertionError when it does not come true."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < until, "it does not come true"
        time.sleep(0.005)
