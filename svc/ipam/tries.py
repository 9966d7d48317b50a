"""How often a lost race is run again before the caller is told that there is too much going on."""

import random
import time
from collections.abc import Iterator

ATTEMPTS = 100
AT_ONCE = 4  # attempts, before the next ones keep a distance: whoever else runs is slowed down by a race as well
LONGEST = 0.02  # seconds of such a distance


def attempts() -> Iterator[int]:
    """Numbers, for as long as it is worth trying; half a second of pauses in all, at most."""
    for number in range(ATTEMPTS):
        if number and is_after_pause(number):
            time.sleep(random.uniform(0, min(LONGEST, 0.001 * 2 ** (number // AT_ONCE))))  # noqa: S311
        yield number


def is_after_pause(number: int) -> bool:
    """Whether what the attempt before has seen is old."""
    return number % AT_ONCE == 0
