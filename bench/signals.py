"""The end of a process that measures, at a signal: what it has started is removed."""

import signal
import sys

_ENDING = (signal.SIGTERM, signal.SIGINT)


def tear_down_at_signals() -> None:
    """End at SIGTERM or SIGINT by SystemExit, which each context sees, once: a terminal signals the parent as well.

    The parent then ends this process again, which must not cut its teardown short."""
    for each in _ENDING:
        signal.signal(each, _end)


def _end(number: int, _: object) -> None:
    for each in _ENDING:
        signal.signal(each, _ignore)  # not SIG_IGN, which the programs of a teardown would inherit
    sys.exit(128 + number)


def _ignore(*_: object) -> None:
    pass
