"""What a cluster says of itself: its version, and whether its datastore is locked."""

from typing import Any, Final

from svc.admin.cluster_version import version_annotation
from svc.upgrade.places import Place
from svc.upgrade.writer import Cluster
from svc.values import dataclass

Json = dict[str, Any]

_KIND: Final = "ClusterInformation"
_NAME: Final = "default"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The version (empty if none is noted), that of svc under another product's names, and whether the datastore is locked.

    `is_served` is false if the cluster has no such kind: then its datastore is not the Kubernetes API, or was not set up."""

    is_served: bool
    version: str = ""
    svc_version: str = ""
    is_locked: bool = False


def read_state(cluster: Cluster) -> ClusterState:
    """Return what ClusterInformation says. Raise StoreError."""
    names = cluster.names
    places = [Place(version, _KIND, "", _NAME) for version in (names.crd_api_version, names.api_version)]
    served = [place for place in places if cluster.served(place)]
    for place in served:
        if found := cluster.find(place):
            spec, annotations = found.get("spec") or {}, found["metadata"].get("annotations") or {}
            version, own = str(spec.get(names.version_field) or ""), str(annotations.get(version_annotation(names)) or "")
            return ClusterState(True, version, own, is_locked=spec.get("datastoreReady") is False)
    return ClusterState(bool(served))
