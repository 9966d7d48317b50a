"""Repeated attempts: the back-off between them, and the number of attempts of a compare-and-swap."""

import random
import time
from collections.abc import Iterator

JITTER = 0.25  # maximum fraction by which a delay is shortened, so that nodes do not retry in step
ATTEMPTS = 100  # of a compare-and-swap; after them the caller reports contention
ATTEMPTS_BEFORE_BACKOFF = 4  # these follow at once, because a conflict delays the other writer as well
_MIN_BACKOFF, _MAX_BACKOFF = 0.002, 0.02  # seconds between attempts of a compare-and-swap


class Backoff:
    """Delay before the next attempt, which doubles from `minimum` to `maximum` seconds. Not thread-safe."""

    __slots__ = ("_delay", "_jitter", "_maximum", "_minimum")

    def __init__(self, minimum: float, maximum: float, *, jitter: float = JITTER) -> None:
        self._minimum = self._delay = minimum
        self._maximum = maximum
        self._jitter = jitter

    def next(self) -> float:
        """Return the delay before the next attempt, in seconds, and double it."""
        delay, self._delay = self._delay, min(self._maximum, 2 * self._delay)
        return max(self._minimum, delay * random.uniform(1 - self._jitter, 1))  # noqa: S311 no secret

    def sleep(self) -> None:
        time.sleep(self.next())

    def reset(self) -> None:
        self._delay = self._minimum


def attempts(count: int = ATTEMPTS) -> Iterator[int]:
    """Yield the numbers of the attempts of a compare-and-swap. Sleep before every fourth one, at most 0.5 s in total."""
    yield 0  # usually the only one
    backoff = Backoff(_MIN_BACKOFF, _MAX_BACKOFF, jitter=1)
    for number in range(1, count):
        if is_after_backoff(number):
            backoff.sleep()
        yield number


def is_after_backoff(number: int) -> bool:
    """Return whether a back-off precedes this attempt, so that objects read by the previous attempt are stale."""
    return number % ATTEMPTS_BEFORE_BACKOFF == 0
