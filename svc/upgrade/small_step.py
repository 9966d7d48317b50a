"""What steps have in common that are not about one object of a manifest."""

from collections.abc import Sequence
from typing import Any

from svc.upgrade.places import Place
from svc.upgrade.step import REACHED, Look, Progress
from svc.upgrade.writer import Writer

Json = dict[str, Any]

_OF_USERS = ("name", "namespace", "labels", "annotations")  # metadata of an object that is created again


class SmallStep:
    """A step that is undone by what it has saved. The cluster follows it at once."""

    destroys = ""
    can_undo = True

    def __init__(self, writer: Writer, name: str) -> None:
        self._writer = writer
        self.name = self.saves_as = name

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: undoing only brings back what is saved."""
        return None

    def remains(self) -> bool:
        """Return False: nothing follows the undoing that the cluster would have to do first."""
        return False

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return that the cluster follows at once."""
        return REACHED

    def _find(self, place: Place | None) -> Json | None:
        """Return an object; None if it does not exist, or if its kind is not served."""
        return self._writer.find(place) if place is not None and self._writer.served(place) else None


def place_to(place: Place) -> list[str]:
    """Return a place as a backup has it."""
    return [place.api_version, place.kind, place.namespace, place.name]


def created_again(document: Json) -> Json:
    """Return what creates a deleted object again."""
    found = {name: value for name, value in document.items() if name not in ("metadata", "status")}
    return found | {"metadata": {name: document["metadata"][name] for name in _OF_USERS if document["metadata"].get(name)}}
