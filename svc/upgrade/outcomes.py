"""Exit statuses of upgrades by svcctl, and the errors that carry them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from svc.datastore.api import StoreError
from svc.model.errors import PeerError

DONE: Final = 0  # or nothing to do
USAGE: Final = 2
BLOCKED: Final = 3
WAITS: Final = 4
TIMED_OUT: Final = 5
UNVERIFIED: Final = 6


class Stopped(PeerError):
    """A run that ended before its last step. `status` is the exit status, `reasons` are sentences."""

    status: int = BLOCKED

    def __init__(self, reasons: Sequence[str], *, details: str = "") -> None:
        super().__init__("; ".join(reasons), details=details)
        self.reasons = tuple(reasons)


class Blocked(Stopped):
    """What is in the cluster forbids the next step. That step has written nothing."""


class Rejected(Blocked):
    """The server does not take the content of a request. Without a right, or without an answer, it has not judged that."""


class Waits(Stopped):
    """The next step needs the consent of the user."""

    status = WAITS

    def __init__(self, step: str, reasons: Sequence[str]) -> None:
        super().__init__(reasons, details=f"if that is intended, run again with --ack {step}")
        self.step = step


class TimedOut(Stopped):
    """The cluster did not reach the state that a step waits for."""

    status = TIMED_OUT

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(reasons, details="correct that, and run the same command again: it goes on where it stopped")


class Unverified(Stopped):
    """All steps were carried out, but the result is not what was asked for."""

    status = UNVERIFIED

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(reasons, details="correct that, and run `svcctl upgrade apply` again: it goes on where it stopped")


@contextmanager
def stores_blocked() -> Iterator[None]:
    """Raise Blocked for a failure of the API server in the block."""
    try:
        yield
    except Stopped:
        raise
    except StoreError as error:
        raise Blocked([error.msg], details=error.details) from error
