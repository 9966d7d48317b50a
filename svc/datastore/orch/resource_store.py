"""What the parts of the store have in common: collections of objects, and writes whose answer may be lost."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from svc.datastore.api import Conflict, Create, Delete, Entries, Entry, NotFound, StoreError, Update
from svc.datastore.orch.client import SMALL_PAGE, ApiError, Client, Unreachable
from svc.model.keys import Key, Query
from svc.model.kv_codec import Value
from svc.names import Names
from svc.values import dataclass, field

Json = dict[str, Any]
Answer = TypeVar("Answer")

TRIES = 2  # attempts of a write whose answer is lost and that was not applied, as far as a read shows


def revision_of(data: Json) -> str:
    """Return the revision of an object."""
    return str(data["metadata"]["resourceVersion"])


def name_of(data: Json) -> tuple[str, str]:
    """Return the namespace, empty for a cluster-wide object, and the name of an object."""
    metadata = data.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


@dataclass(frozen=True, slots=True)
class Collection:
    """Collection of the API.

    `read` yields the keys and values of an object, and nothing for a tombstone. It raises ValueError if it cannot decode the
    object. `fingerprint` is equal for two versions of an object if their metadata yield the same keys and values.
    """

    path: str
    read: Callable[[Json], Iterable[tuple[Key, Value]]]
    params: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Callable[[Json], Hashable] = revision_of

    def entries(self, objects: Iterable[Json]) -> Entries:
        """Return the entries of the objects. Objects that cannot be decoded are in `skipped` of the result."""
        found = Entries()
        for data in objects:
            try:
                found.extend(Entry(key, value, revision_of(data)) for key, value in self.read(data))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                found.skip(f"{self.path}/{'/'.join(filter(None, name_of(data)))}", error)
        return found


class ResourceStore:
    """Part of the store that reads and writes the keys of some kinds."""

    page_objects = SMALL_PAGE

    def __init__(self, client: Client, names: Names) -> None:
        self._client = client
        self._names = names

    def get(self, key: Key) -> Entry:
        """Return the entry of a key. Raise NotFound or UndecodableEntry."""
        raise NotImplementedError

    def collection(self, query: Key | Query) -> Collection:
        """Return the collection that contains the entries of a query, perhaps beside others."""
        raise NotImplementedError

    def list(self, query: Query) -> Entries:
        """Return the entries of a query, perhaps with others."""
        return self._all(self.collection(query))

    def pages(self, query: Query) -> Iterator[Entries]:
        """Yield the entries of a query, perhaps with others, in the pages of the API server."""
        collection = self.collection(query)
        for page in self._client.pages(collection.path, limit=str(self.page_objects), **collection.params):
            entries = collection.entries(page.items)
            page.items.clear()
            yield entries

    def write(self, write: Create | Update | Delete) -> Entry | None:
        """Apply a write. Return the new entry, None for a Delete."""
        raise NotImplementedError

    def _all(self, collection: Collection) -> Entries:
        return collection.entries(self._client.list(collection.path, **collection.params).items)

    def _object(self, path: str) -> Json | None:
        try:
            return self._client.get(path)
        except ApiError as error:
            if error.is_missing:
                return None
            raise


def refusal(key: Key, error: ApiError) -> StoreError:
    """Return NotFound or Conflict if the server's error means that, else the error itself."""
    replaced = error.status == 409 and "precondition" in error.msg.lower() and "UID" in error.msg  # by one with the same name
    if error.is_missing or replaced or error.fields == {"metadata.uid"}:
        return NotFound(key)
    if error.status == 409 or error.fields == {"metadata.resourceVersion"}:
        return Conflict(key)
    return error


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
                raise refusal(key, error) from None
        except Unreachable as error:
            found = look_up() if error.maybe_applied else None
            if found is None and (attempt == TRIES or not error.maybe_applied):
                raise
        if found is not None:
            return found
    raise AssertionError


def updated(key: Key, data: Json | None, revision: str | None, is_applied: Callable[[Json], bool]) -> Json | None:
    """Return the present object if an update without an answer was applied; None if the object still has the old revision.

    Raise NotFound if the object does not exist, StoreError if another writer has changed it: the outcome is then unknown.
    """
    if data is None:
        raise NotFound(key)
    if is_applied(data):
        return data
    if revision not in (None, revision_of(data)):
        raise StoreError(f"a write of {key} had no answer, and the key was changed since", details="read it again, and repeat")
    return None
