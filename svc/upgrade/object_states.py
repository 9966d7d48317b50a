"""States of objects: what of an object counts, its digest, and differences between two states."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from svc.names import Names

Json = dict[str, Any]
Difference = tuple[str, Any, Any]
"""A field with its value before and after; None where it is missing."""

_SERVERS: Final = ("resourceVersion", "uid", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences")
SECRET: Final = "Secret"  # noqa: S105  # a kind
HIDDEN: Final = "(hidden)"
_SECRET_FIELDS: Final = ("data", "stringData", "metadata.annotations")
_KEPT_APART: Final = ("ServiceAccount", "secrets")  # a controller writes them


def last_applied(names: Names) -> str:
    """Return the annotation with the document that a client applied last."""
    return f"kubectl.{names.orch_domain}/last-applied-configuration"


def written_annotations(names: Names) -> set[str]:
    """Return the annotations that clients and controllers write by themselves."""
    return {last_applied(names), f"deployment.{names.orch_domain}/revision", "deprecated.daemonset.template.generation"}


def essence(document: Json | None, names: Names) -> Json | None:
    """Return what users decide about an object: without status, and without what the server and controllers write."""
    if document is None:
        return None
    found = {key: value for key, value in document.items() if key not in ("status", "metadata")}
    if document.get("kind") == _KEPT_APART[0]:
        found.pop(_KEPT_APART[1], None)
    metadata = {key: value for key, value in document["metadata"].items() if key not in _SERVERS}
    noise = written_annotations(names)
    metadata["annotations"] = {key: value for key, value in (metadata.get("annotations") or {}).items() if key not in noise}
    found["metadata"] = {key: value for key, value in metadata.items() if value not in ({}, [])}
    return found


def digest(state: Json | None) -> str:
    """Return a text that is equal for equal states."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield each field that differs. Items of lists are compared by their names if these differ, else as a whole."""
    if before == after:
        return
    pairs = _pairs(before, after)
    if pairs is None:
        yield from _items(before, after, path) or [(path, before, after)]
        return
    for key, (old, new) in pairs.items():
        yield from differences(old, new, f"{path}{key}" if key.startswith("[") or not path else f"{path}.{key}")


def shown(before: Json | None, after: Json | None) -> tuple[Difference, ...]:
    """Return the differences of two states of an object, for people: without what a Secret keeps."""
    found = tuple(differences(before, after))
    if SECRET not in ((before or {}).get("kind"), (after or {}).get("kind")):
        return found
    return tuple(
        (field, old and HIDDEN, new and HIDDEN) if field.startswith(_SECRET_FIELDS) or not field else (field, old, new)
        for field, old, new in found
    )


def _items(before: Any, after: Any, path: str) -> list[Difference]:
    """Return the objects that only one of two lists has; an empty list for other values, and if only the order differs."""
    if not all(isinstance(value, list) and all(isinstance(each, dict) for each in value) for value in (before, after)):
        return []
    gone: list[Difference] = [(f"{path}[-]", each, None) for each in before if each not in after]
    return [*gone, *((f"{path}[+]", None, each) for each in after if each not in before)]


def _pairs(before: Any, after: Any) -> dict[str, tuple[Any, Any]] | None:
    old, new = _members(before), _members(after)
    if old is None or new is None:
        return None
    return {key: (old.get(key), new.get(key)) for key in {**old, **new}}


def _members(value: Any) -> Json | None:
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or not all(isinstance(item, dict) and "name" in item for item in value):
        return None
    found = {f"[{item['name']}]": item for item in value}
    return found if len(found) == len(value) else None
