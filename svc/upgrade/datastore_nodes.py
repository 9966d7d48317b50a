"""The last step of a move of the datastore: all nodes use the new one, each of them with a claim on its name there."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from svc.admin.ipam_check.observation import Place
from svc.datastore.api import MAX_WRITES, Entry
from svc.model.keys import AffinityQuery, NodeClaimKey, ResourceQuery
from svc.move import steps
from svc.move.nodes import hosts_of, kubernetes_name
from svc.upgrade.datastore_sites import Sites
from svc.upgrade.datastore_steps import MoveStep, back_over_switch
from svc.upgrade.step import REACHED, Look, Progress

Json = dict[str, Any]

MAX_NAMES: Final = 10
_NODE: Final = "Node"


class Nodes(MoveStep):
    """Wait until each node that had the former datastore has claimed its name in the new one.

    Claims that were there before the run, in a predecessor, do not count."""

    name = "moved-nodes"
    can_undo = False

    def __init__(self, sites: Sites) -> None:
        super().__init__(sites)
        self._before: Json = {}
        self._missing: set[str] | None = None

    def look(self, saved: Sequence[Json]) -> Look:
        """Return done when the target is in use. The progress says which nodes are missing."""
        self._sites.use(saved)
        self._before = saved[0]["claims"] if saved else {}
        return Look(self._sites.has_arrived, unverified=not self._sites.has_arrived)

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return where the datastores are, and the claims that the target has before the run."""
        entry = super().unsaved(look, saved)
        if entry is None:
            return None
        names = {item.value.name for item in self._sites.target.backend.list(ResourceQuery(_NODE))}
        return entry | {"claims": claims_of(self._sites.target, names | self._in_kubernetes())}

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return which nodes have not moved, and what to do there."""
        missing = self.missing()
        if not missing:
            return REACHED
        listed = ", ".join(missing[:MAX_NAMES]) + (f" and {len(missing) - MAX_NAMES} more" if len(missing) > MAX_NAMES else "")
        head = f"{len(missing)} node{'s have' if len(missing) > 1 else ' has'} not moved: {listed}"
        return Progress(False, (f"{head}: give each its network configuration of the new datastore by `svcctl install` there",))

    def missing(self) -> list[str]:
        """Return the nodes that use the former datastore, or have no agent now."""
        if self._missing is None:
            self._missing = self._expected()
        claims = claims_of(self._sites.target, self._missing)
        self._missing -= {name for name, claim in claims.items() if claim != self._before.get(name)}
        return sorted(self._missing)

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Return that the move cannot be undone, if the datastores have changed places."""
        return back_over_switch(self, saved, self._sites)

    def _expected(self) -> set[str]:
        """Return the nodes of Kubernetes that have a claim or blocks in the former datastore, by their names in the new one."""
        source, target = self._sites.source, self._sites.target
        nodes = {entry.key: entry.value for entry in source.backend.list(ResourceQuery(_NODE))}
        renamed = steps.form_of(nodes, target).nodes
        kubernetes = {each.name: kubernetes_name(target.names, each) or each.name for each in nodes.values()}
        hosts = hosts_of(entry.key for entry in source.backend.list(AffinityQuery()))
        hosts |= claims_of(source, {*kubernetes, *self._in_kubernetes()}).keys()
        present = self._in_kubernetes()
        return {renamed.of(host) for host in hosts if kubernetes.get(host, host) in present}

    def _in_kubernetes(self) -> set[str]:
        return {each["metadata"]["name"] for each in self._sites.writer.items("/api/v1/nodes", metadata_only=True)}


def claims_of(place: Place, nodes: Iterable[str]) -> Json:
    """Return the claims on the names of nodes that have one."""
    found: Json = {}
    names = sorted(nodes)
    for start in range(0, len(names), MAX_WRITES):
        keys = [NodeClaimKey(name) for name in names[start : start + MAX_WRITES]]
        entries = zip(keys, place.backend.get_all(keys), strict=True)
        found |= {key.node: entry.value.to_json() for key, entry in entries if isinstance(entry, Entry)}
    return found
