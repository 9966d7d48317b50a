"""Policy type `orch`: svc reads pod and namespace from a real API server, for endpoints in either datastore."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.annotations import attach_within
from harness.cluster_node import ClusterNode, remains
from harness.datastores import OrchSite, Site, session
from harness.ipam import put_pool
from harness.kube import Kube
from harness.netns import Netns
from harness.orch import PODS
from harness.pod import Pod
from svc.datastore.api import Delete
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakeSandbox = Callable[[], Netns]
MakePod = Callable[..., Pod]

NAMESPACE = "/api/v1/namespaces/default"
ORCHESTRATOR = 111
TIMEOUT_SECONDS = 20.0


@pytest.fixture(scope="module")
def base_node(site: Site, orch_site: OrchSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterNode]:
    """Start a node on either datastore that reaches the API server."""
    with ClusterNode(tmp_path_factory.mktemp("node") / "node", "node1", site, orch_site) as node:
        yield node


@pytest.fixture
def make(cluster_node: ClusterNode, orch_site: OrchSite, sandbox: MakeSandbox) -> Iterator[MakePod]:
    """Return a function that makes attachments of pods, which need not exist."""
    access: dict[str, Any] = {"policy": {"type": "orch"}, "orch": {"kubeconfig": str(orch_site.kubeconfig)}}

    def attachment(name: str, uid: str = "", container: str = "c1") -> Pod:
        args = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}" + (f";K8S_POD_UID={uid}" if uid else "")
        return cluster_node.pod(sandbox(), container, args=args, **access)

    yield attachment
    orch_site.clear()


def put_pod(kube: Kube, name: str, **labels: str) -> str:
    """Create a pod as a replica set does, with a service account and ports. Return its uid."""
    ports = [
        {"name": "http", "containerPort": 8080},
        {"containerPort": 9090},
        {"containerPort": 53, "hostPort": 5353, "protocol": "UDP"},
    ]
    spec = {
        "nodeName": "node1", "serviceAccountName": "builder", "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "x", "ports": ports}],
    }  # fmt: skip
    metadata = {"name": name, "generateName": "web-", "labels": labels}
    pod = kube.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return str(pod["metadata"]["uid"])


def endpoint(node: ClusterNode) -> Resource:
    """Return the only endpoint of the datastore."""
    with session(node.site) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(entry.value, Resource)
    return entry.value


def test_endpoint_has_the_data_for_policy(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    uid = put_pod(kube, "web-x7", app="web", **{"aaa.example/x": "1"})
    pod = make("web-x7", uid)
    pod.add()
    found = endpoint(cluster_node)
    assert found.metadata["generateName"] == "web-"
    assert found.labels == {
        "aaa.example/x": "1", "app": "web", "svc.internal/namespace": "default", "svc.internal/orchestrator": "k8s",
        "svc.internal/serviceaccount": "builder",
    }  # fmt: skip
    assert found.spec["serviceAccountName"] == "builder"
    assert found.spec["profiles"] == ["kns.default", "ksa.default.builder"]
    assert found.spec["ports"] == [
        {"name": "http", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""},
        {"name": "", "protocol": "UDP", "port": 53, "hostPort": 5353, "hostIP": ""},
    ]
    assert pod.check().status == 0
    pod.delete()


def test_pod_of_another_uid_is_refused(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    """The pod was deleted and created again. The refused call is for the deleted pod."""
    first = put_pod(kube, "web-0")
    kube.call("DELETE", f"{PODS}/web-0?gracePeriodSeconds=0")
    second = put_pod(kube, "web-0")
    error = make("web-0", first).failed("ADD").output
    assert error["code"] == ORCHESTRATOR
    assert first in error["msg"]
    assert second in error["msg"]
    assert remains([cluster_node]) == []
    pod = make("web-0", second)
    pod.add()
    pod.delete()


def test_identical_add_of_a_recreated_pod_is_refused(make: MakePod, kube: Kube) -> None:
    """The recorded attachment belongs to the deleted pod."""
    first = put_pod(kube, "web-0")
    pod = make("web-0", first)
    pod.add()
    kube.call("DELETE", f"{PODS}/web-0?gracePeriodSeconds=0")
    assert pod.failed("ADD").output["code"] == ORCHESTRATOR
    put_pod(kube, "web-0")
    assert pod.failed("ADD").output["code"] == ORCHESTRATOR
    pod.delete()


def test_missing_pod_is_refused(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    pod = make("web-0")
    error = pod.failed("ADD").output
    assert error["code"] == ORCHESTRATOR
    assert error["msg"].startswith("API server http")
    assert error["msg"].endswith("does not know pod default/web-0")
    assert error["details"].startswith("if it was deleted, nothing is to be done; else compare the kubeconfig's cluster")
    assert remains([cluster_node]) == []
    put_pod(kube, "web-0")
    pod.add()
    kube.call("DELETE", f"{PODS}/web-0?gracePeriodSeconds=0")
    pod.delete()


def test_pod_is_read_for_every_add(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    put_pod(kube, "web-0", app="web")
    pod = make("web-0")
    for version in ("1", "2"):
        label = {"metadata": {"labels": {"version": version}}}
        kube.call("PATCH", f"{PODS}/web-0", label, "application/merge-patch+json")
        pod.add()
        assert endpoint(cluster_node).labels["version"] == version
        pod.delete()


def test_namespace_chooses_the_pool(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    """A change of its labels takes effect within moments, and at once if an ADD would be refused without it."""
    with session(cluster_node.site) as store:
        store.write([Delete(ResourceKey("IPPool", "pool4"))])
        put_pool(store, "blue", "10.71.0.0/24", namespaceSelector="team == 'blue'")
        put_pool(store, "rest", "10.72.0.0/24", namespaceSelector="!has(team)")
    put_pod(kube, "web-0")
    pod = make("web-0")
    try:
        label_namespace(kube, "blue")
        attach_within(pod, "10.71.0.")
        pod.delete()
        label_namespace(kube, None)
        attach_within(pod, "10.72.0.")
        label_namespace(kube, "red")
        assert pod.add() == pod.result, "an identical ADD must return the recorded result"
        pod.delete()
        wait_until_refused(pod)
        label_namespace(kube, "blue")
        pod.add()
        pod.delete()
    finally:
        label_namespace(kube, None)


def wait_until_refused(pod: Pod) -> None:
    """Repeat ADD and DEL until no pool selects the pod's namespace."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while (called := pod.call("ADD")).status == 0:
        assert time.monotonic() < until, called
        pod.delete()
    assert called.output["code"] in (101, 102)


def label_namespace(kube: Kube, team: str | None) -> None:
    patch: dict[str, Any] = {"metadata": {"labels": {"team": team}}}
    kube.call("PATCH", NAMESPACE, patch, "application/merge-patch+json")
