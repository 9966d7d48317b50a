"""The heap of the process: how much memory glibc keeps for itself. Other libcs keep less, and are left alone."""

import ctypes
from contextlib import suppress
from functools import cache
from typing import Final

_ARENA_MAX: Final = -8  # M_ARENA_MAX of glibc's malloc.h


def limit_arenas(number: int) -> None:
    """Limit glibc to this number of malloc arenas. By default it has up to eight for each CPU, and keeps some MiB in each."""
    with suppress(AttributeError):  # another libc
        _libc().mallopt(_ARENA_MAX, number)


def return_free_memory() -> None:
    """Return to the system what the process has freed."""
    with suppress(AttributeError):  # another libc
        _libc().malloc_trim(0)


@cache  # each one has classes of its own, which refer to each other
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
