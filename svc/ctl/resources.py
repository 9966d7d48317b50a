"""What svcctl does with resources of any kind: find one, list them. Plain functions on a datastore."""

from svc.datastore.api import Backend, Entry, NotFound
from svc.model.errors import CallerError, Code
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource

CREATED, UPDATED, UNCHANGED = "created", "updated", "unchanged"
NOUNS = {"IPPool": "IP pool", "Node": "node"}
_CODES = {"IPPool": Code.POOL}
_LISTED = 20


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
