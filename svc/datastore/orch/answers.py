"""What every answer of an API server has. A proxy before it, or another server in its place, may answer anything."""

from typing import Any, Final

from svc.datastore.api import StoreError

Json = dict[str, Any]

_REMEDY: Final = "see whether an API server is at this address: a proxy may have answered"
_MISSING: Final = object()


def require_object(found: Any, call: str) -> Json:
    """Return a decoded answer. Raise StoreError if it is not an object."""
    if not isinstance(found, dict):
        raise StoreError(f"{call}: the answer is not a JSON object", details=_REMEDY)
    return found


def require_resource(found: Json, call: str) -> Json:
    """Return an answer that is a resource. Raise StoreError if it has no metadata."""
    if not isinstance(found.get("metadata"), dict):
        raise StoreError(f"{call}: the answer is not a resource: it has no metadata", details=_REMEDY)
    return found


def objects_in(answer: Json, name: str, call: str) -> list[Json]:
    """Remove a list of objects from an answer, and return it. Raise StoreError if it is not one, also if it is left out."""
    found = answer.pop(name, _MISSING)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise StoreError(f"{call}: the answer has no list {name!r} of objects", details=_REMEDY)
    return found
