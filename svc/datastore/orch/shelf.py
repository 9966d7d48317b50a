"""What one part of the store offers for the keys that it keeps, and what its errors become."""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

from svc.datastore.api import Conflict, Create, Delete, Entry, NotFound, StoreError, Update
from svc.datastore.orch.client import ApiError, Client, Unreachable
from svc.datastore.orch.collection import Collection
from svc.model.keys import Key, Query

Json = dict[str, Any]
Answer = TypeVar("Answer")

TRIES = 2  # of a write whose answer was lost and that, by the look of it, was not carried out


class Shelf(Protocol):
    """Keys of some kinds, and how they are read and written."""

    def get(self, key: Key) -> Entry: ...
    def source(self, query: Query) -> Collection: ...
    def create(self, write: Create) -> Entry: ...
    def update(self, write: Update) -> Entry: ...
    def delete(self, write: Delete) -> None: ...


def present(client: Client, path: str) -> Json | None:
    """The object there; None when there is none."""
    try:
        return client.get(path)
    except ApiError as error:
        if is_missing(error):
            return None
        raise


def is_missing(error: ApiError) -> bool:
    """Whether an object is missing, and not the whole kind."""
    return error.status == 404 and error.reason == "NotFound"


def refuse(key: Key, error: ApiError) -> NoReturn:
    """NotFound or Conflict where that is what the server says, else its own error."""
    replaced = error.status == 409 and "precondition" in error.msg.lower() and "UID" in error.msg  # by one of the same name
    if is_missing(error) or replaced or error.fields == {"metadata.uid"}:
        raise NotFound(key) from None
    if error.status == 409 or error.fields == {"metadata.resourceVersion"}:
        raise Conflict(key) from None
    raise error


def settle(key: Key, send: Callable[[], Answer], look: Callable[[], Answer | None]) -> Answer:
    """Sends a write. When its answer is lost, `look` tells what has become of it: the answer, or None when it was not carried
    out, whereupon it is sent again. NotFound, Conflict, StoreError."""
    for attempt in range(1, TRIES + 1):
        try:
            return send()
        except ApiError as error:
            found = look() if attempt > 1 else None  # the first one may have come late, and be what stands in the way
            if found is None:
                refuse(key, error)
        except Unreachable as error:
            found = look() if error.perhaps_done else None
            if found is None and (attempt == TRIES or not error.perhaps_done):
                raise
        if found is not None:
            return found
    raise AssertionError


def fate_unknown(key: Key) -> StoreError:
    """Somebody else has changed what a write without an answer was meant to change: it cannot be told any more."""
    return StoreError(f"a write of {key} had no answer, and the key was changed since", details="read it again, and repeat")
