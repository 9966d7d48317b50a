"""Repetition of what is read in pages, if the server discards their revision before the last one is read."""

from collections.abc import Callable
from typing import Final, TypeVar

from svc.datastore.api import StoreError

ATTEMPTS: Final = 5
_EXPIRED: Final = 410  # status of the API server for a page whose revision it has discarded

Result = TypeVar("Result")


class Expired(StoreError):
    """Failure because the server has discarded the requested revision."""


def repeated(step: Callable[[], Result]) -> Result:
    """Return the result of a step that reads in pages. Repeat it if the server discards the revision of the pages."""
    for _ in range(ATTEMPTS - 1):
        try:
            return step()
        except StoreError as error:
            if not isinstance(error, Expired) and getattr(error, "status", 0) != _EXPIRED:
                raise
    return step()
