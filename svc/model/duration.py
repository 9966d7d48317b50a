"""Durations as programs in Go read and write them, such as `90s`, `1h30m` and `5m0s`."""

import re
from decimal import Decimal
from typing import Final

UNITS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_PART: Final = re.compile(rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({'|'.join(UNITS)})", re.ASCII)
_DURATION: Final = re.compile(rf"0|(?:{_PART.pattern})+", re.ASCII)
_LONGEST: Final = 2**63 - 1  # nanoseconds, as programs in Go keep a duration
_NANOSECONDS: Final = 1e9


def parse_duration(text: str) -> float:
    """Return the seconds of a duration that is not negative. Raise ValueError, whose text is the problem."""
    if not _DURATION.fullmatch(text):
        raise ValueError("is not a duration")
    nanoseconds = sum(int(Decimal(number) * UNITS[unit]) for number, unit in _PART.findall(text))
    if nanoseconds > _LONGEST:
        raise ValueError("is longer than 292 years")
    return nanoseconds / _NANOSECONDS


def format_duration(seconds: float) -> str:
    """Return a duration as Go writes it: with minutes and seconds if it has hours, and in a smaller unit below a second."""
    nanoseconds = round(seconds * _NANOSECONDS)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < UNITS["s"]:
        unit = "ns" if nanoseconds < UNITS["us"] else "µs" if nanoseconds < UNITS["ms"] else "ms"
        return _number(nanoseconds, UNITS[unit]) + unit
    minutes, rest = divmod(nanoseconds, UNITS["m"])
    hours, minutes = divmod(minutes, 60)
    whole = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{whole}{_number(rest, UNITS['s'])}s"


def _number(nanoseconds: int, unit: int) -> str:
    """Return a count of nanoseconds in a unit, without trailing zeros."""
    whole, rest = divmod(nanoseconds, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)
