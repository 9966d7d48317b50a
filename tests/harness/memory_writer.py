"""A cluster in memory, for tests of single steps of upgrades."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from svc.names import DEFAULT, Names
from svc.upgrade.places import Place, place_of
from svc.upgrade.writer import Changed, Writer

Json = dict[str, Any]


class MemoryWriter(Writer):
    """Objects by their places. `writes` are the verb and the place of each write."""

    def __init__(self, *documents: Json, names: Names = DEFAULT) -> None:
        self.names = names
        self.writes: list[str] = []
        self._numbers = itertools.count(1)
        self._objects: dict[Place, Json] = {}
        for each in documents:
            self._store(each)

    def served(self, place: Place) -> Any:
        return place

    def find(self, place: Place) -> Json | None:
        return copy.deepcopy(self._objects.get(place))

    def folder(self, place: Place) -> str:
        return f"/{place.kind.lower()}s"

    def items(self, path: str, *, metadata_only: bool = False, **params: str) -> Iterator[Json]:
        kind = path.rpartition("/")[2]
        yield from (copy.deepcopy(each) for each in self._objects.values() if f"{each['kind'].lower()}s" == kind)

    def create(self, document: Json) -> Json:
        place = place_of(document)
        if place in self._objects:
            raise Changed(f"{place} exists")
        self.writes.append(f"create {place}")
        return self._store(document)

    def replace(self, document: Json, live: Json) -> Json:
        place = self._require(place_of(document), live)
        self.writes.append(f"replace {place}")
        metadata = document["metadata"] | {"uid": live["metadata"]["uid"]}
        return self._store(document | {"metadata": metadata})

    def patch(self, place: Place, live: Json, operations: Sequence[Json], manager: str = "") -> Json:
        found = copy.deepcopy(self._objects[self._require(place, live)])
        for each in operations:
            *folders, name = (word.replace("~1", "/") for word in each["path"][1:].split("/"))
            below: Any = found
            for folder in folders:
                below = below[folder]
            if each["op"] == "remove":
                del below[name]
            else:
                below[name] = each["value"]
        self.writes.append(f"patch {place}")
        return self._store(found)

    def delete(self, place: Place, live: Json) -> None:
        del self._objects[self._require(place, live)]
        self.writes.append(f"delete {place}")

    def edit(self, place: Place, **spec: Any) -> None:
        """Change fields of the spec of an object, as another program does."""
        found = copy.deepcopy(self._objects[place])
        found["spec"] |= spec
        self._store(found)

    def _require(self, place: Place, live: Json) -> Place:
        if self._objects[place]["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            raise Changed(f"{place} was changed")
        return place

    def _store(self, document: Json) -> Json:
        number = str(next(self._numbers))
        metadata = {"uid": number} | document["metadata"] | {"resourceVersion": number}
        self._objects[place_of(document)] = copy.deepcopy(document | {"metadata": metadata})
        return document
