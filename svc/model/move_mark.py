"""The mark of a move of a datastore, as an annotation of its ClusterInformation has it."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass

LEAVING, LEFT, ARRIVING, ARRIVED = STATES = "leaving", "left", "arriving", "arrived"

_NAME: Final = "/datastore-move"  # of the annotation, after the prefix of the deployment


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a datastore.

    `other` is the place of the other datastore of the move. `before` is the run that had filled a source, or that had emptied
    a target: a move back goes to the datastore with that run. `since` is the time of the lock, in seconds since the boot
    `boot` of the machine that has locked. `former` is the specification of ClusterInformation, as JSON, that an empty target
    had.
    """

    run: str
    state: str
    other: str
    before: str = ""
    since: int = 0
    former: str = ""
    boot: str = ""

    def text(self) -> str:
        fields = {name: getattr(self, name) for name in ("run", "state", "other", "before", "since", "former", "boot")}
        return orjson.dumps({name: value for name, value in fields.items() if value}).decode()


def annotation(names: Names) -> str:
    """Return the name of the annotation."""
    return f"{names.label_prefix}{_NAME}"


def mark_of(names: Names, info: Resource | None) -> Mark | None:
    """Return the mark of a datastore. One that cannot be read counts as that of an unknown run."""
    return _mark((info.metadata.get("annotations") or {}).get(annotation(names)) if info else None)


def any_mark(metadata: Mapping[str, Any]) -> Mark | None:
    """Return the mark in the metadata of ClusterInformation, with the prefix of any deployment."""
    annotations = metadata.get("annotations") or {}
    return _mark(next((text for name, text in annotations.items() if name.endswith(_NAME)), None))


def _mark(text: str | None) -> Mark | None:
    if text is None:
        return None
    try:
        found = orjson.loads(text)
        texts = {name: str(found.get(name) or "") for name in ("run", "state", "other", "before", "former", "boot")}
        if texts["state"] not in STATES:
            texts["state"] = ""
        return Mark(**texts, since=int(found.get("since") or 0))
    except (ValueError, TypeError, AttributeError):
        return Mark("", "", "")
