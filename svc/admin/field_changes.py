"""How an object differs from another one: field by field, for people."""

import json
from collections.abc import Iterator
from typing import Any, Final

from svc.model.resource import Resource

FieldChange = tuple[str, Any, Any]
"""A field, and its value before and after; ABSENT if it has none."""

ABSENT: Final = object()
SHOWN: Final = ("labels", "annotations")
"""The parts of metadata that are compared; the others are of the datastore."""


def field_changes(earlier: Resource | None, later: Resource) -> list[FieldChange]:
    """Return the labels, annotations and fields of `spec` that differ, in the order of their paths."""
    before, after = dict(_flat(earlier)) if earlier else {}, dict(_flat(later))
    paths = sorted(before.keys() | after.keys())
    found = [(path, before.get(path, ABSENT), after.get(path, ABSENT)) for path in paths]
    return [each for each in found if each[1] is ABSENT or each[2] is ABSENT or each[1] != each[2]]


def _flat(resource: Resource) -> Iterator[tuple[str, Any]]:
    for name in SHOWN:
        yield from ((f"metadata.{name}.{key}", value) for key, value in (resource.metadata.get(name) or {}).items())
    yield from _flattened("spec", resource.spec)


def _flattened(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flattened(f"{path}.{key}", item)
    elif value != {}:
        yield path, value


def show_value(value: Any) -> str:
    """Return a field's value as JSON."""
    return "(none)" if value is ABSENT else json.dumps(value, ensure_ascii=False)
