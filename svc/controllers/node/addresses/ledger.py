"""The record of releases, in annotations of KubeControllersConfiguration `default`, so that each leader knows it."""

import time
from collections.abc import Callable

from svc.admin.release_record import (
    REMEDY,
    Record,
    Stop,
    acknowledged_id,
    record_annotation,
    record_of,
    with_record,
)
from svc.controllers.controller import Unsettled
from svc.datastore.api import Backend
from svc.model.controllers_configuration import KEY
from svc.model.resource import Resource
from svc.names import Names


class Ledger:
    """The record in one datastore. Its methods raise StoreError, and Unsettled if the object is missing or damaged."""

    def __init__(self, store: Backend, names: Names, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._names = names
        self._clock = clock
        self._last = Record()  # outlives a deletion of the object

    def read(self) -> Record:
        """Return the record. Store it first without its stop if that was acknowledged."""
        entry = self._store.find(KEY)
        stored, record, id_ = self._parsed(None if entry is None else entry.value)
        self._last = record
        if stored == record and (record.stop is None or record.stop.id != id_):
            return record
        return self._change(lambda present, now: present.acknowledged(id_, now))

    def left(self, total: int) -> int:
        """Return how many addresses may be released now, if `total` are allocated; 0 after a stop."""
        record = self.read()
        return 0 if record.stop is not None else record.left(self._clock(), total)

    def reserve(self, count: int, total: int) -> bool:
        """Record releases before they are made. Record nothing and return False if they are too many, or after a stop."""
        is_granted = False

        def reserved(record: Record, now: float) -> Record:
            nonlocal is_granted
            is_granted = record.stop is None and count <= record.left(now, total)
            return record.reserved(now, count) if is_granted else record

        self._change(reserved)
        return is_granted

    def stop(self, stop: Stop) -> Stop:
        """Record a stop unless there is one. Return the stop in force."""
        stored = self._change(lambda record, _now: record if record.stop is not None else record.stopped(stop)).stop
        assert stored is not None
        return stored

    def _change(self, change: Callable[[Record, float], Record]) -> Record:
        """Replace the record by compare-and-swap, and return the new one."""
        result = Record()

        def changed(resource: Resource | None) -> Resource:
            nonlocal result
            stored, present, _ = self._parsed(resource)
            assert resource is not None
            result = change(present, self._clock())
            if result == stored:
                return resource
            return with_record(self._names, resource, result)

        self._store.update(KEY, changed)
        self._last = result
        return result

    def _parsed(self, resource: Resource | None) -> tuple[Record, Record, str]:
        """Return the stored record, the record in force, and the ID of the acknowledged stop."""
        if resource is None:
            raise Unsettled(f"{KEY.kind} {KEY.name} does not exist, so releases cannot be recorded")
        try:
            stored = record_of(self._names, resource)
        except ValueError as error:
            name = record_annotation(self._names)
            raise Unsettled(f"annotation {name} of {KEY.kind} {KEY.name} cannot be read: {error}: {REMEDY}") from error
        return stored, self._last if stored == Record() else stored, acknowledged_id(self._names, resource)
