"""The verbs on shared datastores: the stored objects after each call, for pods and other containers."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.cluster_node import CONTAINER, ClusterNode, audit, disagreements, remains
from harness.datastores import EtcdSite, OrchSite, session
from harness.ipam import blocks, handles
from harness.netns import Netns
from harness.orch import PODS
from harness.pod import Pod
from harness.reference_plugins import Attached, require_plugin
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

ORCHESTRATOR = 111

MakeSandbox = Callable[[], Netns]

ON_ETCD = pytest.mark.parametrize("site", ["etcdv3"], indirect=True, scope="module")
ON_ORCH = pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")


def endpoints(node: ClusterNode) -> dict[str, Resource]:
    """Return the endpoints by name."""
    with session(node.site) as store:
        found = [entry.value for entry in store.list(ResourceQuery("WorkloadEndpoint"))]
    return {each.name: each for each in found if isinstance(each, Resource)}


def first_annotations(node: ClusterNode) -> dict[str, str]:
    """Return svc's annotations of the pod's first interface. The result is empty in a datastore without pods."""
    if not isinstance(node.site, OrchSite):
        return {}
    pod = node.site.kube.call("GET", f"{PODS}/web-0")
    found = {name.removeprefix("cni.svc.internal/"): text for name, text in pod["metadata"]["annotations"].items()}
    return {name: text for name, text in found.items() if "." not in name}


def test_pod_can_be_added_and_deleted(web: Pod, cluster_node: ClusterNode) -> None:
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
            attributes = block.attributes or []
            assert [attribute.handle_id for attribute in attributes] == [f"net.{CONTAINER}"]
            owner = attributes[0].secondary or {}
            assert {name: owner[name] for name in ("namespace", "node", "pod")} == {
                "namespace": "default",
                "node": "node1",
                "pod": "web-0",
            }
    assert disagreements([cluster_node]) == []
    assert web.check().status == 0
    assert web.add() == web.result
    web.delete()
    assert remains([cluster_node]) == []


@ON_ETCD
def test_container_can_be_added_and_deleted(cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    container = cluster_node.pod(sandbox(), ipam={"assign_ipv6": "true"})
    container.add()
    v4, v6 = container.addresses
    (endpoint,) = endpoints(cluster_node).values()
    assert endpoint.name == f"node1-cni-{CONTAINER}-eth0"
    assert endpoint.labels == {"svc.internal/namespace": "default", "svc.internal/orchestrator": "cni"}
    assert endpoint.spec == {
        "orchestrator": "cni", "node": "node1", "containerID": CONTAINER, "endpoint": "eth0",
        "ipNetworks": [f"{v4}/32", f"{v6}/128"], "profiles": ["net"], "interfaceName": container.host_name,
        "mac": container.result["interfaces"][1]["mac"],
    }  # fmt: skip
    assert disagreements([cluster_node]) == []
    assert container.check().status == 0
    assert container.add() == container.result
    container.delete()


@ON_ORCH
def test_error_names_a_pod_that_does_not_exist(cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """If svc did not read the pod before, it fails to write its endpoint, and rolls the ADD back."""
    error = cluster_node.pod(sandbox(), args="K8S_POD_NAME=none;K8S_POD_NAMESPACE=default").failed("ADD").output
    assert (error["code"], error["msg"]) == (ORCHESTRATOR, "pod default/none does not exist")


@ON_ORCH
def test_kubernetes_datastore_refuses_a_container_that_is_not_a_pod(cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """svc refuses the ADD before its first side effect."""
    container = cluster_node.pod(sandbox())
    error = container.failed("ADD").output
    assert (error["code"], "K8S_POD_NAME" in error["details"]) == (104, True)
    assert remains([cluster_node]) == []
    with session(cluster_node.site) as store:
        assert blocks(store) == {}
    container.delete()


@ON_ORCH
def test_pod_annotations_have_the_addresses_and_the_container(web: Pod, cluster_node: ClusterNode) -> None:
    web.add()
    v4, v6 = web.addresses
    wired = {"podIP": f"{v4}/32", "podIPs": f"{v4}/32,{v6}/128", "containerID": CONTAINER}
    assert first_annotations(cluster_node) == wired
    web.delete()
    assert first_annotations(cluster_node) == {"podIP": "", "podIPs": "", "containerID": CONTAINER}


def test_new_sandbox_replaces_the_old_one(web: Pod, cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """The endpoint belongs to the new sandbox. A late DEL of the old one releases the old addresses but keeps the endpoint."""
    newer = web.copy(container="fedcba9876543210", netns=sandbox())
    web.add()
    newer.add()
    assert newer.host_name == web.host_name
    assert not set(newer.addresses) & set(web.addresses)
    for _ in range(2):
        (endpoint,) = endpoints(cluster_node).values()
        assert endpoint.spec["containerID"] == newer.container
        assert endpoint.spec["ipNetworks"] == [f"{address}/{128 if ':' in address else 32}" for address in newer.addresses]
        web.delete()
    assert set(audit([cluster_node]).allocations) == set(newer.addresses)
    assert newer.check().status == 0
    assert disagreements([cluster_node]) == []
    newer.delete()


def test_interfaces_of_one_pod_are_separate_attachments(web: Pod, cluster_node: ClusterNode) -> None:
    """The DELs may come in either order. The annotations of the first interface do not change."""
    second = web.copy(ifname="eth1")
    for order in ((web, second), (second, web)):
        web.add()
        before = first_annotations(cluster_node)
        second.add()
        assert second.host_name != web.host_name
        assert set(endpoints(cluster_node)) == {"node1-k8s-web--0-eth0", "node1-k8s-web--0-eth1"}
        assert first_annotations(cluster_node) == before
        assert disagreements([cluster_node]) == []
        assert (web.check().status, second.check().status) == (0, 0)
        first, last = order
        first.delete()
        assert last.check().status == 0
        last.delete()
        assert remains([cluster_node]) == []


def test_del_of_a_pod_that_no_longer_exists_succeeds(web: Pod, cluster_node: ClusterNode) -> None:
    web.add()
    if isinstance(cluster_node.site, OrchSite):
        cluster_node.site.kube.call("DELETE", f"{PODS}/web-0?gracePeriodSeconds=0")
    elif isinstance(cluster_node.site, EtcdSite):
        cluster_node.site.running.erase("/svc/resources/v3/svc.internal/workloadendpoints")
    web.delete()
    web.delete()
    assert remains([cluster_node]) == []


@ON_ETCD
def test_bridge_plugin_uses_addresses_of_svc_ipam(cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """Debian's bridge plugin calls svc-ipam as its IPAM plugin."""
    require_plugin("bridge")
    config: dict[str, Any] = {"cniVersion": "1.0.0", "type": "bridge", "bridge": "br0", "ipam": {"assign_ipv6": "true"}}
    pods = [cluster_node.pod(sandbox(), container, **config) for container in ("c1", "c2")]
    first, second = (Attached(pod, "bridge") for pod in pods)
    try:
        first.add()
        # CHECK precedes the second ADD, because the bridge takes the lowest MAC address of its ports.
        assert first.call("CHECK", prevResult=first.result).status == 0
        second.add()
        with session(cluster_node.site) as store:
            assert set(handles(store)) == {"net.c1", "net.c2"}
        assert endpoints(cluster_node) == {}
        assert first.pod.netns.run("ping", "-c", "1", "-w", "5", second.address, check=False).returncode == 0
        for each in (first, second):
            assert each.call("DEL", prevResult=each.result).status == 0
        assert audit([cluster_node]).entries() == []
    finally:
        cluster_node.netns.run("ip", "link", "delete", "br0")
