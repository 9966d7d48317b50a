"""Fields of the managers that applied former manifests: they move to svcctl, so that fields which the new manifest lacks go."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from svc.names import Names
from svc.upgrade.field_sets import MISSING, remove, union, value_at
from svc.upgrade.object_states import last_applied
from svc.upgrade.writer import MANAGER

Json = dict[str, Any]

_APPLIERS: Final = frozenset(
    {
        ("kubectl-client-side-apply", "Update"),
        ("kubectl", "Apply"),
        ("before-first-apply", "Update"),
        (MANAGER, "Update"),  # of an object that svcctl has created
    }
)
_APPLY: Final = "Apply"
_SELF: Final = "."


def entries(live: Json) -> list[Json]:
    """Return the managers of an object with their fields, without those of subresources such as its status."""
    found = live["metadata"].get("managedFields") or ()
    return [each for each in found if each.get("fieldsV1") and set(each["fieldsV1"]) - {"f:status"}]


def is_adopted(entry: Json, api_version: str) -> bool:
    """Return whether the fields of a manager move to svcctl."""
    return is_applier(entry) and entry.get("apiVersion") == api_version


def is_applier(entry: Json) -> bool:
    """Return whether a manager has applied a former manifest."""
    return (entry["manager"], entry["operation"]) in _APPLIERS


def own_fields(stored: Json) -> Json:
    """Return the fields that svcctl applies, in an object as an apply leaves it."""
    return next((each["fieldsV1"] for each in entries(stored) if _is_own(each)), {})


def operations(live: Json, names: Names) -> list[Json]:
    """Return the JSON patch that moves the fields; empty if no field moves."""
    version = live["apiVersion"]
    moved = [each for each in entries(live) if is_adopted(each, version)]
    found: list[Json] = []
    if moved:
        kept = [each for each in live["metadata"]["managedFields"] if each not in moved and not _is_own(each)]
        fields: Mapping[str, Any] = own_fields(live)
        for each in moved:
            fields = union(fields, each["fieldsV1"])
        entry = moved[-1] | {"manager": MANAGER, "operation": _APPLY, "fieldsV1": fields}
        found.append({"op": "replace", "path": "/metadata/managedFields", "value": [*kept, entry]})
    annotation = last_applied(names)
    if annotation in (live["metadata"].get("annotations") or {}):
        found.append({"op": "remove", "path": f"/metadata/annotations/{annotation.replace('/', '~1')}"})
    return found


def leftovers(live: Json, applied: Json) -> Json:
    """Return the fields that adoption and apply together remove, and an apply alone does not.

    `applied` is the object as the apply alone would leave it."""
    version = live["apiVersion"]
    keep: Mapping[str, Any] = own_fields(applied)
    old: Mapping[str, Any] = {}
    for each in entries(live):
        if is_adopted(each, version):
            old = union(old, each["fieldsV1"])
        elif not _is_own(each):
            keep = union(keep, each["fieldsV1"])
    return _without(old, keep)


def remove_all(document: Any, fields: Mapping[str, Any]) -> None:
    """Remove from an object what `leftovers` has returned."""
    for key, below in fields.items():
        if not below:
            remove(document, (key,))
            continue
        child = value_at(document, (key,))
        if child is not MISSING:
            remove_all(child, below)


def _without(old: Mapping[str, Any], keep: Mapping[str, Any]) -> Json:
    """Return the fields that are in `old` alone. A field or an item that is itself in `old` alone has nothing below it."""
    return dict(_only(old, keep))


def _only(old: Mapping[str, Any], keep: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    for key, below in old.items():
        if key == _SELF:
            continue
        if key not in keep and (not below or _SELF in below):
            yield key, {}
        elif below and keep.get(key) != {} and (rest := _without(below, keep.get(key, {}))):
            yield key, rest


def _is_own(entry: Json) -> bool:
    return (entry["manager"], entry["operation"]) == (MANAGER, _APPLY)
