"""Repetition of what is read in pages, if the API server discards the revision of the pages meanwhile."""

from collections.abc import Callable
from typing import Final, TypeVar

from svc.datastore.api import StoreError

ATTEMPTS: Final = 5
_EXPIRED: Final = 410  # status of a page whose revision the API server has discarded

Result = TypeVar("Result")


def repeated(step: Callable[[], Result]) -> Result:
    """Return the result of a step that reads in pages. Repeat it if the server discards the revision of the pages."""
    for _ in range(ATTEMPTS - 1):
        try:
            return step()
        except StoreError as error:
            if getattr(error, "status", 0) != _EXPIRED:
                raise
    return step()
