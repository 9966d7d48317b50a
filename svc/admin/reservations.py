"""IP reservations: apply and delete."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from svc.admin.resources import change, problems, refuse, repeated, require, retry
from svc.datastore.api import Backend, Delete
from svc.ipam.pools import RESERVATION, read_entries
from svc.model.errors import Code
from svc.model.field_errors import MISSING, FieldError
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, name_fault

FIELD = "reservedCIDRs"


def apply(backend: Backend, resources: Sequence[Resource], now: datetime) -> list[str]:
    """Create or update reservations, durably: all of them if the store is atomic, else in their order.

    Return what was done to each. Raise CallerError, before anything is written, naming every fault; StoreError."""
    found = [problem for resource in resources for problem in problems(resource.name, _faults(resource))]
    refuse("IP reservation", [*repeated(resources), *found], Code.POOL)
    return retry("the list of IP reservations", lambda: _apply(backend, resources, now))


def delete(backend: Backend, name: str) -> None:
    """Delete a reservation. Raise CallerError if it does not exist."""
    require(backend, RESERVATION, name)
    backend.write([Delete(ResourceKey(RESERVATION, name))], durable=True)


def _apply(backend: Backend, resources: Sequence[Resource], now: datetime) -> list[str]:
    steps = [change(backend.find(ResourceKey(RESERVATION, resource.name)), resource, now) for resource in resources]
    backend.write([write for _, write in steps if write], durable=True)
    return [outcome for outcome, _ in steps]


def _faults(resource: Resource) -> Iterator[FieldError]:
    yield from name_fault(resource)
    for name, value in resource.spec.items():
        if name != FIELD:
            yield FieldError(f"spec.{name}", value, "is not a field of an IP reservation", f"leave it out, or use {FIELD}")
    if not resource.spec.get(FIELD):
        yield FieldError(f"spec.{FIELD}", MISSING, "is missing or empty", 'give the ranges, such as ["10.65.0.0/28"]')
        return
    yield from read_entries(resource)[1]
