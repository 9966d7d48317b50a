"""Signals that end a command whose work has to be undone first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

INTERRUPTED: Final = 130  # exit status after Ctrl-C, as shells give it
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at the first SIGINT, SIGTERM or SIGHUP, and ignore the later ones."""

    def interrupt(*_: Any) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
