"""Steps that move the agent from one DaemonSet to another, one node after the other, by a label of the nodes.

A node with the value `waiting` has the former agent, every other node the new one: so nodes that join during the move, and all
nodes after it, have the new agent without a label.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from svc.upgrade.object_states import digest
from svc.upgrade.places import Place
from svc.upgrade.rollouts import last_lines, pods_of, why_not_ready
from svc.upgrade.small_step import SmallStep, place_to
from svc.upgrade.step import PARTS, REACHED, Look, Progress
from svc.upgrade.writer import Changed, Writer
from svc.values import dataclass

Json = dict[str, Any]

MARK, UNMARK, TURN = "mark-nodes", "unmark-nodes", "node/"
MIGRATED: Final = "migrated"
_AFFINITY: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Turn:
    """The label with its value before the turn of a node, and the DaemonSets of the new and of the former agent."""

    key: str
    waiting: str
    agent: Place
    former: Place | None

    def to_json(self) -> Json:
        """Return it as a backup has it."""
        return {
            "key": self.key,
            "waiting": self.waiting,
            "agent": place_to(self.agent),
            "former": None if self.former is None else place_to(self.former),
        }


def turn_from(saved: Json) -> Turn:
    """Return what a backup has."""
    former = saved["former"]
    return Turn(saved["key"], saved["waiting"], Place(*saved["agent"]), None if former is None else Place(*former))


def affinity(turn: Turn, *, is_former: bool) -> Json:
    """Return the affinity of the pods of an agent."""
    operator = "In" if is_former else "NotIn"
    terms = [{"matchExpressions": [{"key": turn.key, "operator": operator, "values": [turn.waiting]}]}]
    return {"nodeAffinity": {_AFFINITY: {"nodeSelectorTerms": terms}}}


class _OfNodes(SmallStep):
    def __init__(self, writer: Writer, name: str, turn: Turn | None) -> None:
        super().__init__(writer, name)
        self._turn = turn

    @property
    def turn(self) -> Turn:
        """The move. It is known from the procedure, or from the backup."""
        assert self._turn is not None
        return self._turn

    def _learn(self, saved: Sequence[Json]) -> bool:
        """Take the move from the backup; return whether it has one."""
        if saved:
            self._turn = turn_from(saved[-1]["turn"])
        return bool(saved)

    def _labels(self) -> dict[str, str]:
        """Return the value of the label of each node; empty without it."""
        listed = self._writer.items("/api/v1/nodes", metadata_only=True)
        return {each["metadata"]["name"]: (each["metadata"].get("labels") or {}).get(self.turn.key, "") for each in listed}

    def _set(self, node: str, value: str | None) -> None:
        """Give a node the label, or remove it."""
        place = node_place(node)
        live = self._writer.find(place)
        if live is None:
            raise Changed(f"node {node} is gone")
        before = live["metadata"].get("labels") or {}
        labels = {key: text for key, text in before.items() if key != self.turn.key}
        labels |= {} if value is None else {self.turn.key: value}
        if labels != before:
            self._writer.patch(place, live, [{"op": "add", "path": "/metadata/labels", "value": labels}])

    def _has_agent(self) -> bool:
        return self._find(self.turn.agent) is not None


class MarkNodes(_OfNodes):
    """Label all nodes, before the new agent exists."""

    def __init__(self, writer: Writer, turn: Turn | None = None) -> None:
        super().__init__(writer, MARK, turn)

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for nodes without the label."""
        bare = [] if self._has_agent() else [name for name, value in self._labels().items() if not value]
        changes = tuple((f"Node/{name}: {self.turn.key}", None, self.turn.waiting) for name in bare)
        return Look(not bare, changes=changes, before=PARTS, content={"nodes": bare})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the nodes that the step will label."""
        known = {name for each in saved for name in each["nodes"]}
        new = [name for name in look.content["nodes"] if name not in known]
        return {"turn": self.turn.to_json(), "nodes": new} if new else None

    def act(self, look: Look) -> None:
        """Label them."""
        for name in look.content["nodes"]:
            self._set(name, self.turn.waiting)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for nodes with the label. It goes from all nodes, because nothing depends on it any more."""
        left = [name for name, value in self._labels().items() if value] if self._learn(saved) else []
        return Look(not left, changes=tuple((f"Node/{name}", "labelled", None) for name in left), content={"nodes": left})

    def undo(self, look: Look) -> None:
        """Remove the label."""
        for name in look.content["nodes"]:
            self._set(name, None)


class NodeTurn(_OfNodes):
    """Let the new agent take the place of the former one on a node."""

    def __init__(self, writer: Writer, name: str, turn: Turn | None = None) -> None:
        super().__init__(writer, name, turn)
        self._node = name.removeprefix(TURN)

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look at the label of the node."""
        value = self._value()
        is_done = value is None or value == MIGRATED or (value != self.turn.waiting and self._has_agent())
        changes = () if is_done else ((f"Node/{self._node}: {self.turn.key}", value or None, MIGRATED),)
        # a plan has been made before the nodes were marked
        return Look(
            is_done, changes=changes, before=digest({"turn": False}), after=digest({"turn": True}), content={"value": value}
        )

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return the move."""
        return None if saved else {"turn": self.turn.to_json()}

    def act(self, look: Look) -> None:
        """Change the label."""
        if look.content["value"] != self.turn.waiting:
            raise Changed(f"node {self._node} is not marked")
        self._set(self._node, MIGRATED)

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether the right agent is ready on the node, and the other one is gone.

        Without a label the turn is over, and the rollout of the agent counts."""
        value = self._value()
        if not value or not self._has_agent():
            return REACHED
        right, other = self.turn.agent, self.turn.former
        if value == self.turn.waiting:
            right, other = other or right, right
        reasons = [*self._why_not_ready(right, detailed=detailed), *self._why_not_gone(other)]
        return Progress(not reasons, tuple(reasons))

    def remains(self) -> bool:
        """Return whether the former agent has to come back first."""
        return self._turn is not None and self._value() is not None

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look whether the node has the former agent."""
        if not self._learn(saved):
            return Look(True)
        value = self._value()
        is_done = value is None or value == self.turn.waiting or not self._has_agent()
        return Look(is_done, changes=((f"Node/{self._node}", value, self.turn.waiting),))

    def undo(self, look: Look) -> None:  # noqa: ARG002
        """Give the label of before."""
        self._set(self._node, self.turn.waiting)

    def _value(self) -> str | None:
        live = self._writer.find(node_place(self._node))
        return None if live is None else str((live["metadata"].get("labels") or {}).get(self.turn.key, ""))

    def _pods(self, place: Place | None) -> list[tuple[Json, Json]]:
        """Return the pods of a DaemonSet on the node, with the DaemonSet."""
        live = self._find(place)
        if live is None:
            return []
        uid, field = live["metadata"]["uid"], {"fieldSelector": f"spec.nodeName={self._node}"}
        found = pods_of(self._writer, live, **field)
        return [
            (pod, live) for pod in found if any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences") or ())
        ]

    def _why_not_ready(self, place: Place, *, detailed: bool) -> list[str]:
        pods = [each for each in self._pods(place) if "deletionTimestamp" not in each[0]["metadata"]]
        if not pods:
            return [f"node {self._node}: {place} has no pod there yet"]
        return [
            f"node {self._node}, pod {pod['metadata']['name']}: {why}{last_lines(self._writer, pod, live) if detailed else ''}"
            for pod, live in pods
            if (why := why_not_ready(pod, live))
        ]

    def _why_not_gone(self, place: Place | None) -> list[str]:
        return [f"node {self._node}, pod {pod['metadata']['name']} of {place} has not ended" for pod, _ in self._pods(place)]


class UnmarkNodes(_OfNodes):
    """Remove the label, when the former agent is gone."""

    def __init__(self, writer: Writer, turn: Turn | None = None) -> None:
        super().__init__(writer, UNMARK, turn)

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for nodes with the label."""
        marked = {name: value for name, value in self._labels().items() if value}
        if not marked and not self._has_agent():  # the move has not begun
            return Look(False, unverified=True, content={"nodes": {}})
        changes = tuple((f"Node/{name}: {self.turn.key}", value, None) for name, value in marked.items())
        return Look(not marked, changes=changes, before=digest({"step": UNMARK}), after=digest(None), content={"nodes": marked})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the labels that the step will remove."""
        known: Mapping[str, str] = {name: value for each in saved for name, value in each["nodes"].items()}
        new = {name: value for name, value in look.content["nodes"].items() if known.get(name) != value}
        return {"turn": self.turn.to_json(), "nodes": new} if new else None

    def act(self, look: Look) -> None:
        """Remove it."""
        for name in look.content["nodes"]:
            self._set(name, None)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look for nodes that lack the label again. Without the new agent, the move is undone."""
        if not self._learn(saved) or not self._has_agent():
            return Look(True)
        nodes = {name: value for each in saved for name, value in each["nodes"].items()}
        labels = self._labels()
        bare = {name: value for name, value in nodes.items() if labels.get(name) == ""}
        return Look(
            not bare, changes=tuple((f"Node/{name}", None, value) for name, value in bare.items()), content={"nodes": bare}
        )

    def undo(self, look: Look) -> None:
        """Give the labels of before."""
        for name, value in look.content["nodes"].items():
            self._set(name, value)


def node_place(name: str) -> Place:
    """Return the place of a node."""
    return Place("v1", "Node", "", name)


def turns(writer: Writer, turn: Turn) -> list[NodeTurn]:
    """Return a step for each node that runs Linux."""
    listed = writer.items("/api/v1/nodes", metadata_only=True)
    return [NodeTurn(writer, f"{TURN}{each['metadata']['name']}", turn) for each in listed if _is_linux(writer, each)]


def waiting_nodes(writer: Writer, turn: Turn) -> list[str]:
    """Return the nodes whose turn has not come."""
    listed = [each for each in writer.items("/api/v1/nodes", metadata_only=True) if _is_linux(writer, each)]
    return [each["metadata"]["name"] for each in listed if (each["metadata"].get("labels") or {}).get(turn.key) == turn.waiting]


def _is_linux(writer: Writer, node: Json) -> bool:
    return bool((node["metadata"].get("labels") or {}).get(f"{writer.names.orch_domain}/os", "linux") == "linux")
