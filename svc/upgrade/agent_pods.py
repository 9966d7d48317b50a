"""The pods of node agents, and their versions."""

from collections.abc import Iterator
from typing import Any

from svc.deploy.manifests.settings import SYSTEM_NAMESPACE
from svc.upgrade.bundle import agent_names, container_of, version_of
from svc.upgrade.places import Place
from svc.upgrade.writer import Cluster

Json = dict[str, Any]


def agent_versions(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield node and version of each pod of an agent."""
    for name in agent_names(cluster.names):
        for pod in _pods(cluster, name):
            workload = {"metadata": {"name": name}, "spec": {"template": {"spec": pod["spec"]}}}
            yield str(pod["spec"].get("nodeName") or ""), version_of(str(container_of(workload)["image"]))


def _pods(cluster: Cluster, daemon_set: str) -> Iterator[Json]:
    place = Place("apps/v1", "DaemonSet", SYSTEM_NAMESPACE, daemon_set)
    live = cluster.find(place) if cluster.served(place) else None
    if live is None:
        return
    labels = live["spec"]["selector"].get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    yield from cluster.items(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods", labelSelector=selector)
