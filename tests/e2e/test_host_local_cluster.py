"""host-local on datastores that nodes share, with the ranges that the orchestrator has given to the node."""

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
from svc.model.keys import ResourceQuery

pytestmark = pytest.mark.root

Sandbox = Callable[[], Netns]

V4, V6 = "10.71.5.0/24", "fd71:5::/64"
DUAL = ("usePodCidr", "usePodCidrIPv6")
WEB = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"


@pytest.fixture
def there(orch_site: Site, etcd_site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node in a ready datastore, where it is `node1` and has a range of each family, and a pod; it also reaches an etcd."""
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
def test_addresses_come_from_the_ranges_of_the_node(there: ClusterNode, sandbox: Sandbox, words: tuple[str, ...]) -> None:
    pod = pod_of(there, sandbox(), *words)
    pod.add()
    assert in_range(pod.addresses)
    assert pod.call("ADD").output == pod.result
    assert pod.check().status == 0
    assert set(held(there)) == set(pod.addresses)
    pod.delete()


def test_range_may_be_of_ipv6(there: ClusterNode, sandbox: Sandbox) -> None:
    add_node(there.site, "six", V6)
    pod = pod_of(there, sandbox(), "usePodCidrIPv6", orch={**there.site.config["orch"], "node_name": "six"})
    pod.add()
    assert pod.addresses[0].startswith("fd71:5::")
    pod.delete()


def test_plain_subnet_may_be_the_word_too(there: ClusterNode, sandbox: Sandbox) -> None:
    config = there.netconf(ipam={"type": "host-local", "dataDir": str(data_dir(there)), "subnet": "usePodCidr"})
    pod = Pod(there, sandbox(), CONTAINER, config, args=WEB)
    pod.add()
    assert pod.addresses[0].startswith("10.71.5.")
    pod.delete()


def test_ranges_may_be_those_of_another_node(there: ClusterNode, sandbox: Sandbox) -> None:
    add_node(there.site, "other", "10.71.6.0/24")
    access = {**there.site.config["orch"], "node_name": "other"}
    pod = pod_of(there, sandbox(), "usePodCidr", orch=access)
    pod.add()
    assert pod.addresses[0].startswith("10.71.6.")
    pod.delete()


@pytest.mark.parametrize(
    ("node", "words", "fault"),
    [
        ("bare", ("usePodCidr",), "node 'bare' has no IPv4 pod CIDR for usePodCidr"),
        ("single", ("usePodCidr", "usePodCidrIPv6"), "node 'single' has no IPv6 pod CIDR for usePodCidrIPv6"),
        ("nobody", ("usePodCidr",), 'nodes "nobody" not found'),
    ],
)
def test_missing_range_names_the_node(
    there: ClusterNode, sandbox: Sandbox, node: str, words: tuple[str, ...], fault: str
) -> None:
    add_node(there.site, "bare")
    add_node(there.site, "single", "10.71.7.0/24")
    pod = pod_of(there, sandbox(), *words, orch={**there.site.config["orch"], "node_name": node})
    error = pod.failed("ADD").output
    assert (error["code"], fault in error["msg"]) == (111, True)
    assert "subnet" in error["details"] or "orch.node_name" in error["details"]
    assert remains([there]) == []
    status = pod.failed("STATUS").output
    assert (status["code"], fault in status["msg"]) == (50, True)


def test_network_without_the_words_asks_nobody(there: ClusterNode, sandbox: Sandbox) -> None:
    pod = pod_of(there, sandbox(), "10.71.8.0/24", orch={**there.site.config["orch"], "node_name": "nobody"})
    pod.add()
    assert pod.addresses[0].startswith("10.71.8.")
    pod.delete()


def test_release_asks_the_orchestrator_nothing(there: ClusterNode, sandbox: Sandbox) -> None:
    """On a datastore of the node: its server may be gone, and so may the node."""
    pod = pod_of(there, sandbox(), datastore_type="embedded")
    pod.add()
    assert in_range(pod.addresses)
    kube_of(there.site).call("DELETE", f"{NODES}/node1")
    with there.cut_off(there.site):
        assert pod.check().status == 0
        pod.delete()
        assert held(there) == {}


def test_del_without_the_journal_needs_no_ranges_either(there: ClusterNode, sandbox: Sandbox) -> None:
    pod = pod_of(there, sandbox())
    pod.add()
    there.stop_agent()
    (there.state_dir / "journal.db").unlink()
    there.start_agent()
    kube_of(there.site).call("DELETE", f"{NODES}/node1")
    pod.delete()
    assert held(there) == {}


def test_orchestrators_pod_learns_of_its_address(there: ClusterNode, sandbox: Sandbox) -> None:
    pod = pod_of(there, sandbox(), policy={"type": "orch"})
    pod.add()
    assert in_range(pod.addresses)
    ((_, networks),) = audit([there]).endpoints.items()
    assert networks == [f"{pod.addresses[0]}/32", f"{pod.addresses[1]}/128"]
    pod.delete()


def test_etcd_may_keep_the_rest(there: ClusterNode, etcd_site: Site, sandbox: Sandbox) -> None:
    """The endpoint there, the ranges from the orchestrator."""
    assert isinstance(etcd_site, EtcdSite)
    with session(etcd_site) as store:
        set_ready(store)
    pod = pod_of(there, sandbox(), **etcd_site.config)
    pod.add()
    assert in_range(pod.addresses)
    assert pod.check().status == 0
    with session(etcd_site) as store:
        assert len(store.list(ResourceQuery("WorkloadEndpoint"))) == 1
    pod.delete()
    assert held(there) == {}
    etcd_site.clear()


def test_status_says_when_the_deployment_does_not_go_by_the_ranges(there: ClusterNode, sandbox: Sandbox) -> None:
    pod = pod_of(there, sandbox())
    for _ in range(2):
        pod.add()
        pod.delete()
    assert "USE_POD_CIDR is not true" in pod.call("STATUS").stderr
    assert there.log.read_text().count("USE_POD_CIDR is not true") == 1, "the agent says so once"
    there.stop_agent()
    there.start_agent(USE_POD_CIDR="true")
    pod.delete()  # an agent's first call takes longer than a STATUS may
    called = pod.call("STATUS")
    assert (called.status, "USE_POD_CIDR" in called.stderr) == (0, False)
