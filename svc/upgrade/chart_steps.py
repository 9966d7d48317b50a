"""The steps of a chart beside its definitions (specification, 9.3): adoption, and the Secrets of the former release."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from svc.upgrade.chart_view import RELEASE_NAMESPACE, ChartView, Situation
from svc.upgrade.field_sets import Path
from svc.upgrade.former_managers import giving_back_at, managers_at
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.releases import FORMER_NAMESPACE, place_of
from svc.upgrade.step import PARTS, REACHED, Look, Progress
from svc.upgrade.writer import Writer

Json = dict[str, Any]

ADOPT, FORMER = "adopt-objects", "former-releases"
_ANNOTATION: Final = f"/metadata/annotations/{RELEASE_NAMESPACE.replace('/', '~1')}"
_FIELD: Final[Path] = ("f:metadata", "f:annotations", f"f:{RELEASE_NAMESPACE}")


class ChartStep:
    """What the steps have in common. Without a view a step can only be undone."""

    name = ""
    destroys = ""
    can_undo = True

    def __init__(self, writer: Writer, view: ChartView | None = None) -> None:
        self._writer = writer
        self._view_or_none = view
        self.saves_as = self.name

    @property
    def _view(self) -> ChartView:
        assert self._view_or_none is not None
        return self._view_or_none

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: undoing only brings back what is saved."""
        return None

    def remains(self) -> bool:
        """Return False: nothing follows the undoing that the cluster would have to do first."""
        return False

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return that the cluster follows at once."""
        return REACHED

    def _find(self, place: Place) -> Json | None:
        return self._writer.find(place) if self._writer.served(place) else None


class AdoptObjects(ChartStep):
    """Let the objects of a release of the old layout belong to its new namespace. They keep the name of the release."""

    name = ADOPT

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for objects that belong to the namespace of the old layout."""
        found = self._view.situation()
        if found.blockers:
            return Look(False, found.blockers)
        objects = self._view.adoptable(found) if found.former is not None else ()
        left = {place: live for place, live in objects if _owner(live) == FORMER_NAMESPACE}
        changes = tuple((f"{place}: {RELEASE_NAMESPACE}", FORMER_NAMESPACE, found.namespace) for place in left)
        return Look(
            not left,
            blockers=tuple(self._view.foreign(found)),
            notes=tuple(self._view.pull_secrets(found)),
            changes=changes,
            before=PARTS,
            content={"left": left, "to": found.namespace},
        )

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the objects that the step will change, with the managers of what it changes."""
        left, known = look.content.get("left") or {}, {(*each,) for entry in saved for each in entry["objects"]}
        new = {place: live for place, live in left.items() if (*_row(place, live),) not in known}
        if not new:
            return None
        managers = {str(place): managers_at(live, [_FIELD]) for place, live in new.items()}
        return {"objects": [_row(*each) for each in new.items()], "managers": managers, "to": look.content["to"]}

    def act(self, look: Look) -> None:
        """Change the annotation of each object."""
        for place, live in look.content["left"].items():
            self._set(place, live, look.content["to"])

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for objects that still have the annotation which the run has given them."""
        left, notes = dict[Place, tuple[Json, list[Json]]](), []
        for entry in saved:
            for *words, uid in entry["objects"]:
                place = Place(*words)
                live, managers = self._find(place), _managers(entry, place)
                if live is None or live["metadata"]["uid"] != uid:
                    notes.append(f"{place} does not exist any more")
                elif _owner(live) == entry["to"] or _given_back(live, managers):
                    left[place] = live, managers
        owners = {place: _owner(live) for place, (live, _) in left.items()}
        changes = tuple((f"{place}: {RELEASE_NAMESPACE}", owner, FORMER_NAMESPACE) for place, owner in owners.items())
        return Look(not left, notes=tuple(dict.fromkeys(notes)), changes=changes, content={"left": left})

    def undo(self, look: Look) -> None:
        """Restore the annotations, and give them back to their managers."""
        for place, (live, managers) in look.content["left"].items():
            restored = live if _owner(live) == FORMER_NAMESPACE else self._set(place, live, FORMER_NAMESPACE)
            if operations := _given_back(restored, managers):
                self._writer.patch(place, restored, operations)

    def _set(self, place: Place, live: Json, namespace: str) -> Json:
        return self._writer.patch(place, live, [{"op": "add", "path": _ANNOTATION, "value": namespace}])


class FormerReleases(ChartStep):
    """Delete the Secrets of the former release, when the new one is deployed and the user consents."""

    name = FORMER
    destroys = "the revisions of the release in its former namespace; the run keeps copies"

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for Secrets of the release in its former namespace."""
        found = self._view.situation()
        places = [place_of(each) for each in found.former_secrets]
        return Look(
            not places,
            found.blockers,
            asks=self._asks(found, places),
            notes=tuple(self._notes(found, places)),
            changes=tuple((str(each), "present", None) for each in places),
            before=PARTS,
            content={"places": places},
        )

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the Secrets that are not saved."""
        known = {each["metadata"]["uid"] for entry in saved for each in entry["secrets"]}
        live = [self._writer.find(each) for each in look.content.get("places") or ()]
        new = [each for each in live if each is not None and each["metadata"]["uid"] not in known]
        return {"secrets": new} if new else None

    def act(self, look: Look) -> None:
        """Delete the Secrets, the oldest first. Raise Blocked unless the new release is deployed."""
        found = self._view.situation()
        if not self._view.is_done(found):
            state = f"has status {found.current.status}" if found.current else "does not exist"
            raise Blocked([f"the new release {found.namespace}/{self._view.wish.release} {state}: the former one stays"])
        for place in look.content["places"]:
            if live := self._writer.find(place):
                self._writer.delete(place, live)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for Secrets that the run has deleted."""
        secrets = {place_of(each): each for entry in saved for each in entry["secrets"]}
        missing = [each for place, each in secrets.items() if self._writer.find(place) is None]
        changes = tuple((str(place_of(each)), None, "present") for each in missing)
        return Look(not missing, changes=changes, content={"missing": missing})

    def undo(self, look: Look) -> None:
        """Create the Secrets again."""
        for each in look.content["missing"]:
            metadata = {name: each["metadata"][name] for name in ("name", "namespace", "labels") if name in each["metadata"]}
            self._writer.create({key: value for key, value in each.items() if key != "metadata"} | {"metadata": metadata})

    def _notes(self, found: Situation, places: Sequence[Place]) -> Iterator[str]:
        yield from (f"{each} has the labels of the release, and is not a revision: it stays" for each in found.others)
        if places and not self._view.is_done(found):
            yield f"asks for --ack {FORMER} when the new release is deployed"

    def _asks(self, found: Situation, places: Sequence[Place]) -> tuple[str, ...]:
        """Return what will be deleted, once the new release is there. Before that, the user has nothing to consent to."""
        if not places or not self._view.is_done(found):
            return ()
        return tuple(f"{place} will be deleted" for place in places)


def _row(place: Place, live: Json) -> list[str]:
    return [place.api_version, place.kind, place.namespace, place.name, live["metadata"]["uid"]]


def _managers(entry: Json, place: Place) -> list[Json]:
    """Return the former managers of the annotation; nothing of a run of a former build, which has not saved them."""
    found: list[Json] = (entry.get("managers") or {}).get(str(place)) or []
    return found


def _given_back(live: Json, managers: Sequence[Json]) -> list[Json]:
    """Return the JSON patch for the managers of an annotation that is as before."""
    return giving_back_at(live, managers, [_FIELD]) if _owner(live) == FORMER_NAMESPACE else []


def _owner(live: Json) -> str:
    return str((live["metadata"].get("annotations") or {}).get(RELEASE_NAMESPACE) or "")
