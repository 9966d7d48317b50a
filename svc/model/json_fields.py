"""Reading stored documents field by field: others write them too, so nothing about their types can be taken for granted.

What is absent and what is null are the same. ValueError names the field, what stands there, and what should.
"""

from collections.abc import Set
from typing import Any

from svc.model.field_errors import json_kind, shown

Json = dict[str, Any]

_STRINGS, _INTEGERS = {str}, {int}  # asked for at once: a block has hundreds of them


def required_text(data: Json, name: str) -> str:
    """A string that must be there."""
    found = text(data, name)
    if not found:
        raise ValueError(f"{name} is missing")
    return found


def text(data: Json, name: str) -> str | None:
    """A string."""
    value = data.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _mistyped(name, value, "a string")


def flag(data: Json, name: str) -> bool:
    """A boolean; false where there is none."""
    value = data.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _mistyped(name, value, "a boolean")


def number(data: Json, name: str) -> int:
    """A whole number, zero or more; zero where there is none."""
    value = data.get(name)
    return 0 if value is None else _whole(name, value)


def integer(data: Json, name: str) -> int:
    """A whole number of any sign; zero where there is none."""
    value = data.get(name)
    if value is None or type(value) is int:
        return value or 0
    raise _mistyped(name, value, "a whole number")


def items(data: Json, name: str) -> list[Any]:
    """An array, of anything; empty where there is none."""
    value = data.get(name)
    if value is None or isinstance(value, list):
        return value or []
    raise _mistyped(name, value, "an array")


def pairs(data: Json, name: str) -> Json:
    """An object, of anything; empty where there is none."""
    value = data.get(name)
    if value is None or isinstance(value, dict):
        return value or {}
    raise _mistyped(name, value, "an object")


def texts(data: Json, name: str) -> dict[str, str] | None:
    """An object of strings."""
    value = data.get(name)
    if value is None or (type(value) is dict and set(map(type, value.values())) <= _STRINGS):
        return value
    field, wrong = next((field, item) for field, item in pairs(data, name).items() if not isinstance(item, str))
    raise _mistyped(f"{name}.{field}", wrong, "a string")


def numbers(data: Json, name: str) -> dict[str, int]:
    """An object of whole numbers, zero or more."""
    found = pairs(data, name)
    if set(map(type, found.values())) <= _INTEGERS and min(found.values(), default=0) >= 0:
        return found
    return {field: _whole(f"{name}.{field}", value) for field, value in found.items()}


def unknown(data: Json, known: Set[str]) -> Json | None:
    """The fields that we have no name for: they are kept, for whoever wrote them. None when there is none."""
    return None if data.keys() <= known else {name: data[name] for name in data if name not in known}


def _whole(name: str, value: object) -> int:
    if type(value) is int and value >= 0:
        return value
    raise _mistyped(name, value, "a whole number of 0 or more")


def _mistyped(name: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{name} = {shown(value)} is {json_kind(value)}, not {wanted}")
