"""Repeating what lost a compare-and-swap."""

from collections.abc import Callable
from typing import TypeVar

from svc.datastore.api import Conflict, NotFound, StoreError

ATTEMPTS = 100

T = TypeVar("T")


def retry(what: str, step: Callable[[], T]) -> T:
    """The result of `step`, which reads, decides and writes, and starts over when somebody else wrote in between. StoreError
    when that happens every time."""
    for _ in range(ATTEMPTS):
        try:
            return step()
        except (Conflict, NotFound):
            continue
    raise StoreError(f"{what} keeps changing", details="stop what else changes it, or try again")
