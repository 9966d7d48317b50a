"""Steps of a move of the datastore that let agents in pods take another network list.

The installer reads the list from a ConfigMap when its pod starts: a change of the ConfigMap alone does not start the pod again.
A digest of the list in the template of the pods does, and the DaemonSet rolls from node to node. The annotation is that of the
operator. It has a manager of its own, so that later manifests, which lack it, leave it alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from svc.admin.installation_resource.wanted import CONFIG_KEY, CONFIG_MAP, mark_of
from svc.upgrade.agent_pods import agent_daemon_sets
from svc.upgrade.bundle import Bundle
from svc.upgrade.datastore_sites import Sites
from svc.upgrade.datastore_steps import MoveStep
from svc.upgrade.object_step import ObjectStep
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place, place_of
from svc.upgrade.rollouts import rollout_of
from svc.upgrade.small_step import place_to
from svc.upgrade.step import REACHED, Look, Progress

Json = dict[str, Any]
Row = tuple[Json, str | None]
"""A DaemonSet, and the mark that it is to have; None for no mark."""

MARK: Final = "network-mark"
FORMER: Final = "former-network"
MANAGER: Final = "svc-network-mark"
_NOTES: Final = "/spec/template/metadata/annotations"
_NEW: Final = "the digest of the new list"


class _OfMarks(MoveStep):
    """What the steps share: reads and writes of the marks."""

    @property
    def _key(self) -> str:
        return mark_of("", self._sites.writer.names)[0]

    def _mark(self, live: Json) -> str | None:
        """Return the mark of a DaemonSet."""
        notes: dict[str, str] = live["spec"]["template"].get("metadata", {}).get("annotations") or {}
        return notes.get(self._key)

    def _list_mark(self, namespace: str) -> str | None:
        """Return the mark of the list that a namespace has; None without one."""
        config = self._sites.writer.find(Place("v1", "ConfigMap", namespace, CONFIG_MAP))
        text = ((config or {}).get("data") or {}).get(CONFIG_KEY)
        return None if text is None else mark_of(str(text), self._sites.writer.names)[1]

    def _changes(self, rows: Sequence[Row]) -> tuple[tuple[str, Any, Any], ...]:
        field = f"spec.template.metadata.annotations[{self._key}]"
        return tuple((f"{place_of(live)}: {field}", self._mark(live), wanted) for live, wanted in rows)

    def _write(self, rows: Sequence[Row]) -> None:
        path = f"{_NOTES}/{self._key.replace('/', '~1')}"
        for live, wanted in rows:
            notes = live["spec"]["template"].get("metadata", {}).get("annotations")
            whole: list[Json] = [] if notes else [{"op": "add", "path": _NOTES, "value": {}}]
            change: Json = {"op": "remove", "path": path} if wanted is None else {"op": "add", "path": path, "value": wanted}
            self._sites.writer.patch(place_of(live), live, [*whole, change], MANAGER)

    def undo(self, look: Look) -> None:
        """Write the marks."""
        self._write(look.content["rows"])


class NetworkMark(_OfMarks):
    """Write the digest of the network list into the DaemonSets beside it, if the manifest has the list.

    `moved-nodes` waits until the pods have followed."""

    name = MARK

    def __init__(self, sites: Sites, bundle: Bundle | None = None) -> None:
        super().__init__(sites)
        self._namespaces = frozenset(namespaces_of_lists(bundle) if bundle is not None else ())

    def look(self, saved: Sequence[Json]) -> Look:
        """Compare the marks with the lists. Before the target is in use, the lists are those of before."""
        self._sites.use(saved)
        found = [each for each in agent_daemon_sets(self._sites.writer) if each["metadata"]["namespace"] in self._namespaces]
        if not self._sites.has_arrived:
            return Look(False, unverified=True, changes=self._changes([(each, _NEW) for each in found]))
        wanted = [(each, self._list_mark(each["metadata"]["namespace"])) for each in found]
        rows = [(each, mark) for each, mark in wanted if mark is not None and mark != self._mark(each)]
        return Look(not rows, changes=self._changes(rows), content={"rows": rows})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return where the datastores are, and the marks of before and after."""
        known = _marks(saved)
        new = [(place_of(live), self._mark(live), wanted) for live, wanted in look.content.get("rows") or ()]
        if saved and all(known.get(place, ("", ""))[1] == wanted for place, _, wanted in new):
            return None
        found = known | {place: (known[place][0] if place in known else before, after) for place, before, after in new}
        return {
            "ends": self._sites.known.to_json(),
            "marks": [[place_to(place), before, after] for place, (before, after) in found.items()],
        }

    def _act(self, look: Look) -> None:
        if not self._sites.has_arrived:
            raise Blocked(["the target is not in use yet"], details="run the command again")
        self._write(look.content["rows"])

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Compare the marks with those of before. The step of the DaemonSet, which follows, compares all else."""
        if not self._sites.use(saved):
            return Look(True)
        rows: list[Row] = []
        for place, (before, after) in _marks(saved).items():
            live = self._sites.writer.find(place)
            present = None if live is None else self._mark(live)
            if live is None or present == before:
                continue
            if present == after:
                rows.append((live, before))
            elif present != self._list_mark(place.namespace):  # which an interrupted undoing has written
                return Look(False, (f"{place} was changed since",), changes=self._changes([(live, after)]))
        return Look(not rows, changes=self._changes(rows), content={"rows": rows})


class FormerNetwork(_OfMarks):
    """Nothing. Undone after the ConfigMap is back, it starts the pods again with the list of before, by the digest of that."""

    name = FORMER

    def __init__(self, sites: Sites) -> None:
        super().__init__(sites)
        self.saves_as = MARK
        self._places: list[Place] = []

    def look(self, saved: Sequence[Json]) -> Look:
        """Return that nothing is to be done."""
        self._sites.use(saved)
        return Look(True)

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: the step saves nothing of its own."""
        return None

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Compare the marks with the lists that are there again."""
        self._places = [*_marks(saved)] if self._sites.use(saved) else []
        rows = [(live, wanted) for live, wanted in self._lists() if wanted is not None and wanted != self._mark(live)]
        return Look(not rows, changes=self._changes(rows), content={"rows": rows})

    def _lists(self) -> Iterator[Row]:
        for place in self._places:
            if live := self._sites.writer.find(place):
                yield live, self._list_mark(place.namespace)

    def remains(self) -> bool:
        """Return whether pods have to follow."""
        return bool(self._places)

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether the pods have followed an undoing."""
        found = [rollout_of(self._sites.writer, place, detailed=detailed) for place in self._places]
        return next((each for each in found if not each.is_reached), REACHED)


class UnawaitedAgent(ObjectStep):
    """The DaemonSet of agents. Its mark, which is written next, starts the pods again: only then the nodes are waited for."""

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return at once."""
        return REACHED


def namespaces_of_lists(bundle: Bundle) -> list[str]:
    """Return the namespaces for which a manifest has the network list of agents in pods."""
    found = (place_of(each) for each in bundle.of_kind("ConfigMap"))
    return [place.namespace for place in found if place.name == CONFIG_MAP]


def _marks(saved: Sequence[Json]) -> dict[Place, tuple[str | None, str]]:
    """Return the marks of before and after as they are saved last."""
    rows = saved[-1].get("marks") or () if saved else ()
    return {Place(*at): (before, after) for at, before, after in rows}
