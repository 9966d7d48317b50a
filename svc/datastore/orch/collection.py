"""Collections of the API that answer queries, and the conversion of their objects to entries."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field
from typing import Any

from svc.datastore.api import Entries, Entry
from svc.model.keys import Key
from svc.model.kv_codec import Value
from svc.values import dataclass

Json = dict[str, Any]
Read = Callable[[Json], Iterable[tuple[Key, Value]]]


def changes_every_time(data: Json) -> Hashable:
    """Return a fingerprint for objects that change only with their keys and values: the revision."""
    return revision_of(data)


@dataclass(frozen=True, slots=True)
class Collection:
    """Collection of the API.

    `read` yields the keys and values of an object, and nothing for a tombstone. It raises ValueError if it cannot decode the
    object. `fingerprint` is equal for two versions of an object if their metadata yield the same keys and values.
    """

    path: str
    read: Read
    params: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Callable[[Json], Hashable] = changes_every_time

    def entries(self, objects: Iterable[Json]) -> Entries:
        """Return the entries of the objects. Objects that cannot be decoded are in `skipped` of the result."""
        found = Entries()
        for data in objects:
            try:
                found.extend(Entry(key, value, revision_of(data)) for key, value in self.read(data))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                found.skip(f"{self.path}/{'/'.join(filter(None, name_of(data)))}", error)
        return found


def revision_of(data: Json) -> str:
    """Return the revision of an object."""
    return str(data["metadata"]["resourceVersion"])


def name_of(data: Json) -> tuple[str, str]:
    """Return the namespace, empty for a cluster-wide object, and the name of an object."""
    metadata = data.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
