"""Interface of the parts of the store, one per group of kinds, and their common error handling."""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

from svc.datastore.api import Conflict, Create, Delete, Entry, NotFound, StoreError, Update
from svc.datastore.orch.client import ApiError, Client, Unreachable
from svc.datastore.orch.collection import Collection
from svc.model.keys import Key, Query

Json = dict[str, Any]
Answer = TypeVar("Answer")

TRIES = 2  # attempts of a write whose answer is lost and that was not applied, as far as a read shows


class ResourceStore(Protocol):
    """Part of the store that reads and writes the keys of some kinds."""

    def get(self, key: Key) -> Entry: ...
    def source(self, query: Query) -> Collection: ...
    def create(self, write: Create) -> Entry: ...
    def update(self, write: Update) -> Entry: ...
    def delete(self, write: Delete) -> None: ...


def present(client: Client, path: str) -> Json | None:
    """Return the object at a path; None if it does not exist."""
    try:
        return client.get(path)
    except ApiError as error:
        if is_missing(error):
            return None
        raise


def is_missing(error: ApiError) -> bool:
    """Return whether the object is missing, but its kind is served."""
    return error.status == 404 and error.reason == "NotFound"


def refuse(key: Key, error: ApiError) -> NoReturn:
    """Raise NotFound or Conflict if the server's error means that, else the error itself."""
    replaced = error.status == 409 and "precondition" in error.msg.lower() and "UID" in error.msg  # by one with the same name
    if is_missing(error) or replaced or error.fields == {"metadata.uid"}:
        raise NotFound(key) from None
    if error.status == 409 or error.fields == {"metadata.resourceVersion"}:
        raise Conflict(key) from None
    raise error


def write_verified(key: Key, send: Callable[[], Answer], look_up: Callable[[], Answer | None]) -> Answer:
    """Send a write and return its answer. Raise NotFound, Conflict or another StoreError if it fails.

    If the answer is lost, `look_up` determines the outcome: it returns the answer, or None if the write was not applied. The
    write is then sent again, for TRIES attempts in total.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return send()
        except ApiError as error:
            found = look_up() if attempt > 1 else None  # the first attempt may have been applied late, and cause this error
            if found is None:
                refuse(key, error)
        except Unreachable as error:
            found = look_up() if error.maybe_applied else None
            if found is None and (attempt == TRIES or not error.maybe_applied):
                raise
        if found is not None:
            return found
    raise AssertionError


def outcome_unknown(key: Key) -> StoreError:
    """Return the error for a write without an answer, if another writer has changed the key since: its outcome is unknown."""
    return StoreError(f"a write of {key} had no answer, and the key was changed since", details="read it again, and repeat")
