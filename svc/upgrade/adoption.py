"""Fields of the managers that applied former manifests: they move to svcctl, so that fields which the new manifest lacks go.

Edits of such a manifest that are carried over move to a manager of their own instead: so they stay, and later runs know them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from svc.names import Names
from svc.upgrade.field_sets import MISSING, Path, remove, split, union, value_at
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
EDITS: Final = "manifest-edits"
"""The manager of what users have changed in a manifest before it was applied."""

_APPLY, _UPDATE = "Apply", "Update"
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


def operations(live: Json, names: Names, carried: Sequence[Path] = ()) -> list[Json]:
    """Return the JSON patch that moves the fields; empty if no field moves. `carried` are edits that are carried over."""
    found = _moved(live, carried)
    annotation = last_applied(names)
    if annotation in (live["metadata"].get("annotations") or {}):
        found.append({"op": "remove", "path": f"/metadata/annotations/{annotation.replace('/', '~1')}"})
    return found


def holds(live: Json, paths: Sequence[Path]) -> bool:
    """Return whether svcctl has one of these fields, or a manager whose fields move to it."""
    return bool(split(_adopted_fields(live), paths)[0])


def _adopted_fields(live: Json) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = own_fields(live)
    for each in entries(live):
        if is_adopted(each, live["apiVersion"]):
            fields = union(fields, each["fieldsV1"])
    return fields


def _moved(live: Json, carried: Sequence[Path]) -> list[Json]:
    version, present = live["apiVersion"], entries(live)
    moved = [each for each in present if is_adopted(each, version)]
    edited, rest = split(_adopted_fields(live), carried)
    if not moved and not edited:
        return []
    own, former = [each for each in present if _is_own(each)], [each for each in present if _is_of_edits(each)]
    gone = [*moved, *own, *(former if edited else [])]
    kept = [each for each in live["metadata"]["managedFields"] if each not in gone]
    model = [*own, *moved][-1] | {"apiVersion": version}
    if rest:
        kept.append(model | {"manager": MANAGER, "operation": _APPLY, "fieldsV1": rest})
    if edited:
        for each in former:
            edited = union(edited, each["fieldsV1"])
        kept.append(model | {"manager": EDITS, "operation": _UPDATE, "fieldsV1": edited})
    return [{"op": "replace", "path": "/metadata/managedFields", "value": kept}]


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


def _is_of_edits(entry: Json) -> bool:
    return (entry["manager"], entry["operation"]) == (EDITS, _UPDATE)


def _is_own(entry: Json) -> bool:
    return (entry["manager"], entry["operation"]) == (MANAGER, _APPLY)
