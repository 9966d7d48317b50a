"""Steps of `sidecars`: the template of the mesh is changed, and each workload whose pods have an old sidecar is restarted."""

from collections.abc import Sequence
from typing import Any, Final

from svc.names import Names
from svc.upgrade.field_sets import Path
from svc.upgrade.former_managers import giving_back_at, managers_at
from svc.upgrade.object_states import digest
from svc.upgrade.places import Place
from svc.upgrade.rollouts import rollout_of
from svc.upgrade.sidecar_pods import outdated_pods
from svc.upgrade.sidecar_template import CONFIG
from svc.upgrade.step import REACHED, Look, Progress
from svc.upgrade.writer import Changed, Writer

Json = dict[str, Any]

TEMPLATE, FORMER_TEMPLATE, RESTART = "sidecar-template", "former-sidecar-template", "restart"
_POINTER: Final = f"/data/{CONFIG}"
_FIELD: Final[Path] = ("f:data", f"f:{CONFIG}")
_APPS: Final = "apps/v1"
_ON_DELETE: Final = "OnDelete"


class Template:
    """Write the new template. `FormerTemplate` undoes it, before the workloads are started again."""

    name = saves_as = TEMPLATE
    destroys = ""
    can_undo = True

    def __init__(self, writer: Writer, template: str, notes: Sequence[str] = ()) -> None:
        self._writer = writer
        self._template = template
        self._notes = tuple(notes)
        self.place = injector_place(writer.names)

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Compare the template with the one of the mesh."""
        live = self._writer.find(self.place)
        if live is None:
            return Look(False, (f"{self.place} does not exist any more",))
        before = template_in(live)
        changes = () if before == self._template else ((f"{self.place}: data.{CONFIG}", before, self._template),)
        return Look(
            before == self._template, notes=self._notes, changes=changes, before=digest({CONFIG: before}),
            after=digest({CONFIG: self._template}), content={"live": live},
        )  # fmt: skip

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the template of the mesh with its managers, and the new one, unless that is what was saved last."""
        if look.is_done:
            return None
        live = look.content["live"]
        entry = {"before": template_in(live), "after": self._template}
        is_known = bool(saved) and entry.items() <= saved[-1].items()
        return None if is_known else entry | {"managers": managers_at(live, [_FIELD])}

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: the template is saved."""
        return None

    def act(self, look: Look) -> None:
        """Write the template."""
        write_template(self._writer, self.place, look.content["live"], self._template)

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return that nothing follows: new pods get the new sidecar."""
        return REACHED

    def remains(self) -> bool:
        """Return False: nothing follows."""
        return False

    def look_back(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Return that the step of the former template undoes it."""
        return Look(True)

    def undo(self, look: Look) -> None:
        """Do nothing: see `look_back`."""


class FormerTemplate(Template):
    """Bring the former template back when the run is undone. The last step is undone first, so new pods get the old sidecar."""

    name = FORMER_TEMPLATE

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer, "")

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Return that the step is done: it only acts when the run is undone."""
        return Look(True)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Compare the template of the mesh with the one before the last write of the run."""
        live = self._writer.find(self.place)
        if not saved or live is None:
            return Look(True)
        now, former = template_in(live), saved[-1]["before"]
        managers = saved[-1].get("managers") or []  # former builds have not saved them
        content = {"live": live, "former": former, "managers": managers}
        if now == former:
            return Look(not giving_back_at(live, managers, [_FIELD]), content=content)
        if now not in {each["after"] for each in saved}:
            since = ((f"data.{CONFIG}", saved[-1]["after"], now),)
            return Look(False, (f"{self.place} was changed since",), changes=since)
        return Look(False, changes=((f"data.{CONFIG}", now, former),), content=content)

    def undo(self, look: Look) -> None:
        """Write the former template, and give it back to its managers."""
        live, former = look.content["live"], look.content["former"]
        if template_in(live) != former:
            live = write_template(self._writer, self.place, live, former)
        if operations := giving_back_at(live, look.content["managers"], [_FIELD]):
            self._writer.patch(self.place, live, operations)


class Restart:
    """Start the pods of a workload again, so that the mesh gives them the new sidecar.

    The time of the restart is saved before the write, so a repeated step does not restart twice. If all pods have followed, and
    one has an old sidecar, the mesh has not read the new template in time: the next run restarts again, at a new time."""

    destroys = ""
    can_undo = True

    def __init__(self, writer: Writer, place: Place, image: str, now: str) -> None:
        self._writer = writer
        self._image = image
        self._now = now
        self._is_undone = False
        self._is_told = False  # whether the run has told the workload to replace its pods
        self.place = place
        self.name = self.saves_as = f"{RESTART}/{place}"

    def look(self, saved: Sequence[Json]) -> Look:
        """Look for pods with an old sidecar, and whether the run has already asked the workload to replace them."""
        live = self._writer.find(self.place)
        if live is None:
            return Look(True)
        now, at = _restarted(live, self._writer.names), saved[-1]["at"] if saved else self._now
        self._is_told = bool(saved) and now == at
        has_followed = self._is_told and at != self._now and rollout_of(self._writer, self.place).is_reached
        if not outdated_pods(self._writer, self.place, self._image):  # read after the rollout: its end removes the old ones
            return Look(True)
        if has_followed:
            self._is_told, at = False, self._now
        changes = ((_annotation(self._writer.names), now or None, at),)
        notes = (f"{self.place} has {_ON_DELETE}: delete its pods yourself",) if _is_manual(live) else ()
        return Look(
            now == at, notes=notes, changes=() if now == at else changes, before=digest({"restarted": now == at}),
            after=digest({"restarted": True}), content={"live": live, "at": at},
        )  # fmt: skip

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the annotation of before with its managers, and the time of the restart."""
        if look.is_done or (saved and saved[-1]["at"] == look.content["at"]):
            return None
        live, names = look.content["live"], self._writer.names
        before = {"before": _restarted(live, names), "managers": managers_at(live, [_field(names)])}
        known = {name: saved[0][name] for name in before if name in saved[0]} if saved else before
        return known | {"at": look.content["at"]}

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: what was there is saved."""
        return None

    def act(self, look: Look) -> None:
        """Write the time into the template of the pods."""
        self._annotate(look.content["live"], look.content["at"])

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether the pods were replaced, and none has an old sidecar."""
        if self._writer.find(self.place) is None:
            return REACHED
        old = [] if self._is_undone else outdated_pods(self._writer, self.place, self._image)
        follows = self._is_undone or self._is_told
        rollout = rollout_of(self._writer, self.place, detailed=detailed) if follows else REACHED
        reasons = (*rollout.reasons, *(f"{self.place}: pod {name} has another sidecar than {self._image}" for name in old))
        return Progress(not reasons, reasons)

    def remains(self) -> bool:
        """Return whether the workload exists."""
        return self._writer.find(self.place) is not None

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look whether the workload has the annotation of before. A later one has made pods with the new sidecar, too."""
        self._is_undone = True
        live, names = self._writer.find(self.place), self._writer.names
        if live is None or not saved:
            return Look(True)
        now, before = _restarted(live, names), saved[0]["before"]
        managers = saved[0].get("managers") or []  # former builds have not saved them
        content = {"live": live, "before": before, "managers": managers}
        if now == before:
            return Look(not giving_back_at(live, managers, [_field(names)]), content=content)
        return Look(False, changes=((_annotation(names), now or None, before or None),), content=content)

    def undo(self, look: Look) -> None:
        """Bring the former template of the pods back: this starts them again. Give the field back to its managers."""
        live, before, names = look.content["live"], look.content["before"], self._writer.names
        if _restarted(live, names) != before:
            live = self._annotate(live, before)
        if operations := giving_back_at(live, look.content["managers"], [_field(names)]):
            self._writer.patch(self.place, live, operations)

    def _annotate(self, live: Json, value: str) -> Json:
        """Write the annotation; remove it if the value is empty."""
        metadata = live["spec"]["template"].get("metadata") or {}
        name, present = _annotation(self._writer.names), metadata.get("annotations") or {}
        kept = {key: text for key, text in present.items() if key != name}
        annotations = kept | ({name: value} if value else {})
        pointer = "/spec/template/metadata/annotations"
        operations = [{"op": "add", "path": pointer, "value": annotations}] if annotations else []
        return self._writer.patch(self.place, live, operations or [{"op": "remove", "path": pointer}])


def restart_of(writer: Writer, name: str) -> Restart | None:
    """Return the step of a name, to undo it; None if it is another step."""
    parts = name.split("/")
    if parts[0] != RESTART:
        return None
    return Restart(writer, Place(_APPS, *parts[1:]), "", "")


def injector_place(names: Names) -> Place:
    """Return the place of the ConfigMap with the template."""
    return Place("v1", "ConfigMap", names.mesh_namespace, names.mesh_injector)


def template_in(live: Json) -> str:
    """Return the template of a ConfigMap; empty if it has none."""
    return str((live.get("data") or {}).get(CONFIG) or "")


def write_template(writer: Writer, place: Place, live: Json, template: str) -> Json:
    """Write a template into the ConfigMap as it was read, and return the new one. Its other entries stay."""
    if live.get("data") is None:
        raise Changed(f"{place} has no data")
    operation = {"op": "add", "path": _POINTER, "value": template} if template else {"op": "remove", "path": _POINTER}
    return writer.patch(place, live, [operation])


def _annotation(names: Names) -> str:
    return f"kubectl.{names.orch_domain}/restartedAt"


def _field(names: Names) -> Path:
    return "f:spec", "f:template", "f:metadata", "f:annotations", f"f:{_annotation(names)}"


def _restarted(live: Json, names: Names) -> str:
    annotations = (live["spec"]["template"].get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(_annotation(names)) or "")


def _is_manual(live: Json) -> bool:
    return (live["spec"].get("updateStrategy") or {}).get("type") == _ON_DELETE
