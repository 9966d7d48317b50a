"""The pods of node agents, and their versions."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from svc.names import Names
from svc.upgrade.bundle import agent_names, container_of, version_of
from svc.upgrade.places import Place
from svc.upgrade.writer import Cluster

Json = dict[str, Any]

OWN_VERSION: Final = "svcctl"
"""The target of names profiles whose versions are those of svc."""

_DAEMON_SETS: Final = "/apis/apps/v1/daemonsets"
_ANY: Final = Place("apps/v1", "DaemonSet", "any", "any")


def agent_versions(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield node and version of each pod of an agent, in any namespace."""
    for each in _daemon_sets(cluster, _names_of(cluster.names)):
        yield from _versions(cluster, each)


def agent_daemon_sets(cluster: Cluster) -> list[Json]:
    """Return the DaemonSets of agents, in any namespace."""
    return _daemon_sets(cluster, agent_names(cluster.names))


def _daemon_sets(cluster: Cluster, known: Sequence[str]) -> list[Json]:
    listed = cluster.items(_DAEMON_SETS) if cluster.served(_ANY) else ()
    head = {"apiVersion": _ANY.api_version, "kind": _ANY.kind}  # items of a list lack it
    return [head | each for each in listed if each["metadata"]["name"] in known]


def _names_of(names: Names) -> list[str]:
    """Return the names of DaemonSets whose versions count. Under another product's names, that of svc has other versions."""
    is_own = names.upgrade_target == OWN_VERSION
    return [name for name in agent_names(names) if is_own or name != names.daemon_set]


def _versions(cluster: Cluster, daemon_set: Json) -> Iterator[tuple[str, str]]:
    metadata, labels = daemon_set["metadata"], daemon_set["spec"]["selector"].get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    for pod in cluster.items(f"/api/v1/namespaces/{metadata['namespace']}/pods", labelSelector=selector):
        workload = {"metadata": {"name": metadata["name"]}, "spec": {"template": {"spec": pod["spec"]}}}
        yield str(pod["spec"].get("nodeName") or ""), version_of(str(container_of(workload)["image"]))
