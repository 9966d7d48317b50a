"""Moments as text, in UTC. By hand: `strftime` asks the locale, and costs ten times as much."""

import time
from functools import lru_cache
from math import floor


def date_and_time(seconds: float) -> str:
    """`2026-01-31 23:59:59` of a Unix time."""
    return _of_second(floor(seconds))


@lru_cache(maxsize=8)  # a call tells the time again and again
def _of_second(second: int) -> str:
    now = time.gmtime(second)
    return f"{now.tm_year:04d}-{now.tm_mon:02d}-{now.tm_mday:02d} {now.tm_hour:02d}:{now.tm_min:02d}:{now.tm_sec:02d}"


def rfc3339(seconds: float) -> str:
    """`2026-01-31T23:59:59Z` of a Unix time (RFC 3339)."""
    return f"{date_and_time(seconds).replace(' ', 'T')}Z"


def to_nanoseconds(nanoseconds: int) -> str:
    """`2026-01-31 23:59:59.000012 +0000 UTC` of a Unix time: as attributes of allocations have it."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"{date_and_time(seconds)}{fraction} +0000 UTC"
