"""Writes of a move to its target, which may have a part of the documents already."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

from svc.admin.ipam_check.observation import Place
from svc.datastore.api import Conflict, Create, Delete, Entry, NotFound, StoreError
from svc.datastore.orch.parallel import ParallelWriter
from svc.model.keys import IpamConfigKey, Key, ResourceKey, describe
from svc.model.kv_codec import Value
from svc.move.convert import Form, comparable, moves
from svc.move.snapshot import entries, queries

CONNECTIONS: Final = 16
_BATCH: Final = 32  # writes of one transaction: a block can take 20 KB, and etcd accepts 1.5 MB

Present = Mapping[Key, Entry]
Compare = Callable[[Key, Value], Any]


def read(place: Place) -> dict[Key, Entry]:
    """Return the entries of a target that a move copies. Raise UndecodableEntry, StoreError."""
    found = {entry.key: entry for query in queries(place) for entry in entries(place, query) if moves(entry.key)}
    settings = place.backend.find(IpamConfigKey())
    return found if settings is None else {settings.key: settings, **found}


class Writer:
    """Makes the documents of a target equal to wanted ones, by parallel connections."""

    def __init__(self, form: Form, target: Place, connections: int = CONNECTIONS, compared: Compare | None = None) -> None:
        """Set the number of connections, and what is compared of a document instead of all that moves."""
        self._backend, self._connections = target.backend, connections
        self._compared: Compare = compared or partial(comparable, form)

    def write(self, wanted: Sequence[tuple[Key, Value]], present: Present) -> None:
        """Write what differs, kind after kind. Raise StoreError if a document is not kept as it is."""
        todo = [(key, value) for key, value in wanted if self._differs(key, value, present.get(key))]
        for _, run in groupby(todo, key=lambda item: _kind(item[0])):
            items = list(run)
            self._in_parallel(self._create_batch, [item for item in items if item[0] not in present])
            self._in_parallel(self._replace_batch, [item for item in items if item[0] in present])

    def delete(self, entries: Sequence[Entry]) -> None:
        """Delete entries at their revisions. One that is gone is not an error."""
        self._in_parallel(self._delete_batch, entries)

    def _in_parallel(self, step: Callable[[Sequence[Any]], None], items: Sequence[Any]) -> None:
        pool = ParallelWriter(self._connections, "move")
        try:
            pool.map(step, _batches(items, _BATCH if self._backend.atomic else 1))
        finally:
            pool.close()

    def _differs(self, key: Key, value: Value, entry: Entry | None) -> bool:
        return entry is None or self._compared(key, entry.value) != self._compared(key, value)

    def _create_batch(self, batch: Sequence[tuple[Key, Value]]) -> None:
        """Create the documents, or write them one by one if some exist by now."""
        try:
            written = self._backend.write([Create(key, value) for key, value in batch], durable=True)
        except Conflict:
            self._replace_batch(batch)
            return
        unequal = [(key, value) for (key, value), entry in zip(batch, written, strict=True) if self._differs(key, value, entry)]
        self._replace_batch(unequal)

    def _replace_batch(self, batch: Sequence[tuple[Key, Value]]) -> None:
        for key, value in batch:
            if self._differs(key, value, self._put(key, value)):
                details = "compare the resource definitions of the target with those of this release: `svcctl crd print`"
                raise StoreError(f"{self._backend.place} does not keep {describe(key)} as it is written", details=details)

    def _put(self, key: Key, value: Value) -> Entry | None:
        def change(present: Value | None) -> Value:
            is_equal = present is not None and self._compared(key, present) == self._compared(key, value)
            return present if is_equal and present is not None else value

        return self._backend.update(key, change, durable=True)

    def _delete_batch(self, entries: Sequence[Entry]) -> None:
        try:
            self._backend.write([Delete(entry.key, entry.revision) for entry in entries], durable=True)
        except NotFound:
            if len(entries) > 1:
                for entry in entries:
                    self._delete_batch([entry])


def _kind(key: Key) -> tuple[type, str]:
    return type(key), key.kind if isinstance(key, ResourceKey) else ""


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
