"""The verbs on datastores that nodes share: what is in them after each call, for bare containers and for pods."""

from collections.abc import Callable

import pytest

from harness.cluster_node import CONTAINER, ClusterNode, books, faults, remains
from harness.ipam import blocks, handles
from harness.netns import Netns
from harness.pod import Pod
from harness.site import OrchSite, session
from harness.state import pod_links
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakeSandbox = Callable[[], Netns]

DUAL = {"assign_ipv6": "true"}
WEB = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"


@pytest.fixture
def web(cluster_node: ClusterNode, sandbox: MakeSandbox) -> Pod:
    """A pod of two address families."""
    cluster_node.site.add_pod("web-0")
    return cluster_node.pod(sandbox(), args=WEB, ipam=DUAL)


def endpoints(node: ClusterNode) -> dict[str, Resource]:
    """By name."""
    with session(node.site) as store:
        found = [entry.value for entry in store.list(ResourceQuery("WorkloadEndpoint"))]
    return {each.name: each for each in found if isinstance(each, Resource)}


def annotations(node: ClusterNode, pod: str) -> dict[str, str]:
    """Ours, without their domain."""
    assert isinstance(node.site, OrchSite)
    found = node.site.kube.call("GET", f"/api/v1/namespaces/default/pods/{pod}")["metadata"].get("annotations", {})
    return {name.removeprefix("cni.svc.internal/"): text for name, text in found.items()}


def test_pod_comes_and_goes(web: Pod, cluster_node: ClusterNode) -> None:
    web.add()
    v4, v6 = web.addresses
    endpoint = endpoints(cluster_node)["node1-k8s-web--0-eth0"]
    assert endpoint.namespace == "default"
    assert endpoint.labels.items() >= {"svc.internal/namespace": "default", "svc.internal/orchestrator": "k8s"}.items()
    expected = {
        "orchestrator": "k8s", "node": "node1", "containerID": CONTAINER, "pod": "web-0", "endpoint": "eth0",
        "ipNetworks": [f"{v4}/32", f"{v6}/128"], "interfaceName": web.host_name,
    }  # fmt: skip
    assert endpoint.spec.items() >= expected.items()
    with session(cluster_node.site) as store:
        assert set(handles(store)) == {f"net.{CONTAINER}"}
        for block in blocks(store).values():
            assert block.affinity == "host:node1"
            (attribute,) = block.attributes or ()
            owner = attribute.secondary or {}
            assert {name: owner[name] for name in ("namespace", "node", "pod")} == {
                "namespace": "default",
                "node": "node1",
                "pod": "web-0",
            }
    assert faults([cluster_node]) == []
    assert web.check().status == 0
    assert web.add() == web.result
    web.delete()
    assert remains([cluster_node]) == []
