"""One agent for networks with different datastores, node names and names profiles."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite, OrchSite, Site, furnish, session
from harness.etcd import Cluster
from harness.kube import Kube
from harness.netns import Netns
from harness.node import netconf
from harness.pod import Pod
from harness.proxy import mute
from harness.state import store_of
from svc.datastore.api import Backend
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource
from svc.netconf.names_profiles import load_profile

pytestmark = pytest.mark.root

MakeSandbox = Callable[[], Netns]

CALICO = load_profile("calico")
POD = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
UNANSWERED = 40  # calls that wait for a silent server


@pytest.fixture
def etcd_store(etcd: Cluster) -> Iterator[Site]:
    site = EtcdSite(etcd)
    furnish(site, "node1")
    yield site
    site.clear()


@pytest.fixture
def calico_store(kube: Kube, tmp_path: Path) -> Iterator[Site]:
    site = OrchSite(kube, tmp_path, CALICO)
    furnish(site, "worker-a")
    site.add_pod("web-0", "worker-a")
    yield site
    site.clear()


@pytest.fixture
def node(etcd_store: Site, calico_store: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    with ClusterNode(tmp_path / "node", "node1", etcd_store, calico_store) as node:
        node.apply_pools()
        node.svcctl("install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--names", "calico")
        yield node


def endpoints(store: Backend) -> dict[str, str]:
    """Return the container of each endpoint."""
    found = [entry.value for entry in store.list(ResourceQuery("WorkloadEndpoint"))]
    return {each.name: str(each.spec["containerID"]) for each in found if isinstance(each, Resource)}


def test_each_network_uses_its_own_datastore_and_names(
    node: ClusterNode, etcd_store: Site, calico_store: Site, sandbox: MakeSandbox
) -> None:
    """Three attachments, each in another network, are added and deleted at the same time, several times."""
    netns = sandbox()
    calico: dict[str, Any] = {"name": "net1", "type": "calico", "nodename": "worker-a", "ipam": {"type": "calico-ipam"}}
    pods = [
        node.pod(netns, args=POD),
        node.pod(sandbox(), args=POD, **calico, **calico_store.config),
        Pod(node, netns, "0123456789abcdef", netconf(name="here", nodename="third"), "eth2", POD),
    ]
    with ThreadPoolExecutor(len(pods)) as pool:
        for _ in range(3):
            list(pool.map(Pod.add, pods))
            with session(etcd_store) as first, session(calico_store) as second, store_of(node) as third:
                assert list(endpoints(first)) == ["node1-k8s-web--0-eth0"]
                assert list(endpoints(second)) == ["worker--a-k8s-web--0-eth0"]
                assert list(endpoints(third)) == ["third-k8s-web--0-eth2"]
            assert [pod.host_name.startswith(("svc", "cali")) for pod in pods] == [True] * 3
            assert [pod.check().status for pod in pods] == [0, 0, 0]
            list(pool.map(Pod.delete, pods))
    with session(etcd_store) as first, session(calico_store) as second, store_of(node) as third:
        assert (endpoints(first), endpoints(second), endpoints(third)) == ({}, {}, {})


def test_silent_server_delays_only_calls_of_its_network(node: ClusterNode, sandbox: MakeSandbox) -> None:
    """Calls of another network end while all calls for the silent server still wait."""
    with mute(node.netns) as authority, ThreadPoolExecutor(UNANSWERED) as pool:
        netns = sandbox()
        stuck = [node.pod(netns, f"stuck-{n}", name="dead", etcd_endpoints=f"http://{authority}") for n in range(UNANSWERED)]
        waiting = [pool.submit(pod.failed, "ADD") for pod in stuck]
        good = node.pod(sandbox())
        for _ in range(5):
            good.add()
            good.delete()
        assert not any(each.done() for each in waiting), "a call for the silent server did not wait"
        assert {each.result().output["code"] for each in waiting} == {104}
