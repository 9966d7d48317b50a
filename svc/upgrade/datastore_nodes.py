"""The last step of a move of the datastore: all nodes use the new one, each of them with a claim on its name there."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from svc.admin.ipam_check.observation import Place
from svc.datastore.api import MAX_WRITES, Entry
from svc.model.keys import AffinityQuery, NodeClaimKey, ResourceQuery
from svc.move import steps
from svc.move.nodes import hosts_of, kubernetes_name
from svc.upgrade.datastore_sites import Sites
from svc.upgrade.datastore_steps import MoveStep, back_over_switch
from svc.upgrade.stalled_nodes import GONE, StalledNodes
from svc.upgrade.step import Look, Progress

Json = dict[str, Any]

MAX_NAMES: Final = 10
_NODE: Final = "Node"
_COST: Final = "its CNI calls are refused until it has its new network configuration"


class Nodes(MoveStep):
    """Wait until each node that had the former datastore has claimed its name in the new one.

    Claims that were there before the run, in a predecessor, do not count. A node that is gone is not waited for. If no others
    are left than nodes that cannot move as they are, the user decides whether the move ends without them."""

    name = "moved-nodes"
    can_undo = False

    def __init__(self, sites: Sites) -> None:
        super().__init__(sites)
        self._entry: Json = {}
        self._before: Json = {}
        self._missing: dict[str, str] | None = None
        self._gone: set[str] = set()
        self._stalled = StalledNodes(sites.writer)

    def look(self, saved: Sequence[Json]) -> Look:
        """Return done when the target is in use. The progress says which nodes are missing."""
        self._sites.use(saved)
        self._before = saved[0].get("claims") or {} if saved else {}
        self._entry = saved[-1] if saved else {}
        has_arrived = self._sites.has_arrived
        return Look(has_arrived, unverified=not has_arrived, notes=tuple(map(_left_out, self._left.items())))

    @property
    def _left(self) -> dict[str, str]:
        """The nodes that the user has left out, each with the reason why it did not move."""
        return dict(self._entry.get("left") or {})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return where the datastores are, and the claims that the target has before the run."""
        entry = super().unsaved(look, saved)
        if entry is None:
            return None
        names = {item.value.name for item in self._sites.target.backend.list(ResourceQuery(_NODE))}
        return entry | {"claims": claims_of(self._sites.target, names | self._in_kubernetes())}

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return which nodes have not moved, and what to do there."""
        missing = self._unmoved()
        reasons = self._stalled.reasons(missing.values(), again=detailed) if missing else {}
        self._gone |= {name for name, node in missing.items() if reasons.get(node) == GONE}
        missing = {name: node for name, node in missing.items() if name not in self._gone}
        notes = (f"{_listed(self._gone)} gone, and not waited for",) if self._gone else ()
        if not missing:
            return Progress(True, notes=notes)
        why = {name: reasons[node] for name, node in sorted(missing.items()) if node in reasons}
        is_over = len(why) == len(missing) and self._stalled.has_lasted(missing.values())
        return Progress(
            False,
            (_sentence(sorted(missing)), *(f"node {name}: {text}" for name, text in why.items())),
            asks=tuple(f"node {name} has not moved: {text}; {_COST}" for name, text in why.items()) if is_over else (),
            saves={"ends": self._sites.known.to_json()} | self._entry | {"left": self._left | why},
            notes=notes,
        )

    @property
    def unmoved(self) -> frozenset[str]:
        """The nodes of Kubernetes that have not moved: those which the user has left out, when the step has ended."""
        return frozenset((self._missing or {}).values())

    def _unmoved(self) -> dict[str, str]:
        """Return the nodes that use the former datastore, or have no agent now, with their names in Kubernetes."""
        if self._missing is None:
            self._missing = self._expected()
        claims = claims_of(self._sites.target, self._missing)
        moved = {name for name, claim in claims.items() if claim != self._before.get(name)}
        self._missing = {name: node for name, node in self._missing.items() if name not in moved}
        return {name: node for name, node in self._missing.items() if name not in self._left and name not in self._gone}

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Return that the move cannot be undone, if the datastores have changed places."""
        return back_over_switch(self, saved, self._sites)

    def _expected(self) -> dict[str, str]:
        """Return the nodes of Kubernetes that have a claim or blocks in the former datastore, by their names in the new one."""
        source, target = self._sites.source, self._sites.target
        nodes = {entry.key: entry.value for entry in source.backend.list(ResourceQuery(_NODE))}
        renamed = steps.form_of(nodes, target).nodes
        kubernetes = {each.name: kubernetes_name(target.names, each) or each.name for each in nodes.values()}
        hosts = hosts_of(entry.key for entry in source.backend.list(AffinityQuery()))
        present = self._in_kubernetes()
        hosts |= claims_of(source, {*kubernetes, *present}).keys()
        self._gone = {renamed.of(host) for host in hosts if kubernetes.get(host, host) not in present}
        return {renamed.of(host): kubernetes.get(host, host) for host in hosts if kubernetes.get(host, host) in present}

    def _in_kubernetes(self) -> set[str]:
        return {each["metadata"]["name"] for each in self._sites.writer.items("/api/v1/nodes", metadata_only=True)}


def _sentence(missing: Sequence[str]) -> str:
    head = f"{len(missing)} node{'s have' if len(missing) > 1 else ' has'} not moved: {_names(missing)}"
    return f"{head}: give each its network configuration of the new datastore by `svcctl install` there"


def _listed(nodes: Collection[str]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {_names(sorted(nodes))} {'are' if len(nodes) > 1 else 'is'}"


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:MAX_NAMES]) + (f" and {len(nodes) - MAX_NAMES} more" if len(nodes) > MAX_NAMES else "")


def _left_out(node: tuple[str, str]) -> str:
    return f"node {node[0]} was left out, because {node[1]}; {_COST}"


def claims_of(place: Place, nodes: Iterable[str]) -> Json:
    """Return the claims on the names of nodes that have one."""
    found: Json = {}
    names = sorted(nodes)
    for start in range(0, len(names), MAX_WRITES):
        keys = [NodeClaimKey(name) for name in names[start : start + MAX_WRITES]]
        entries = zip(keys, place.backend.get_all(keys), strict=True)
        found |= {key.node: entry.value.to_json() for key, entry in entries if isinstance(entry, Entry)}
    return found
