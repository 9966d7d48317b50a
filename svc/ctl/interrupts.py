"""The end of a command: signals that end one whose work has to be undone first, and threads that still wait."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

INTERRUPTED: Final = 130  # exit status after Ctrl-C, as shells give it
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def one_interrupt() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt in the block at the first SIGINT, SIGTERM or SIGHUP, and ignore the later ones.

    Yield a list that gets the number of the signal, for loops: Python ignores an exception in a finalizer."""
    found: list[int] = []

    def interrupt(number: int, *_: Any) -> None:
        found.append(number)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def announced_interrupt(request: Callable[[], None]) -> Iterator[None]:
    """Call `request` at the first SIGINT, SIGTERM or SIGHUP in the block, and raise KeyboardInterrupt at the second.

    The block ends itself after what it is doing."""
    found: list[int] = []

    def interrupt(number: int, *_: Any) -> None:
        found.append(number)
        if len(found) > 1:
            raise KeyboardInterrupt
        request()

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def import_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for a RuntimeError that Python 3.11 raises in its place, while an import makes a class."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


def end(status: int, *, is_complete: bool) -> NoReturn:
    """End the process, without waiting for threads whose server does not answer."""
    if is_complete:
        sys.exit(status)
    sys.stdout.flush()
    os._exit(status)
