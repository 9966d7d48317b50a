"""Nodes that will not follow a run as they are: gone, cordoned, without a kubelet that reports, or without an agent of svc."""

import time
from collections.abc import Iterable
from typing import Any, Final

from svc.upgrade.agent_pods import agent_daemon_sets
from svc.upgrade.rollouts import pods_of
from svc.upgrade.writer import Cluster

Json = dict[str, Any]

GONE: Final = "it is gone"
GRACE_SECONDS = 60.0  # in which a node may get its agent again
LOOK_SECONDS = 10.0  # between two looks at all nodes


class StalledNodes:
    """Looks at the nodes of a cluster now and then."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._looked: float | None = None
        self._states: dict[str, str] = {}
        self._since: dict[str, float] = {}

    def reasons(self, nodes: Iterable[str], *, again: bool = False) -> dict[str, str]:
        """Return why nodes do not follow; those that may still do so have no entry."""
        now = time.monotonic()
        if again or self._looked is None or now - self._looked >= LOOK_SECONDS:
            self._looked, self._states = now, self._read()
        found = {node: reason for node in nodes if (reason := self._states.get(node, GONE))}
        self._since = {node: self._since.get(node, now) for node in found}
        return found

    def has_lasted(self, nodes: Iterable[str]) -> bool:
        """Return whether all of these nodes have had a reason long enough."""
        now = time.monotonic()
        return all(now - self._since.get(node, now) >= GRACE_SECONDS for node in nodes)

    def _read(self) -> dict[str, str]:
        """Return the reason of each node; empty without one."""
        with_agent = self._with_agent()
        nodes = {each["metadata"]["name"]: each for each in self._cluster.items("/api/v1/nodes")}
        return {name: _reason(node, has_agent=with_agent is None or name in with_agent) for name, node in nodes.items()}

    def _with_agent(self) -> set[str] | None:
        """Return the nodes that have a pod of an agent; None if agents do not run in pods."""
        agents = agent_daemon_sets(self._cluster)
        pods = (pod for each in agents for pod in pods_of(self._cluster, each))
        return {str(pod["spec"].get("nodeName") or "") for pod in pods} if agents else None


def _reason(node: Json, *, has_agent: bool) -> str:
    conditions = {each["type"]: each["status"] for each in (node.get("status") or {}).get("conditions") or ()}
    if conditions.get("Ready", "True") != "True":
        return "its kubelet does not report that it is ready"
    if not has_agent:
        return "it has no agent of svc"
    return "it is cordoned" if (node.get("spec") or {}).get("unschedulable") else ""
