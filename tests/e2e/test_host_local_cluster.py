"""host-local on shared datastores, with the pod CIDRs of the Kubernetes node."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import CONTAINER, ClusterNode, audit, remains
from harness.datastores import EtcdSite, OrchSite, Site, furnish, session, set_ready
from harness.host_local import data_dir, held, offer, section
from harness.kube import Kube
from harness.netns import Netns
from harness.orch import NODES
from harness.pod import Pod
from harness.polling import eventually
from svc.model.keys import ResourceQuery

pytestmark = pytest.mark.root

Sandbox = Callable[[], Netns]

V4, V6 = "10.71.5.0/24", "fd71:5::/64"
DUAL = ("usePodCidr", "usePodCidrIPv6")
WEB = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"


@pytest.fixture
def kube_node(orch_site: Site, etcd_site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """Start `node1`, which has a pod CIDR of each family and a pod in the Kubernetes datastore, and also reaches an etcd."""
    with ClusterNode(tmp_path / "node", "node1", orch_site, etcd_site) as node:
        offer(node)
        furnish(orch_site)
        add_node(orch_site, "node1", V4, V6)
        orch_site.add_pod("web-0")
        try:
            yield node
            assert remains([node]) == []
            assert held(node) == {}
            assert "Traceback" not in node.log.read_text()
        finally:
            orch_site.clear()


def kube_of(site: Site) -> Kube:
    assert isinstance(site, OrchSite)
    return site.kube


def add_node(site: Site, name: str, *ranges: str) -> None:
    spec = {"podCIDR": ranges[0], "podCIDRs": list(ranges)} if ranges else {}
    kube_of(site).call("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})


def pod_of(node: ClusterNode, netns: Netns, *groups: Any, container: str = CONTAINER, **config: Any) -> Pod:
    return node.pod(netns, container, args=WEB, ipam=section(node, *(groups or DUAL)), **config)


def in_range(addresses: list[str]) -> bool:
    v4, v6 = addresses
    return v4.startswith("10.71.5.") and v6.startswith("fd71:5::")


@pytest.mark.parametrize("words", [DUAL, ("USEPODCIDR", "usepodcidripv6"), ("usePodCidr", V6)], ids=["both", "case", "one"])
def test_addresses_are_in_the_pod_cidrs_of_the_node(kube_node: ClusterNode, sandbox: Sandbox, words: tuple[str, ...]) -> None:
    pod = pod_of(kube_node, sandbox(), *words)
    pod.add()
    assert in_range(pod.addresses)
    assert pod.call("ADD").output == pod.result
    assert pod.check().status == 0
    assert set(held(kube_node)) == set(pod.addresses)
    pod.delete()


def test_pod_cidr_can_be_ipv6_only(kube_node: ClusterNode, sandbox: Sandbox) -> None:
    add_node(kube_node.site, "six", V6)
    pod = pod_of(kube_node, sandbox(), "usePodCidrIPv6", orch={**kube_node.site.config["orch"], "node_name": "six"})
    pod.add()
    assert pod.addresses[0].startswith("fd71:5::")
    pod.delete()


def test_subnet_can_be_the_pod_cidr(kube_node: ClusterNode, sandbox: Sandbox) -> None:
    config = kube_node.netconf(ipam={"type": "host-local", "dataDir": str(data_dir(kube_node)), "subnet": "usePodCidr"})
    pod = Pod(kube_node, sandbox(), CONTAINER, config, args=WEB)
    pod.add()
    assert pod.addresses[0].startswith("10.71.5.")
    pod.delete()


def test_pod_cidr_of_another_node_can_be_used(kube_node: ClusterNode, sandbox: Sandbox) -> None:
    add_node(kube_node.site, "other", "10.71.6.0/24")
    access = {**kube_node.site.config["orch"], "node_name": "other"}
    pod = pod_of(kube_node, sandbox(), "usePodCidr", orch=access)
    pod.add()
    assert pod.addresses[0].startswith("10.71.6.")
    pod.delete()


@pytest.mark.parametrize(
    ("node", "words", "problem"),
    [
        ("bare", ("usePodCidr",), "node 'bare' has no IPv4 pod CIDR for usePodCidr"),
        ("single", ("usePodCidr", "usePodCidrIPv6"), "node 'single' has no IPv6 pod CIDR for usePodCidrIPv6"),
        ("absent", ("usePodCidr",), "does not know node absent"),
    ],
)
def test_error_names_the_node_without_a_pod_cidr(
    kube_node: ClusterNode, sandbox: Sandbox, node: str, words: tuple[str, ...], problem: str
) -> None:
    add_node(kube_node.site, "bare")
    add_node(kube_node.site, "single", "10.71.7.0/24")
    pod = pod_of(kube_node, sandbox(), *words, orch={**kube_node.site.config["orch"], "node_name": node})
    error = pod.failed("ADD").output
    assert (error["code"], problem in error["msg"]) == (111, True)
    assert "subnet" in error["details"] or "orch.node_name" in error["details"]
    assert remains([kube_node]) == []
    status = pod.failed("STATUS").output
    assert (status["code"], problem in status["msg"]) == (50, True)


def test_network_without_pod_cidrs_does_not_read_the_node(kube_node: ClusterNode, sandbox: Sandbox) -> None:
    pod = pod_of(kube_node, sandbox(), "10.71.8.0/24", orch={**kube_node.site.config["orch"], "node_name": "absent"})
    pod.add()
    assert pod.addresses[0].startswith("10.71.8.")
    pod.delete()


def test_check_and_del_do_not_read_the_node(kube_node: ClusterNode, sandbox: Sandbox) -> None:
    """The datastore is the embedded one. The API server is unreachable, and the Kubernetes node is deleted."""
    pod = pod_of(kube_node, sandbox(), datastore_type="embedded")
    pod.add()
    assert in_range(pod.addresses)
    kube_of(kube_node.site).call("DELETE", f"{NODES}/node1")
    with kube_node.cut_off(kube_node.site):
        assert pod.check().status == 0
        pod.delete()
        assert held(kube_node) == {}


def test_del_without_the_journal_does_not_need_the_pod_cidrs(kube_node: ClusterNode, sandbox: Sandbox) -> None:
    pod = pod_of(kube_node, sandbox())
    pod.add()
    kube_node.stop_agent()
    (kube_node.state_dir / "journal.db").unlink()
    kube_node.start_agent()
    kube_of(kube_node.site).call("DELETE", f"{NODES}/node1")
    pod.delete()
    assert held(kube_node) == {}


def test_kubernetes_pod_gets_its_addresses(kube_node: ClusterNode, sandbox: Sandbox) -> None:
    pod = pod_of(kube_node, sandbox(), policy={"type": "orch"})
    pod.add()
    assert in_range(pod.addresses)
    ((_, networks),) = audit([kube_node]).endpoints.items()
    assert networks == [f"{pod.addresses[0]}/32", f"{pod.addresses[1]}/128"]
    pod.delete()


def test_endpoint_can_be_in_etcd(kube_node: ClusterNode, etcd_site: Site, sandbox: Sandbox) -> None:
    """etcd stores the endpoint, and the pod CIDRs come from Kubernetes."""
    assert isinstance(etcd_site, EtcdSite)
    with session(etcd_site) as store:
        set_ready(store)
    pod = pod_of(kube_node, sandbox(), **etcd_site.config)
    pod.add()
    assert in_range(pod.addresses)
    assert pod.check().status == 0
    with session(etcd_site) as store:
        assert len(store.list(ResourceQuery("WorkloadEndpoint"))) == 1
    pod.delete()
    assert held(kube_node) == {}
    etcd_site.clear()


def test_status_warns_if_use_pod_cidr_is_not_set(kube_node: ClusterNode, sandbox: Sandbox) -> None:
    pod = pod_of(kube_node, sandbox())
    for _ in range(2):
        pod.add()
        pod.delete()
    assert "USE_POD_CIDR is not true" in pod.call("STATUS").stderr
    assert kube_node.log.read_text().count("USE_POD_CIDR is not true") == 1, "the agent must log the warning once"
    kube_node.stop_agent()
    kube_node.start_agent(USE_POD_CIDR="true")
    ready = eventually(lambda: pod.call("STATUS"), lambda called: called.status == 0)  # the first ones may take too long
    assert "USE_POD_CIDR" not in ready.stderr
