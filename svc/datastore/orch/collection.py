"""Where the answers to a query come from: a collection of the API, and what each of its objects stands for."""

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
    """Of objects that only change with what they stand for."""
    return revision_of(data)


@dataclass(frozen=True, slots=True)
class Collection:
    """`read` yields keys and values of an object, none for one that counts as gone; ValueError when it cannot be decoded.
    `fingerprint` is equal for two versions of an object that stand for the same, as far as its metadata tell."""

    path: str
    read: Read
    params: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Callable[[Json], Hashable] = changes_every_time

    def entries(self, objects: Iterable[Json]) -> Entries:
        """What they stand for, as far as they can be decoded."""
        found = Entries()
        for data in objects:
            try:
                found.extend(Entry(key, value, revision_of(data)) for key, value in self.read(data))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                found.leave_out(f"{self.path}/{'/'.join(filter(None, name_of(data)))}", error)
        return found


def revision_of(data: Json) -> str:
    """The revision at which an object was read."""
    return str(data["metadata"]["resourceVersion"])


def name_of(data: Json) -> tuple[str, str]:
    """Namespace and name."""
    metadata = data.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
