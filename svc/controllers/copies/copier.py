"""A controller that keeps the copies of one kind equal to their originals in the Kubernetes API.

Two tables have digests: what each copy should be, and what it is. The worker reads the copy and the original of a key again
before it writes. So a late event cannot make it delete a copy whose original exists.
"""

import logging
from collections.abc import Collection, Iterable
from datetime import datetime, timezone

from svc.controllers.controller import Controller, Shared
from svc.controllers.copies.copied_kind import CopiedKind, Json, Translation, Untranslatable
from svc.controllers.digests import digest
from svc.controllers.live_reads import find_object
from svc.controllers.table import ApiTable, StoreTable
from svc.datastore.api import Create, Delete, Entry, Update
from svc.model.keys import ResourceKey
from svc.model.object_metadata import bit_reversed_uid
from svc.model.resource import Resource, set_identity
from svc.values import replace

_UNKNOWN = b""  # digest of an original that cannot be translated: different from every other one

log = logging.getLogger("svc.controllers")


class Copier(Controller[ResourceKey]):
    """The controller of one kind."""

    def __init__(self, kind: CopiedKind, shared: Shared) -> None:
        self.name = kind.controller
        self._kind = kind
        self._store = shared.store
        self._wanted = ApiTable(shared.client, kind.path, self._digest_of_original, shared.fail)
        self._stored = StoreTable(shared.store, kind.query, self._digest_of_copy, shared.fail, f"copies of {kind.controller}")
        super().__init__(shared, (self._wanted, self._stored))
        for table in (self._wanted, self._stored):
            table.on_change(self._compare)
            shared.tables.keep(table)

    def round_items(self) -> Iterable[ResourceKey]:
        return self._differing(self._wanted.snapshot().keys() | self._stored.snapshot().keys())

    def settle(self, item: ResourceKey) -> None:
        """Read copy and original, and write the difference.

        The copy is read first: if another leader writes it before this process does, the write fails with a conflict.
        """
        entry = self._store.find(item)
        original = self._original(item)
        wanted = None if original is None else self._kind.translate(original)
        write = _write(item, original, wanted, entry)
        if write is None:
            return
        self._store.write([write], durable=True)
        done = {Create: "created", Update: "updated", Delete: "deleted"}[type(write)]
        log.info("controller %s: %s %s", self.name, done, self.shown(item))
        for reason in wanted.left_out if wanted else ():
            log.warning("controller %s: %s lacks a rule: %s", self.name, self.shown(item), reason)

    def shown(self, item: ResourceKey) -> str:
        return f"{item.namespace}/{item.name}" if item.namespace else item.name

    def _compare(self, keys: Collection[ResourceKey]) -> None:
        if self.is_ready:
            self.add(self._differing(keys))

    def _differing(self, keys: Iterable[ResourceKey]) -> list[ResourceKey]:
        return [key for key in keys if self._wanted.get(key) != self._stored.get(key)]

    def _digest_of_original(self, original: Json) -> tuple[ResourceKey, bytes]:
        try:
            return self._kind.key(original), digest(self._kind.translate(original).spec)
        except Untranslatable:
            return self._kind.key(original), _UNKNOWN  # `settle` reports it

    def _digest_of_copy(self, entry: Entry[Resource]) -> bytes | None:
        return digest(entry.value.spec) if self._kind.owns(entry.key) else None

    def _original(self, key: ResourceKey) -> Json | None:
        return find_object(self.shared.client, self._kind.original_path(key))


def _write(
    key: ResourceKey, original: Json | None, wanted: Translation | None, entry: Entry[Resource] | None
) -> Create | Update | Delete | None:
    """Return the write that makes a copy what it should be; None if it is."""
    if original is None or wanted is None:
        return None if entry is None else Delete(key, entry.revision)
    if entry is None:
        place = {"namespace": key.namespace} if key.namespace else {}
        copy = Resource(key.kind, {"name": key.name, **place}, wanted.spec)
        set_identity(copy, datetime.now(timezone.utc), bit_reversed_uid(str(original["metadata"].get("uid") or "")))
        return Create(key, copy)
    if digest(entry.value.spec) == digest(wanted.spec):
        return None
    return Update(key, replace(entry.value, spec=wanted.spec), entry.revision)
