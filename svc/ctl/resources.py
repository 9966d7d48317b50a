"""What svcctl does with resources of any kind: find one, list them. Plain functions on a datastore."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from svc.datastore.api import Backend, Create, Entry, NotFound, Update
from svc.model.errors import CallerError, Code
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource, ordered, stamp

CREATED, UPDATED, UNCHANGED = "created", "updated", "unchanged"
NOUNS = {"IPPool": "IP pool", "IPReservation": "IP reservation", "Node": "node"}
_CODES = {"IPPool": Code.POOL}
_LISTED = 20


def change(entry: Entry | None, wanted: Resource, now: datetime) -> tuple[str, Create | Update | None]:
    """Return what becomes of a resource that is applied, and the write that does it, if any. Keep unmentioned metadata."""
    if entry is None:
        stamp(wanted, now, str(uuid.uuid4()))
        return CREATED, Create(ResourceKey(wanted.kind, wanted.name), wanted)
    present = entry.value
    assert isinstance(present, Resource)
    merged = replace(present, metadata=ordered(present.metadata | wanted.metadata), spec=wanted.spec)
    return (UNCHANGED, None) if merged == present else (UPDATED, Update(entry.key, merged, entry.revision))


def refuse(noun: str, faults: Sequence[tuple[str, str]], code: Code) -> None:
    """Raise CallerError if there are faults of named resources, naming each once."""
    lines = tuple(dict.fromkeys(f"{noun} {name!r}: {line}" for name, line in faults))
    if not lines:
        return
    subject = "nothing was changed"
    error = CallerError(f"{len(lines)} fault{'s' if len(lines) > 1 else ''}, {subject}", details="; ".join(lines), code=code)
    error.subject, error.faults = subject, lines
    raise error


def get(backend: Backend, kind: str, name: str = "") -> list[Resource]:
    """All resources of a kind in the order of their names, or the one of this name. CallerError when it does not exist."""
    entries = [find(backend, kind, name)] if name else backend.list(ResourceQuery(kind))
    return [entry.value for entry in entries if isinstance(entry.value, Resource)]


def find(backend: Backend, kind: str, name: str) -> Entry:
    """CallerError, with the names that there are, when it does not exist."""
    try:
        return backend.get(ResourceKey(kind, name))
    except NotFound:
        known = [resource.name for resource in get(backend, kind)]
        told = ", ".join(known[:_LISTED]) + (f" and {len(known) - _LISTED} more" if len(known) > _LISTED else "")
        raise CallerError(
            f"{NOUNS[kind]} {name!r} does not exist",
            details=f"known: {told or 'there is none'}",
            code=_CODES.get(kind, Code.INVALID_NETCONF),
        ) from None
