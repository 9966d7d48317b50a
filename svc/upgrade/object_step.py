"""A step that brings one object of a manifest into the cluster."""

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from svc.deploy.server_apply import DEFINITION, NAMESPACE, is_created_once
from svc.upgrade import adoption
from svc.upgrade.bundle import WORKLOADS, Bundle, kinds_of
from svc.upgrade.former_managers import giving_back
from svc.upgrade.lost_routes import lost_routes
from svc.upgrade.manual_edits import Edit, find_edits, with_carried, without_carried
from svc.upgrade.object_states import Difference, digest, essence, last_applied, shown
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place, place_of
from svc.upgrade.published_base import compared, is_comparable
from svc.upgrade.rollouts import blocking_budgets, rollout_of
from svc.upgrade.step import REACHED, Look, Progress
from svc.upgrade.stored_objects import count_objects, has_blocks, undecodable
from svc.upgrade.writer import Changed, Writer, not_served

Json = dict[str, Any]
Former = Callable[[str], Json | None]
"""Return what the last run applied in a step, by its name."""

_ATTEMPTS: Final = 10
_CREATED: Final[tuple[Difference, ...]] = (("", None, "created"),)
OF_SERVER: Final = ("resourceVersion", "uid", "generation", "creationTimestamp", "selfLink", "ownerReferences")


class ObjectStep:
    """The step of one document. Its name is the kind, namespace and name of the object."""

    destroys = ""
    can_undo = True

    def __init__(self, writer: Writer, document: Json, bundle: Bundle, former: Former) -> None:
        self._writer = writer
        self._document = document
        self._bundle = bundle
        self._former = former
        self.place = place_of(document)
        self.name = self.saves_as = str(self.place)
        self._has_acted = False

    def look(self, saved: Sequence[Json]) -> Look:
        """Compare the object with what a forced apply would make of it."""
        place = self.place
        if self._writer.served(place) is None:
            if self._bundle.brings(place):
                self._writer.discovery.forget(place.api_version)  # the definition may have been applied since
                return Look(False, unverified=True, changes=_CREATED, before=digest(None))
            return Look(False, blockers=(not_served(place),))
        blockers, is_planned = self._namespace()
        if blockers or is_planned:
            return Look(False, blockers, unverified=is_planned, changes=_CREATED, before=digest(None))
        for _ in range(_ATTEMPTS):
            with suppress(Changed):  # controllers write the status of workloads and definitions at any time
                return self._compare(saved)
        return Look(False, (f"{self.name} changes all the time",))

    def _compare(self, saved: Sequence[Json]) -> Look:
        live = self._writer.find(self.place)
        if live is not None and is_created_once(self._document):
            found = digest(essence(live, self._writer.names))
            return Look(True, before=found, after=found)
        try:
            return self._creation() if live is None else self._change(live, saved)
        except Blocked as error:
            return Look(False, error.reasons, before=digest(essence(live, self._writer.names)))

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the object as it is, and as it will be, unless that is saved."""
        if saved:
            known = {saved[-1]["digest_before"], saved[-1]["digest_after"]}
            if look.before in known and look.after == saved[-1]["digest_after"]:
                return None
        content = {name: look.content.get(name) for name in ("before", "after", "base")}
        if (applied := look.content.get("applied")) != look.content.get("after"):
            content["applied"] = applied
        return content | {"digest_before": look.before, "digest_after": look.after}

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: what undoing replaces is what the run has made."""
        return None

    def act(self, look: Look) -> None:
        """Create the object, or move the fields of former managers to svcctl and apply the document."""
        live = look.content["before"]
        self._has_acted = True
        if live is None:
            self._writer.create(self._document)
            return
        if operations := adoption.operations(live, self._writer.names, look.content["carried"]):
            live = self._writer.patch(self.place, live, operations)
        self._writer.apply(look.content["document"], live)

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether a workload has rolled out, and whether the kinds of a definition are served."""
        if self.place.kind in WORKLOADS:
            return rollout_of(self._writer, self.place, detailed=detailed)
        return self._definition_progress() if self.place.kind == DEFINITION else REACHED

    def remains(self) -> bool:
        """Return whether the object exists, and is not being deleted."""
        live = self._writer.find(self.place) if self._writer.served(self.place) else None
        return live is not None and not _is_ending(live)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Compare the object with what the run has made of it, and with what it was before."""
        if not saved:
            return Look(True)
        live = self._writer.find(self.place) if self._writer.served(self.place) else None
        now, target = digest(essence(live, self._writer.names)), origin(saved)
        wanted = digest(essence(target, self._writer.names))
        if live is not None and target is not None and now == wanted and self._is_half_restored(live, target):
            return Look(False, before=now, after=wanted, content={"live": live, "target": target})
        if now == wanted or (live is not None and target is None and _is_ending(live)):
            return Look(True, before=now, after=wanted)
        if target is None and live is not None and _selector(live) != _selector(saved[-1]["after"]):
            return Look(True, before=now, after=wanted)  # a selector cannot be changed: another object was put in its place
        if target is None and (note := self._why_kept()):
            return Look(True, notes=(note,), before=now, after=wanted)
        if now not in {each["digest_after"] for each in saved}:
            made = saved[-1]["after"]
            found = shown(made, essence(live, self._writer.names))
            return Look(False, (f"{self.name} was changed since",), changes=found, before=now, after=wanted)
        changes = shown(essence(live, self._writer.names), essence(target, self._writer.names))
        return Look(False, changes=changes, before=now, after=wanted, content={"live": live, "target": target})

    def undo(self, look: Look) -> None:
        """Restore the object as it was, and the managers of its fields; delete it if it did not exist."""
        live, target = look.content["live"], look.content["target"]
        if target is None:
            self._writer.delete(self.place, live)
            return
        body = copy.deepcopy(target)
        for field in OF_SERVER:
            body["metadata"].pop(field, None)
        if owners := live["metadata"].get("ownerReferences"):  # they have steps of their own
            body["metadata"]["ownerReferences"] = owners
        names = self._writer.names
        if essence(live, names) != essence(target, names) or self._lacks_note(live, target):
            live = self._writer.replace(body, live)
        if operations := giving_back(live, target):
            self._writer.patch(self.place, live, operations)

    def _is_half_restored(self, live: Json, target: Json) -> bool:
        """Return whether managers, or what a client had noted, are not as before: a run was killed between two writes."""
        return bool(giving_back(live, target)) or self._lacks_note(live, target)

    def _lacks_note(self, live: Json, target: Json) -> bool:
        return self._note(live) is None and self._note(target) is not None

    def _note(self, document: Json | None) -> str | None:
        """Return the document that a client applied last, as it has noted it."""
        annotations: dict[str, str] = document["metadata"].get("annotations") or {} if document is not None else {}
        return annotations.get(last_applied(self._writer.names))

    def _creation(self) -> Look:
        after = essence(self._writer.dry_create(self._document), self._writer.names)
        content = {"before": None, "after": after, "base": None}
        return Look(False, changes=_CREATED, before=digest(None), after=digest(after), content=content)

    def _change(self, live: Json, saved: Sequence[Json]) -> Look:
        names, (base, is_recorded) = self._writer.names, self._base(live, saved)
        applied = self._writer.dry_apply(self._document)
        own, published = essence(applied, names), self._bundle.published(self.place)
        if is_comparable(published, self._document):
            edits = compared(self._writer, live, applied, self._document, published)
        else:
            edits = list(find_edits(live, applied, base, is_recorded=is_recorded))
        document, carried = without_carried(self._document, edits), tuple(each.path for each in edits if each.is_carried)
        if (expected := self._expected(document, edits, live)) != self._document:
            applied = self._writer.dry_apply(expected)
        if rest := adoption.leftovers(live, applied):
            adoption.remove_all(applied, rest)
            applied["metadata"].pop("managedFields", None)
            applied = self._writer.dry_replace(applied | {"metadata": _at(applied, live)})
        before, after = essence(live, names), essence(applied, names)
        return Look(
            before == after,
            asks=(*(f"{self.name}: {edit}" for edit in edits if not edit.is_carried), *lost_routes(live, applied)),
            notes=tuple(self._notes(live, edits)),
            changes=shown(before, after),
            before=digest(before),
            after=digest(after),
            content={"before": live, "after": after, "applied": own, "base": base, "document": document, "carried": carried},
        )

    def _expected(self, document: Json, edits: Sequence[Edit], live: Json) -> Json:
        """Return what an apply has to have for the result of the step, while former managers still own edits."""
        carried = [each.path for each in edits if each.is_carried]
        return with_carried(self._document, edits, live) if adoption.holds(live, carried) else document

    def _notes(self, live: Json, edits: Sequence[Edit]) -> list[str]:
        found = [f"{self.name}: {edit}" for edit in edits if edit.is_carried]
        return [*found, *(blocking_budgets(self._writer, live) if self.place.kind in WORKLOADS else ())]

    def _base(self, live: Json, saved: Sequence[Json]) -> tuple[Json | None, bool]:
        """Return the object of the former manifest, if it is known, and whether a run has recorded it as it was stored.

        A damaged annotation does not count. A run that was killed after it had removed it has saved it as its base."""
        with suppress(ValueError):
            noted: Json | None = json.loads(self._note(live) or "")
            return noted, False
        found = self._former(self.name)
        return found, not any(each.get("base") == found and self._note(each["before"]) for each in saved)

    def _namespace(self) -> tuple[tuple[str, ...], bool]:
        """Return what forbids objects in the namespace, and whether it is yet to be made."""
        name, served = self.place.namespace, self._writer.served(self.place)
        if served is not None and served.is_namespaced != bool(name):
            return (f"{self.name}: metadata.namespace is {'missing' if not name else 'given, and its kind has none'}",), False
        if not name:
            return (), False
        found = self._writer.find(Place("v1", NAMESPACE, "", name))
        if found is None:
            planned = name in self._bundle.namespaces
            return (() if planned else (f"the namespace {name} of {self.name} does not exist",)), planned
        if "deletionTimestamp" in found["metadata"]:
            return (f"the namespace {name} of {self.name} is terminating",), False
        return (), False

    def _definition_progress(self) -> Progress:
        live = self._writer.find(self.place) or {}
        conditions = {each["type"]: each for each in (live.get("status") or {}).get("conditions") or ()}
        for name in ("NamesAccepted", "Established"):
            condition = conditions.get(name) or {"status": "Unknown"}
            if condition["status"] != "True":
                return Progress(False, (f"{self.name}: {name} is {condition['status']}: {condition.get('message') or ''}",))
        for api_version, kind in kinds_of(live):
            self._writer.discovery.forget(api_version)
            if self._writer.discovery.find(api_version, kind) is None:
                return Progress(False, (f"{self.name}: {kind} of {api_version} is not served yet",))
        if self._has_acted and (reasons := tuple(undecodable(self._writer, live))):
            raise Blocked(reasons, details="correct these objects, or undo the upgrade")
        return REACHED

    def _why_kept(self) -> str:
        """Return why undoing leaves an object that the run has created; empty if it does not."""
        if self.place.kind == NAMESPACE:
            return f"{self.name} stays: others may use it"
        if is_created_once(self._document) and has_blocks(self._writer, self._document):
            return f"{self.name} stays: nodes have blocks of it"
        if self.place.kind != DEFINITION:
            return ""
        number = count_objects(self._writer, self._document)
        return f"{self.name} stays: {number} objects of its kind exist" if number else ""


def origin(saved: Sequence[Json]) -> Json | None:
    """Return the object before the run; before the last write, if it was changed in between."""
    known = {digest for each in saved for digest in (each["digest_after"], saved[0]["digest_before"])}
    is_whole = all(each["digest_before"] in known for each in saved)
    found: Json | None = saved[0 if is_whole else -1]["before"]
    return found


def _is_ending(live: Json) -> bool:
    return "deletionTimestamp" in live["metadata"]


def _selector(workload: Json | None) -> Any:
    selector = ((workload or {}).get("spec") or {}).get("selector")
    return selector if workload is not None and workload.get("kind") in WORKLOADS else None


def _at(applied: Json, live: Json) -> Json:
    return {**applied["metadata"], **{name: live["metadata"][name] for name in ("resourceVersion", "uid")}}
