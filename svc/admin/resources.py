"""Stored resources of any kind: find, list and change them, and report what is wrong with those of a user."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

from svc.datastore.api import Backend, Conflict, Create, Entry, NotFound, StoreError, Update
from svc.model.errors import CallerError, Code
from svc.model.field_errors import FieldError
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource, ordered, set_identity
from svc.retry import attempts

CREATED, UPDATED, UNCHANGED = "created", "updated", "unchanged"
NOUNS: Final = {"IPPool": "IP pool", "IPReservation": "IP reservation", "Node": "node"}
_CODES: Final = {"IPPool": Code.POOL}
_MAX_LISTED: Final = 20

Problem = tuple[str, str]
"""The name of a resource, and a problem of it with its fix."""

T = TypeVar("T")


def retry(what: str, step: Callable[[], T]) -> T:
    """Return the result of `step`, which reads, decides and writes. Repeat it if another writer changes the data first.

    Raise StoreError if that happens every time."""
    for _ in attempts():
        try:
            return step()
        except (Conflict, NotFound):
            continue
    raise StoreError(f"{what} keeps changing", details="stop what else changes it, or try again")


def require(backend: Backend, kind: str, name: str) -> Entry[Resource]:
    """Return the entry of a resource. Raise CallerError, with the existing names, if it does not exist."""
    if entry := backend.find(ResourceKey(kind, name)):
        return entry
    known = [resource.name for resource in get(backend, kind)]
    listed = ", ".join(known[:_MAX_LISTED]) + (f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else "")
    raise CallerError(
        f"{NOUNS[kind]} {name!r} does not exist",
        details=f"known: {listed or 'there is none'}",
        code=_CODES.get(kind, Code.INVALID_NETCONF),
    )


def get(backend: Backend, kind: str, name: str = "") -> list[Resource]:
    """Return all resources of a kind in the order of their names, or the one of this name. Raise as `require`."""
    entries = [require(backend, kind, name)] if name else backend.list(ResourceQuery(kind))
    return [entry.value for entry in entries]


def change(entry: Entry[Resource] | None, wanted: Resource, now: datetime) -> tuple[str, Create | Update | None]:
    """Return what becomes of a resource that is applied, and the write for it, if any. Keep unmentioned metadata."""
    if entry is None:
        set_identity(wanted, now, str(uuid.uuid4()))
        return CREATED, Create(ResourceKey(wanted.kind, wanted.name), wanted)
    present = entry.value
    merged = replace(present, metadata=ordered(present.metadata | wanted.metadata), spec=wanted.spec)
    return (UNCHANGED, None) if merged == present else (UPDATED, Update(entry.key, merged, entry.revision))


def problems(name: str, faults: Iterable[FieldError]) -> Iterator[Problem]:
    """Yield the faults of one resource."""
    return ((name, f"{fault}: {fault.remedy}") for fault in faults)


def repeated(resources: Sequence[Resource]) -> list[Problem]:
    """Return the names that several of the resources have."""
    counts = Counter(resource.name for resource in resources)
    return [(name, f"given {count} times: keep one of them") for name, count in counts.items() if count > 1]


def refuse(noun: str, found: Iterable[Problem], code: Code) -> None:
    """Raise CallerError if there are problems, naming each once."""
    lines = tuple(dict.fromkeys(f"{noun} {name!r}: {line}" for name, line in found))
    if not lines:
        return
    subject = "nothing was changed"
    error = CallerError(f"{len(lines)} fault{'s' if len(lines) > 1 else ''}, {subject}", details="; ".join(lines), code=code)
    error.subject, error.faults = subject, lines
    raise error
