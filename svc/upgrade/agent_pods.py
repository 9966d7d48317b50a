"""The pods of node agents, and their versions."""

from collections.abc import Iterator
from typing import Any

from svc.upgrade.bundle import agent_names, container_of, version_of
from svc.upgrade.rollouts import pods_of
from svc.upgrade.writer import Cluster

Json = dict[str, Any]


def agent_versions(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield node and version of each pod of an agent. Operators have their agents in namespaces of their own.

    Beside the agent of another product, that of svc does not count: it has other versions, and no policy."""
    names = cluster.names
    others = tuple(name for name in agent_names(names) if name != names.daemon_set)
    for name in others if names.foreign_definitions else agent_names(names):
        for live in cluster.items("/apis/apps/v1/daemonsets", fieldSelector=f"metadata.name={name}"):
            for pod in pods_of(cluster, live):
                workload = {"metadata": {"name": name}, "spec": {"template": {"spec": pod["spec"]}}}
                yield str(pod["spec"].get("nodeName") or ""), version_of(str(container_of(workload)["image"]))
