"""Pods that have the sidecar of the policy agent, and the workloads that they belong to."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from svc.datastore.orch.client import SMALL_PAGE
from svc.upgrade.places import Place
from svc.upgrade.writer import Cluster
from svc.values import dataclass

Json = dict[str, Any]

WORKLOADS: Final = ("Deployment", "StatefulSet", "DaemonSet")
_REPLICA_SET: Final = "ReplicaSet"
_APPS: Final = "apps/v1"
_ENDED: Final = ("Succeeded", "Failed")
_PODS: Final = "/api/v1/pods"


@dataclass(frozen=True, slots=True)
class SidecarPods:
    """Pods with a sidecar: their images by workload, and the pods that no workload can make again, with theirs."""

    images: Mapping[Place, frozenset[str]]
    bare: Mapping[str, str]

    def outdated(self, image: str) -> list[str]:
        """Return the bare pods with another image."""
        return sorted(name for name, present in self.bare.items() if present != image)


def find_pods(cluster: Cluster) -> SidecarPods:
    """Return the pods that run, or will run, with a sidecar. Raise StoreError."""
    owners = _ReplicaSets(cluster)
    images: dict[Place, set[str]] = {}
    bare: dict[str, str] = {}
    for pod, image in _pods(cluster, _PODS):
        place = owners.workload_of(pod)
        if place is None:
            bare[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = image
        else:
            images.setdefault(place, set()).add(image)
    found = sorted(images, key=lambda place: (place.namespace, place.kind, place.name))
    return SidecarPods({place: frozenset(images[place]) for place in found}, bare)


def outdated_pods(cluster: Cluster, place: Place, image: str) -> list[str]:
    """Return the pods of a workload whose sidecar has another image."""
    owners = _ReplicaSets(cluster)
    found = _pods(cluster, f"/api/v1/namespaces/{place.namespace}/pods")
    return [pod["metadata"]["name"] for pod, present in found if present != image and owners.workload_of(pod) == place]


def _pods(cluster: Cluster, path: str) -> Iterator[tuple[Json, str]]:
    """Yield the pods with a sidecar that neither ended nor are ending, with its image."""
    for pod in cluster.items(path, limit=str(SMALL_PAGE)):
        if "deletionTimestamp" in pod["metadata"] or (pod.get("status") or {}).get("phase") in _ENDED:
            continue
        for container in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]):
            if container["name"] == cluster.names.sidecar:
                yield pod, container["image"]


class _ReplicaSets:
    """Owners of ReplicaSets, read once each."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[Place, Place | None] = {}

    def workload_of(self, pod: Json) -> Place | None:
        """Return the workload that a pod belongs to; None if no workload can make it again."""
        owner = _owner(pod)
        if owner is None or owner.kind != _REPLICA_SET:
            return owner
        if owner not in self._known:
            found = self._cluster.find(owner)
            above = None if found is None else _owner(found)
            self._known[owner] = above if above is not None and above.kind in WORKLOADS else None
        return self._known[owner]


def _owner(document: Json) -> Place | None:
    for each in document["metadata"].get("ownerReferences") or ():
        if each.get("controller") and each["apiVersion"] == _APPS and each["kind"] in (_REPLICA_SET, *WORKLOADS):
            return Place(_APPS, each["kind"], document["metadata"]["namespace"], each["name"])
    return None
