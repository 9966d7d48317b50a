"""Sets of fields, as `managedFields` of an object has them (FieldsV1): nested objects whose keys name fields and items.

A key is `f:NAME` for a field, `k:{...}` for an item of a list by its key fields, `v:VALUE` for an item of a set, `.` for the
thing itself. A field without keys below it is a leaf.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Fields = Mapping[str, Any]
Path = tuple[str, ...]

MISSING: Final = object()
"""What `value_at` returns for a path that an object does not have."""

_SELF: Final = "."


def leaves(fields: Fields, above: Path = ()) -> Iterator[Path]:
    """Yield the path of each leaf."""
    for key, below in fields.items():
        if key == _SELF:
            continue
        if any(name != _SELF for name in below):
            yield from leaves(below, (*above, key))
        else:
            yield (*above, key)


def union(first: Fields, second: Fields) -> dict[str, Any]:
    """Return the fields that are in one of the sets, or in both."""
    found = dict(first)
    for key, below in second.items():
        found[key] = union(found[key], below) if key in found else dict(below)
    return found


def has(fields: Fields, path: Path) -> bool:
    """Return whether a set has a field, or a leaf above it, which stands for all that is below."""
    here = fields
    for depth, key in enumerate(path):
        if key not in here:
            return depth > 0 and not any(name != _SELF for name in here)
        here = here[key]
    return True


def value_at(document: Any, path: Path) -> Any:
    """Return the value of a field; MISSING if the object does not have it."""
    for key in path:
        document = _child(document, key)
        if document is MISSING:
            return MISSING
    return document


def remove(document: Any, path: Path) -> None:
    """Remove a field from an object, if it is there. Objects that become empty stay."""
    parent = value_at(document, path[:-1])
    key = path[-1]
    if isinstance(parent, dict):
        parent.pop(key[2:], None)
    elif isinstance(parent, list):
        index = _index(parent, key)
        if index is not None:
            del parent[index]


def show(path: Path) -> str:
    """Return a path as people write it, such as spec.template.spec.containers[name=agent].image."""
    text = ""
    for key in path:
        kind, _, name = key.partition(":")
        if kind == "f":
            text += f".{name}" if "." not in name else f"[{name}]"
        elif kind == "k":
            text += "[" + ",".join(f"{field}={value}" for field, value in json.loads(name).items()) + "]"
        else:
            text += f"[{name}]"
    return text.removeprefix(".")


def _child(document: Any, key: str) -> Any:
    if isinstance(document, dict) and key.startswith("f:"):
        return document.get(key[2:], MISSING)
    if isinstance(document, list):
        index = _index(document, key)
        return MISSING if index is None else document[index]
    return MISSING


def _index(items: Sequence[Any], key: str) -> int | None:
    kind, _, name = key.partition(":")
    wanted: Any = json.loads(name) if name else None
    for index, item in enumerate(items):
        if (kind == "v" and item == wanted) or (kind == "i" and index == wanted):
            return index
        if kind == "k" and isinstance(item, dict) and _has_keys(item, wanted):
            return index
    return None


def _has_keys(item: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an item has these key fields. A key that the item leaves out has its default, as a port's protocol."""
    return all(item.get(field, value) == value for field, value in wanted.items()) and any(field in item for field in wanted)


def wholes_of(path: Path) -> list[Path]:
    """Return the paths of the objects and items in which a field is, and then its own, the outermost first."""
    return [path[: depth + 1] for depth in range(len(path))]


def split(fields: Fields, chosen: Sequence[Path], above: Path = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that are at or below one of the chosen paths, and the others.

    An item itself goes with its last field."""
    taken: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, below in fields.items():
        path = (*above, key)
        if key == _SELF:
            continue
        if any(path[: len(each)] == each for each in chosen):
            taken[key] = below
            continue
        inner, outer = split(below, chosen, path)
        if inner:
            taken[key] = inner
        if outer or not inner:
            rest[key] = outer
    if _SELF in fields:
        (rest if any(key != _SELF for key in rest) or not taken else taken)[_SELF] = fields[_SELF]
    return taken, rest


def put(document: Any, path: Path, source: Any) -> None:
    """Give an object the value that another one has at a path. A new item of a list gets its place of there."""
    for depth, key in enumerate(path):
        is_last = depth == len(path) - 1
        child = _child(source, key)
        if isinstance(document, dict):
            name = key[2:]
            if is_last or name not in document or document[name] is None:
                document[name] = copy.deepcopy(child) if is_last else type(child)()
            document, source = document[name], child
            continue
        index = _index(document, key)
        if index is None:
            index = _place_in(document, source, key)
            document.insert(index, copy.deepcopy(child) if is_last else _keys_of(key))
        elif is_last:
            document[index] = copy.deepcopy(child)
        document, source = document[index], child


def _place_in(items: Sequence[Any], source: Sequence[Any], key: str) -> int:
    """Return the place of a new item: after the nearest one before it in the source that the list has as well."""
    at = _index(source, key) or 0
    for before in reversed(source[:at]):
        found = next((place for place, each in enumerate(items) if _is_same(each, before)), None)
        if found is not None:
            return found + 1
    return 0


def _is_same(item: Any, other: Any) -> bool:
    if isinstance(item, dict) and isinstance(other, dict):
        return item.get("name") == other.get("name") and "name" in item
    return bool(item == other)


def _keys_of(key: str) -> Any:
    return json.loads(key.partition(":")[2])
