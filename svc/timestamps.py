"""Times as text, in UTC. They are formatted without `strftime`, which uses the locale and takes ten times as long."""

import time
from functools import lru_cache
from math import floor


def date_and_time(seconds: float) -> str:
    """Return a Unix time as `2026-01-31 23:59:59`."""
    return _of_second(floor(seconds))


@lru_cache(maxsize=8)  # a call formats the same second repeatedly
def _of_second(second: int) -> str:
    now = time.gmtime(second)
    return f"{now.tm_year:04d}-{now.tm_mon:02d}-{now.tm_mday:02d} {now.tm_hour:02d}:{now.tm_min:02d}:{now.tm_sec:02d}"


def rfc3339(seconds: float) -> str:
    """Return a Unix time as `2026-01-31T23:59:59Z` (RFC 3339)."""
    return f"{date_and_time(seconds).replace(' ', 'T')}Z"


def to_nanoseconds(nanoseconds: int) -> str:
    """Return a Unix time as `2026-01-31 23:59:59.000012 +0000 UTC`, the form in the attributes of allocations."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"{date_and_time(seconds)}{fraction} +0000 UTC"
