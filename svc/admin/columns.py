"""Columns of the tables that show objects."""

from collections.abc import Callable
from typing import Any, Final

from svc.admin.kind import Column
from svc.model.resource import Resource

MAX_CELL: Final = 60  # characters of a list in a table

NAME: Final[Column] = ("NAME", lambda resource: resource.name)
NAMESPACE: Final[Column] = ("NAMESPACE", lambda resource: resource.namespace)
LABELS: Final[Column] = ("LABELS", lambda resource: pairs(resource.labels))
CREATED: Final[Column] = ("CREATED", lambda resource: str(resource.metadata.get("creationTimestamp") or ""))


def field(heading: str, path: str) -> Column:
    """Return the column of a field of `spec`; the path has dots."""
    return heading, lambda resource: text_of(lookup(resource.spec, path))


def switch(heading: str, name: str) -> Column:
    """Return the column of a boolean field of `spec`."""
    return heading, lambda resource: "yes" if resource.spec.get(name) else "no"


def count(heading: str, name: str) -> Column:
    """Return the column with the number of items in a field of `spec`."""
    return heading, lambda resource: str(len(resource.spec.get(name) or ()))


def computed(heading: str, cell: Callable[[Resource], Any]) -> Column:
    """Return a column whose cells are empty if they cannot be worked out, because another program wrote the document."""

    def text(resource: Resource) -> str:
        try:
            return text_of(cell(resource))
        except (TypeError, ValueError, KeyError, AttributeError):
            return ""

    return heading, text


def lookup(value: Any, path: str) -> Any:
    """Return the value at a path of keys, or None."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text_of(value: Any) -> str:
    """Return a value as text: lists with commas and shortened, nothing for a missing one."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        joined = ",".join(map(text_of, value))
        return joined if len(joined) <= MAX_CELL else f"{joined[: MAX_CELL - 3]}..."
    return "" if value is None else str(value)


def pairs(labels: dict[str, str]) -> str:
    """Return labels as KEY=VALUE, with commas."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
