"""Steps about the workloads and accounts of a deployment that another one replaces."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from svc.upgrade.former_managers import giving_back, giving_back_at, joined, managers_at
from svc.upgrade.node_turns import Turn, affinity, turn_from, waiting_nodes
from svc.upgrade.object_states import Difference, digest, essence
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.rollouts import rollout_of
from svc.upgrade.small_step import SmallStep, created_again, place_to
from svc.upgrade.step import PARTS, REACHED, Look, Progress
from svc.upgrade.writer import Writer

Json = dict[str, Any]

HOLD, PAUSE = "hold-former-agent", "pause-former-controllers"
WORKLOADS, ACCOUNTS = "former-workloads", "former-accounts"
_ON_DELETE: Final = {"type": "OnDelete"}
_STRATEGY, _AFFINITY = "/spec/updateStrategy", "/spec/template/spec/affinity"
_FIELDS: Final = {
    "updateStrategy": ("f:spec", "f:updateStrategy"),
    "affinity": ("f:spec", "f:template", "f:spec", "f:affinity"),
}
_REPLICAS: Final = (("f:spec", "f:replicas"),)


class HoldFormer(SmallStep):
    """Bind the former DaemonSet to the nodes that wait. Its pods stay as they are: it only updates those that are deleted."""

    def __init__(self, writer: Writer, turn: Turn | None = None) -> None:
        super().__init__(writer, HOLD)
        self._turn = turn

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look at affinity and update strategy."""
        assert self._turn is not None
        live = self._find(self._turn.former)
        if live is None:
            return Look(True)
        before, after = _hold(live), _held(self._turn)
        changes = _changes(self._turn.former, before, after)
        return Look(
            not changes, changes=changes, before=digest(before), after=digest(after), content={"live": live, "hold": after}
        )

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return what the DaemonSet has, unless that is saved. What is of this step already is not what was there before."""
        if look.is_done:
            return None
        assert self._turn is not None
        known = saved[-1]["hold"] if saved else {}
        live, own = _hold(look.content["live"]), look.content["hold"]
        is_own = {name: name in known and live[name] == own[name] for name in live}
        hold = {name: known[name] if is_own[name] else live[name] for name in live}
        if hold == known:
            return None
        former = _former(saved)
        managers = {name: former.get(name, []) if is_own[name] else _managers(look.content["live"], name) for name in live}
        return {"turn": self._turn.to_json(), "hold": hold, "managers": managers}

    def act(self, look: Look) -> None:
        """Write both."""
        self._write(look.content["live"], look.content["hold"])

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether its controller knows; after undoing, whether it has rolled out."""
        former = self._turn.former if self._turn is not None else None
        live = self._find(former)
        if live is None or former is None:
            return REACHED
        if live["spec"]["updateStrategy"] != _ON_DELETE:
            return rollout_of(self._writer, former, detailed=detailed)
        if (live.get("status") or {}).get("observedGeneration", 0) >= live["metadata"]["generation"]:
            return REACHED
        return Progress(False, (f"{former}: its controller has not seen the latest change",))

    def remains(self) -> bool:
        """Return whether the DaemonSet exists."""
        return self._turn is not None and self._find(self._turn.former) is not None

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look whether the DaemonSet has what it had."""
        if not saved:
            return Look(True)
        self._turn = turn_from(saved[-1]["turn"])
        live = self._find(self._turn.former)
        if live is None:
            return Look(True)
        before, after, own = _hold(live), saved[-1]["hold"], _held(self._turn)
        made = {name: before[name] if before[name] in (own[name], after[name]) else own[name] for name in after}
        if made != before:
            since = _changes(self._turn.former, made, before)
            return Look(False, (f"{self._turn.former} was changed since",), changes=since)
        changes, managers = _changes(self._turn.former, before, after), _former(saved)
        is_done = not changes and not _given_back(live, managers)
        return Look(is_done, changes=changes, content={"live": live, "hold": after, "managers": managers})

    def undo(self, look: Look) -> None:
        """Write what was there, and give the fields back to their managers."""
        live, hold = look.content["live"], look.content["hold"]
        if _hold(live) != hold:
            live = self._write(live, hold)
        if operations := _given_back(live, look.content["managers"]):
            assert self._turn is not None
            assert self._turn.former is not None
            self._writer.patch(self._turn.former, live, operations)

    def _write(self, live: Json, hold: Mapping[str, Any]) -> Json:
        assert self._turn is not None
        assert self._turn.former is not None
        operations: list[Json] = [{"op": "replace", "path": _STRATEGY, "value": hold["updateStrategy"]}]
        if hold["affinity"] is not None:
            operations.append({"op": "add", "path": _AFFINITY, "value": hold["affinity"]})
        elif "affinity" in live["spec"]["template"]["spec"]:
            operations.append({"op": "remove", "path": _AFFINITY})
        return self._writer.patch(self._turn.former, live, operations)


class PauseControllers(SmallStep):
    """Scale the former controllers to none, so that the new ones lead."""

    def __init__(self, writer: Writer, place: Place | None = None) -> None:
        super().__init__(writer, PAUSE)
        self._place = place

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look at the number of replicas."""
        live = self._find(self._place)
        number = 0 if live is None else live["spec"].get("replicas", 1)
        changes = ((f"{self._place}: spec.replicas", number, 0),) if number else ()
        return Look(not number, changes=changes, before=digest({"n": number}), after=digest({"n": 0}), content={"live": live})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the number, unless it is saved."""
        if look.is_done or self._place is None:
            return None
        live = look.content["live"]
        number = live["spec"].get("replicas", 1)
        is_known = bool(saved) and saved[-1]["replicas"] == number
        managers = managers_at(live, _REPLICAS)
        return None if is_known else {"place": place_to(self._place), "replicas": number, "managers": managers}

    def act(self, look: Look) -> None:
        """Write it."""
        self._scale(look.content["live"], 0)

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether the pods are gone; after undoing, whether they are there."""
        live = self._find(self._place)
        if live is None or self._place is None:
            return REACHED
        if live["spec"].get("replicas", 1):
            return rollout_of(self._writer, self._place, detailed=detailed)
        left = (live.get("status") or {}).get("replicas", 0)
        return Progress(not left, (f"{self._place}: {left} pods have not ended",) if left else ())

    def remains(self) -> bool:
        """Return whether the Deployment exists."""
        return self._find(self._place) is not None

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look whether it is scaled as before."""
        if not saved:
            return Look(True)
        self._place, number = Place(*saved[-1]["place"]), saved[-1]["replicas"]
        live = self._find(self._place)
        present = number if live is None else live["spec"].get("replicas", 1)
        field = f"{self._place}: spec.replicas"
        if present not in (0, number):
            return Look(False, (f"{self._place} was changed since",), changes=((field, 0, present),))
        managers = saved[-1].get("managers") or []  # former builds have not saved them
        is_done = live is None or (present == number and not giving_back_at(live, managers, _REPLICAS))
        changes = ((field, present, number),) if present != number else ()
        return Look(is_done, changes=changes, content={"live": live, "number": number, "managers": managers})

    def undo(self, look: Look) -> None:
        """Scale it again, and give the field back to its manager."""
        live, number = look.content["live"], look.content["number"]
        if live["spec"].get("replicas", 1) != number:
            live = self._scale(live, number)
        if operations := giving_back_at(live, look.content["managers"], _REPLICAS):
            assert self._place is not None
            self._writer.patch(self._place, live, operations)

    def _scale(self, live: Json, number: int) -> Json:
        assert self._place is not None
        return self._writer.patch(self._place, live, [{"op": "replace", "path": "/spec/replicas", "value": number}])


class RemoveFormer(SmallStep):
    """Delete objects. Undoing creates them as they were last."""

    destroys = "the objects of the former deployment; the run keeps copies"

    def __init__(self, writer: Writer, name: str, places: Sequence[Place] = ()) -> None:
        super().__init__(writer, name)
        self._places = places

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for them."""
        found = [live for place in self._places if (live := self._find(place)) and "deletionTimestamp" not in live["metadata"]]
        names = [str(_place(live)) for live in found]
        changes = tuple((name, "present", None) for name in names)
        return Look(not found, changes=changes, before=PARTS, content={"found": found})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the objects that are not saved as they are."""
        known, names = _documents(saved), self._writer.names
        new = [each for each in look.content["found"] if essence(known.get(str(_place(each))), names) != essence(each, names)]
        return {"documents": new} if new else None

    def act(self, look: Look) -> None:
        """Delete them."""
        for live in look.content["found"]:
            self._writer.delete(_place(live), live)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for deleted objects, and for those whose fields have not gone back to their managers."""
        found = [(each, self._find(_place(each))) for each in _documents(saved).values()]
        left = [(each, live) for each, live in found if live is None or giving_back(live, each)]
        changes = tuple((str(_place(each)), None, "present") for each, live in left if live is None)
        return Look(not left, changes=changes, content={"left": left})

    def undo(self, look: Look) -> None:
        """Create them again, the last one first: the DaemonSet, from which a move is planned, after what belongs to it."""
        for each, present in reversed(look.content["left"]):
            live = present or self._writer.create(created_again(each))
            if operations := giving_back(live, each):
                self._writer.patch(_place(each), live, operations)


class RemoveWorkloads(RemoveFormer):
    """Delete the former workloads, when no node waits for its turn. One may have joined before all were marked."""

    def __init__(self, writer: Writer, places: Sequence[Place], turn: Turn) -> None:
        super().__init__(writer, WORKLOADS, places)
        self._turn = turn

    def act(self, look: Look) -> None:
        """Delete them. Raise Blocked if the agent of a node would go."""
        if waiting := waiting_nodes(self._writer, self._turn):
            reasons = [f"node {name} has joined during the move, and has the agent of before" for name in waiting]
            raise Blocked(reasons, details="run the command again: then it has its turn")
        super().act(look)


def _changes(place: Place | None, before: Json, after: Json) -> tuple[Difference, ...]:
    return tuple((f"{place}: spec.{name}", before[name], after[name]) for name in after if before[name] != after[name])


def _hold(live: Json) -> Json:
    return {"updateStrategy": live["spec"]["updateStrategy"], "affinity": live["spec"]["template"]["spec"].get("affinity")}


def _managers(live: Json, name: str) -> list[Json]:
    return managers_at(live, [_FIELDS[name]])


def _former(saved: Sequence[Json]) -> Json:
    """Return the managers of before by field; nothing of a run of a former build, which has not saved them."""
    return dict(saved[-1].get("managers") or {}) if saved else {}


def _given_back(live: Json, managers: Json) -> list[Json]:
    """Return the JSON patch for the managers of the first field that has not gone back, with those of the others."""
    former = [each for found in managers.values() for each in found]
    return giving_back_at(live, joined(former), [*_FIELDS.values()])


def _held(turn: Turn) -> Json:
    """Return what binds a former DaemonSet to the nodes that wait."""
    return {"updateStrategy": _ON_DELETE, "affinity": affinity(turn, is_former=True)}


def _documents(saved: Sequence[Json]) -> dict[str, Json]:
    """Return what is saved last of each object."""
    return {str(_place(document)): document for each in saved for document in each["documents"]}


def _place(document: Json) -> Place:
    metadata = document["metadata"]
    return Place(document["apiVersion"], document["kind"], metadata.get("namespace", ""), metadata["name"])
