"""The first steps of the move to automatic host endpoints (specification, 9.7): labels, and the switch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from svc.model.controllers_configuration import DISABLED, ENABLED, defaults
from svc.model.controllers_configuration import KIND as CONFIGURATION
from svc.upgrade.field_sets import Path
from svc.upgrade.former_managers import giving_back_at, managers_at
from svc.upgrade.host_endpoint_view import DEFAULT_ENDPOINT, HostEndpointView, setting_at
from svc.upgrade.host_endpoint_view import SWITCH as SWITCHED
from svc.upgrade.object_states import digest
from svc.upgrade.places import Place
from svc.upgrade.step import PARTS, REACHED, Look, Progress
from svc.upgrade.writer import Changed, Writer

Json = dict[str, Any]

LABELS, SWITCH = "node-labels", "automatic-host-endpoints"
_FIELD: Final[Path] = ("f:spec", *(f"f:{name}" for name in SWITCHED))


class HostEndpointStep:
    """What the steps have in common."""

    name = ""
    destroys = ""
    can_undo = True

    def __init__(self, writer: Writer, view: HostEndpointView) -> None:
        self._writer = writer
        self._view = view
        self.saves_as = self.name

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: undoing only brings back what is saved."""
        return None

    def remains(self) -> bool:
        """Return False: nothing follows the undoing that the cluster would have to do first."""
        return False

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return that the cluster follows at once."""
        return REACHED


class NodeLabels(HostEndpointStep):
    """Copy the labels of former host endpoints to their nodes. Labels that a node has stay."""

    name = LABELS

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for labels that nodes lack."""
        found = self._view.findings()
        labels = [(node, each) for node, own in sorted(found.labels.items()) for each in own.items()]
        changes = tuple((f"Node/{node}: {key}", None, value) for node, (key, value) in labels)
        return Look(
            not found.labels,
            blockers=found.blockers,
            notes=found.warnings,
            changes=changes,
            before=PARTS,
            content={"labels": found.labels},
        )

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the labels that the step will add."""
        labels = {node: dict(found) for node, found in look.content["labels"].items()}
        return None if not labels or {"labels": labels} in saved else {"labels": labels}

    def act(self, look: Look) -> None:
        """Add the labels."""
        for node, labels in look.content["labels"].items():
            self._change(node, lambda present, labels=labels: {**labels, **present})  # type: ignore[misc]

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for labels that still have the value which the run has given them."""
        added = _added(saved)
        left: dict[str, dict[str, str]] = {}
        for node, labels in added.items():
            live = self._writer.find(_node(node))
            present = ((live or {}).get("metadata") or {}).get("labels") or {}
            if kept := {key: value for key, value in labels.items() if present.get(key) == value}:
                left[node] = kept
        changes = tuple((f"Node/{node}: {key}", value, None) for node, kept in left.items() for key, value in kept.items())
        return Look(not left, changes=changes, content={"labels": left})

    def undo(self, look: Look) -> None:
        """Remove the labels."""
        for node, labels in look.content["labels"].items():
            self._change(node, lambda present, labels=labels: {k: v for k, v in present.items() if k not in labels})  # type: ignore[misc]

    def _change(self, node: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        live = self._writer.find(_node(node))
        if live is None:
            raise Changed(f"node {node} is gone")
        labels = dict(change(live["metadata"].get("labels") or {}))
        self._writer.patch(_node(node), live, [{"op": "add", "path": "/metadata/labels", "value": labels}])


class Switch(HostEndpointStep):
    """Switch automatic host endpoints on, and wait until each former one has its successor."""

    name = SWITCH

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look at the configuration of the controllers."""
        live = self._live()
        value = _at(live)
        changes = () if value == ENABLED else ((f"{CONFIGURATION}/default: spec.{'.'.join(SWITCHED)}", value, ENABLED),)
        blockers = (not_served(self._view),) if not self._view.is_configurable else _template_blockers(live)
        return Look(
            value == ENABLED, blockers, changes=changes, before=digest({"value": value}), after=digest({"value": ENABLED}),
            content={"live": live},
        )  # fmt: skip

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the value of before, and its managers."""
        live = look.content["live"]
        managers = managers_at(live, [_FIELD]) if live is not None else []
        return None if look.is_done or saved else {"value": _at(live), "managers": managers}

    def act(self, look: Look) -> None:
        """Write the value; create a missing configuration with its defaults."""
        self._write(look.content["live"], ENABLED)

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return whether the controllers follow the switch, and which nodes have no automatic host endpoint yet."""
        reasons = [each.reason for each in self._view.successors().values() if each.reason]
        reasons += self._view.uncovered().values()
        if reason := self._view.why_not_followed():
            reasons.insert(0, f"svc-controllers do not follow the switch: {reason}")
        return Progress(not reasons, tuple(reasons))

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look whether the value is that of before."""
        live = self._live()
        if not saved or live is None:
            return Look(True)
        value, managers = saved[0]["value"] or DISABLED, saved[0].get("managers") or []  # former builds have not saved them
        content = {"live": live, "value": value, "managers": managers}
        if _at(live) != ENABLED:
            return Look(_at(live) != value or not giving_back_at(live, managers, [_FIELD]), content=content)
        return Look(False, changes=((".".join(SWITCHED), ENABLED, value),), content=content)

    def undo(self, look: Look) -> None:
        """Write the value of before, else switch automatic host endpoints off. Give the field back to its managers."""
        live, value = look.content["live"], look.content["value"]
        if _at(live) != value:
            live = self._write(live, value)
        place = self._view.configuration
        if operations := giving_back_at(live, look.content["managers"], [_FIELD]):
            assert place is not None  # it has been read
            self._writer.patch(place, live, operations)

    def _live(self) -> Json | None:
        place = self._view.configuration
        return self._writer.find(place) if place is not None else None

    def _write(self, live: Json | None, value: str) -> Json:
        place = self._view.configuration
        assert place is not None  # see `look`
        if live is None:
            spec = defaults()
            spec["controllers"]["node"]["hostEndpoint"]["autoCreate"] = value
            head = {"apiVersion": place.api_version, "kind": place.kind, "metadata": {"name": place.name}}
            return self._writer.create(head | {"spec": spec})
        spec = _with(live.get("spec") or {}, value)
        return self._writer.patch(place, live, [{"op": "add", "path": "/spec", "value": spec}])


def not_served(view: HostEndpointView) -> str:
    """Return the sentence about a cluster without the configuration of the controllers."""
    return f"the API server does not serve {CONFIGURATION} of {' or '.join(view.versions)}: apply the definitions of svc"


def _template_blockers(live: Json | None) -> tuple[str, ...]:
    """Return the sentence about a configuration whose automatic host endpoints are not for all interfaces."""
    value = setting_at((live or {}).get("spec"), DEFAULT_ENDPOINT)
    if value in (None, ENABLED):
        return ()
    field = f"{CONFIGURATION}/default: spec.{'.'.join(DEFAULT_ENDPOINT)}"
    return (f"{field} is {value}, so nodes get no automatic host endpoint for all interfaces: set it to {ENABLED}",)


def _added(saved: Sequence[Json]) -> dict[str, dict[str, str]]:
    """Return the labels that the run has added, by node."""
    found: dict[str, dict[str, str]] = {}
    for each in saved:
        for node, labels in each["labels"].items():
            found.setdefault(node, {}).update(labels)
    return found


def _node(name: str) -> Place:
    return Place("v1", "Node", "", name)


def _at(live: Json | None) -> str | None:
    """Return the value of the switch; None without one."""
    return setting_at((live or {}).get("spec"), SWITCHED)


def _with(spec: Json, value: str) -> Json:
    """Return a spec with the value of the switch. Everything else stays."""
    head, *rest = SWITCHED
    result = dict(spec)
    place = result
    for name in (head, *rest[:-1]):
        place[name] = dict(place.get(name) or {})
        place = place[name]
    place[SWITCHED[-1]] = value
    return result
