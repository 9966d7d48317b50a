"""The procedure that fits what is found in a cluster, and what contradicts it."""

from typing import Any

import pytest

from harness.upgrade_site import daemon_set
from svc.names import DEFAULT, Names
from svc.upgrade.choice import CHART, MANIFESTS, MANIFESTS_ETCD, OPERATOR, choose
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place, place_of
from svc.upgrade.writer import Cluster

Json = dict[str, Any]

KNOWN = (MANIFESTS, MANIFESTS_ETCD, OPERATOR, CHART, "host-endpoints")


class FakeCluster(Cluster):
    """A cluster with some objects."""

    def __init__(self, *documents: Json, names: Names = DEFAULT) -> None:
        self.names = names
        self._documents = {place_of(each): each for each in documents}

    def served(self, place: Place) -> Any:
        return place

    def find(self, place: Place) -> Json | None:
        return self._documents.get(place)


def installation() -> Json:
    metadata = {"name": "default"}
    return {"apiVersion": DEFAULT.operator_api_version, "kind": "Installation", "metadata": metadata}


def controllers(enabled: str) -> Json:
    found = daemon_set("svc:1", ENABLED_CONTROLLERS=enabled) | {"kind": "Deployment"}
    return found | {"metadata": {"name": DEFAULT.controllers, "namespace": "kube-system"}}


AGENT = daemon_set("svc:1")
ON_ETCD = daemon_set("svc:1", DATASTORE_TYPE="etcdv3")
OF_CHART = installation() | {"metadata": {"name": "default", "annotations": {"meta.helm.sh/release-name": "svc"}}}
FOUND = {
    "nothing": ((), MANIFESTS),
    "manifests": ((AGENT, controllers("node")), MANIFESTS),
    "etcd": ((ON_ETCD,), MANIFESTS_ETCD),
    "operator": ((AGENT, installation()), OPERATOR),
    "operator without its resource": ((AGENT, controllers("node,operator")), OPERATOR),
    "chart": ((AGENT, OF_CHART), CHART),
}


@pytest.mark.parametrize("name", FOUND)
def test_procedure_by_what_is_found(name: str) -> None:
    documents, expected = FOUND[name]
    assert choose(FakeCluster(*documents), "", KNOWN) == expected


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("operator", MANIFESTS),
        ("operator without its resource", MANIFESTS_ETCD),
        ("chart", MANIFESTS),
        ("manifests", OPERATOR),
        ("etcd", CHART),
    ],
)
def test_contradiction(name: str, given: str) -> None:
    """The sentence says what was found, and what to give."""
    documents, expected = FOUND[name]
    with pytest.raises(Blocked, match=f"--procedure {given} is not for this cluster") as caught:
        choose(FakeCluster(*documents), given, KNOWN)
    assert f"--procedure {expected}" in caught.value.details


def test_other_procedures_contradict_nothing() -> None:
    assert choose(FakeCluster(installation()), "host-endpoints", KNOWN) == "host-endpoints"
    assert choose(FakeCluster(AGENT), MANIFESTS_ETCD, KNOWN) == MANIFESTS_ETCD, "it says itself why it is not for the cluster"


def test_method_without_a_procedure() -> None:
    with pytest.raises(Blocked, match="this svcctl has no procedure operator"):
        choose(FakeCluster(installation()), "", (MANIFESTS,))
