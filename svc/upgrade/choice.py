"""Which procedure fits a cluster: by how svc was installed, and by its datastore.

A method that owns the objects of a cluster comes before one that has only applied them. Other procedures than
those of installations are never chosen, and do not contradict anything.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from svc.deploy.manifests.settings import SYSTEM_NAMESPACE
from svc.upgrade.bundle import agent_names
from svc.upgrade.etcd_access import uses_etcd, variables_of
from svc.upgrade.manifest_procedure import configs_of
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.writer import Cluster
from svc.values import dataclass

Json = dict[str, Any]

OPERATOR, CHART, MANIFESTS, MANIFESTS_ETCD = "operator", "chart", "manifests", "manifests-etcd"
_RELEASE: Final = "meta.helm.sh/release-name"  # annotation of an object that belongs to a release of a chart
_ENABLED: Final = "ENABLED_CONTROLLERS"
_APPS: Final = "apps/v1"


@dataclass(frozen=True, slots=True)
class Method:
    """A method of installation: its procedure, why it is that of a cluster (empty if it is not), and what contradicts it."""

    procedure: str
    reason: Callable[[Cluster], str]
    excluded: tuple[str, ...] = ()


def choose(cluster: Cluster, given: str, known: Sequence[str]) -> str:
    """Return the procedure: the given one, or that of the first method that is found.

    Raise Blocked if they contradict each other, StoreError."""
    if given and given not in _OF_METHODS:
        return given
    found = [(method, reason) for method in _METHODS if (reason := method.reason(cluster))]
    if not found:
        return given or MANIFESTS
    method, reason = found[0]
    if given in method.excluded:
        details = f"leave --procedure out, or give --procedure {method.procedure}"
        raise Blocked([f"{reason}: --procedure {given} is not for this cluster"], details=details)
    if not given and method.procedure not in known:
        details = f"known procedures: {', '.join(known)}"
        raise Blocked([f"{reason}: this svcctl has no procedure {method.procedure}"], details=details)
    return given or method.procedure


def _chart(cluster: Cluster) -> str:
    """Return why a chart owns the objects: one of them says so."""
    for live in (_installation(cluster), *_operators(cluster)):
        release = ((live or {}).get("metadata") or {}).get("annotations", {}).get(_RELEASE)
        if live is not None and release:
            return f"{live['kind']}/{live['metadata']['name']} belongs to release {release} of a chart"
    return ""


def _operator(cluster: Cluster) -> str:
    """Return why an operator owns the objects: it has its Installation, or a program that waits for one."""
    live = _installation(cluster)
    if live is not None:
        return f"Installation/{live['metadata']['name']} exists, so an operator owns the objects"
    for each in _operators(cluster):
        if OPERATOR in variables_of(each).get(_ENABLED, "").split(","):
            return f"Deployment/{each['metadata']['name']} is the operator, which owns the objects"
    return ""


def _etcd(cluster: Cluster) -> str:
    return next((f"{name} uses etcd as its datastore" for name, live in _agents(cluster) if _is_on_etcd(cluster, live)), "")


def _manifests(cluster: Cluster) -> str:
    return next((f"{name} exists, without an operator" for name, _ in _agents(cluster)), "")


def _is_on_etcd(cluster: Cluster, live: Json) -> bool:
    return uses_etcd(live, configs_of(cluster, live))


def _agents(cluster: Cluster) -> list[tuple[str, Json]]:
    places = [Place(_APPS, "DaemonSet", SYSTEM_NAMESPACE, name) for name in agent_names(cluster.names)]
    return [(str(place), live) for place in places if (live := _find(cluster, place)) is not None]


def _installation(cluster: Cluster) -> Json | None:
    return _find(cluster, Place(cluster.names.operator_api_version, "Installation", "", "default"))


def _operators(cluster: Cluster) -> list[Json]:
    """Return the Deployments that may be the operator."""
    names = cluster.names
    places = (
        Place(_APPS, "Deployment", SYSTEM_NAMESPACE, names.controllers),
        Place(_APPS, "Deployment", names.operator_manager, names.operator_manager),
    )
    return [live for place in places if (live := _find(cluster, place)) is not None]


def _find(cluster: Cluster, place: Place) -> Json | None:
    return cluster.find(place) if cluster.served(place) else None


_METHODS: Final = (
    Method(CHART, _chart, (MANIFESTS, MANIFESTS_ETCD)),
    Method(OPERATOR, _operator, (MANIFESTS, MANIFESTS_ETCD)),
    Method(MANIFESTS_ETCD, _etcd, (OPERATOR, CHART)),
    Method(MANIFESTS, _manifests, (OPERATOR, CHART)),
)
_OF_METHODS: Final = frozenset(method.procedure for method in _METHODS)
