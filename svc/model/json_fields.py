"""Typed access to fields of stored documents. Other programs write them too, so every type is checked.

A missing field and null are equivalent. ValueError names the field, its value and the expected type.
"""

from collections.abc import Set
from typing import Any

from svc.model.field_errors import display, json_kind

Json = dict[str, Any]

_STRINGS, _INTEGERS = {str}, {int}  # compared as sets, because a block has hundreds of items


def required_text(data: Json, name: str) -> str:
    """Return a string. Raise ValueError also if it is missing or empty."""
    found = text(data, name)
    if not found:
        raise ValueError(f"{name} is missing")
    return found


def text(data: Json, name: str) -> str | None:
    """Return a string, or None."""
    value = data.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _mistyped(name, value, "a string")


def flag(data: Json, name: str) -> bool:
    """Return a boolean; false if missing."""
    value = data.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _mistyped(name, value, "a boolean")


def number(data: Json, name: str) -> int:
    """Return a whole number, zero or more; zero if missing."""
    value = data.get(name)
    return 0 if value is None else _whole(name, value)


def integer(data: Json, name: str) -> int:
    """Return a whole number of any sign; zero if missing."""
    value = data.get(name)
    if value is None or type(value) is int:
        return value or 0
    raise _mistyped(name, value, "a whole number")


def items(data: Json, name: str) -> list[Any]:
    """Return an array of any items; empty if missing."""
    value = data.get(name)
    if value is None or isinstance(value, list):
        return value or []
    raise _mistyped(name, value, "an array")


def pairs(data: Json, name: str) -> Json:
    """Return an object of any values; empty if missing."""
    value = data.get(name)
    if value is None or isinstance(value, dict):
        return value or {}
    raise _mistyped(name, value, "an object")


def texts(data: Json, name: str) -> dict[str, str] | None:
    """Return an object of strings, or None."""
    value = data.get(name)
    if value is None or (type(value) is dict and set(map(type, value.values())) <= _STRINGS):
        return value
    field, wrong = next((field, item) for field, item in pairs(data, name).items() if not isinstance(item, str))
    raise _mistyped(f"{name}.{field}", wrong, "a string")


def numbers(data: Json, name: str) -> dict[str, int]:
    """Return an object of whole numbers, zero or more; empty if missing."""
    found = pairs(data, name)
    if set(map(type, found.values())) <= _INTEGERS and min(found.values(), default=0) >= 0:
        return found
    return {field: _whole(f"{name}.{field}", value) for field, value in found.items()}


def unknown(data: Json, known: Set[str]) -> Json | None:
    """Return the fields that are not in `known`, to be written back for the program that wrote them; None if all are known."""
    return None if data.keys() <= known else {name: data[name] for name in data if name not in known}


def _whole(name: str, value: object) -> int:
    if type(value) is int and value >= 0:
        return value
    raise _mistyped(name, value, "a whole number of 0 or more")


def _mistyped(name: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{name} = {display(value)} is {json_kind(value)}, not {wanted}")
