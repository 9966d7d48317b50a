"""The step that takes the rights of the accounts of a former deployment away."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from svc.upgrade.places import Place
from svc.upgrade.small_step import SmallStep, place_to
from svc.upgrade.step import PARTS, Look
from svc.upgrade.writer import Writer

Json = dict[str, Any]

SUBJECTS: Final = "former-subjects"


class FormerSubjects(SmallStep):
    """Take the rights of the accounts of another namespace away."""

    destroys = "the rights of the former accounts; the run keeps the bindings"

    def __init__(self, writer: Writer, bindings: Sequence[Place] = (), namespace: str = "") -> None:
        super().__init__(writer, SUBJECTS)
        self._bindings = bindings
        self._namespace = namespace

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for bindings with subjects of that namespace."""
        found = {str(place): (place, live) for place, live in self._present() if self._kept(live) != subjects_of(live)}
        gone = ((name, each) for name, (_, live) in found.items() for each in subjects_of(live) if each not in self._kept(live))
        changes = tuple((f"{name}: subjects[-]", each, None) for name, each in gone)
        return Look(not found, changes=changes, before=PARTS, content=dict(found))

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the subjects, unless they are saved."""
        known = _bindings(saved)
        new = {
            name: [place_to(place), subjects_of(live)]
            for name, (place, live) in look.content.items()
            if name not in known or not _is_within(live, known[name][1])
        }
        return {"bindings": new, "namespace": self._namespace} if new else None

    def act(self, look: Look) -> None:
        """Write the others."""
        for place, live in look.content.values():
            self._write(place, live, self._kept(live))

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for bindings that lack subjects of that namespace.

        Others may be missing: an interrupted undoing goes on after a step that has restored the binding of before."""
        self._namespace = saved[-1].get("namespace", "") if saved else ""
        found: Json = {}
        for name, (place, subjects) in _bindings(saved).items():
            live = self._find(Place(*place))
            if live is not None and not all(each in subjects_of(live) for each in self._taken(subjects)):
                found[name] = (Place(*place), live, subjects)
        changed = {name: live for name, (_, live, subjects) in found.items() if not _is_within(live, subjects)}
        if changed:
            added = ((name, each) for name, live in changed.items() for each in subjects_of(live) if each not in found[name][2])
            since = tuple((f"{name}: subjects[+]", None, each) for name, each in added)
            return Look(False, tuple(f"{name} was changed since" for name in changed), changes=since)
        changes = tuple((f"{name}: subjects", subjects_of(live), subjects) for name, (_, live, subjects) in found.items())
        return Look(not found, changes=changes, content=found)

    def undo(self, look: Look) -> None:
        """Bind them again."""
        for place, live, subjects in look.content.values():
            self._write(place, live, subjects)

    def _present(self) -> Iterator[tuple[Place, Json]]:
        for place in self._bindings:
            if live := self._find(place):
                yield place, live

    def _taken(self, subjects: Sequence[Json]) -> list[Json]:
        """Return those that the step takes away."""
        return [each for each in subjects if each.get("namespace") == self._namespace or not self._namespace]

    def _kept(self, live: Json) -> list[Json]:
        return [each for each in subjects_of(live) if each.get("namespace") != self._namespace or not self._namespace]

    def _write(self, place: Place, live: Json, subjects: Sequence[Json]) -> None:
        self._writer.patch(place, live, [{"op": "add", "path": "/subjects", "value": list(subjects)}])


def subjects_of(binding: Json) -> list[Json]:
    """Return the subjects of a binding."""
    return list(binding.get("subjects") or ())


def _bindings(saved: Sequence[Json]) -> dict[str, Any]:
    """Return place and subjects of each binding as they are saved last."""
    return {name: each for entry in saved for name, each in entry["bindings"].items()}


def _is_within(live: Json, subjects: Sequence[Json]) -> bool:
    """Return whether a binding has no other subjects than these: those of a run, or what it has left of them."""
    return all(each in subjects for each in subjects_of(live))
