"""How often a lost race is run again before the caller is told that there is too much going on."""

import random
import time
from collections.abc import Iterator

ATTEMPTS = 100
AT_ONCE = 4  # attempts, before the next ones keep a distance: whoever else runs is slowed down by a race as well
LONGEST = 0.02  # seconds between two attempts


def attempts() -> Iterator[int]:
    """Numbers, for as long as it is worth trying; about a second in all, at most."""
    for number in range(ATTEMPTS):
        if number >= AT_ONCE:
            time.sleep(random.uniform(0, min(LONGEST, 0.001 * 2 ** (number - AT_ONCE))))  # noqa: S311
        yield number
