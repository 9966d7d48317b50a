"""Pods on a real node: addresses of both families, a port of the host, and limited bandwidth."""

import urllib.request
from collections.abc import Callable, Iterator

import pytest

from harness.cluster_node import ClusterNode, audit
from harness.enter_netns import entered
from harness.kube import Kube
from harness.kubelet_node import RealNode
from harness.netns import Netns
from harness.node import POOL4
from harness.spec_rows import statement
from harness.traffic import neighbour, steady_rate
from harness.workloads import PAGE, addresses, clear_pods, delete_pod, inside, pod_disagreements, put_pod, read_pod

pytestmark = [pytest.mark.root, pytest.mark.slow]

HOST_PORT = 18080
OUTSIDE = "192.0.2.50"
LIMITED = {"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M"}


@pytest.fixture
def outside(node: ClusterNode) -> Iterator[Netns]:
    """Return a machine on the node's network that has routes to its pods."""
    with neighbour(node.netns, "uplink", f"{OUTSIDE}/24") as netns:
        netns.run("ip", "route", "add", POOL4, "via", "192.0.2.1")
        yield netns


@pytest.fixture(scope="module")
def web(shared_real_node: RealNode, kube: Kube) -> Iterator[list[str]]:
    """Return the addresses of a pod with all features."""
    put_pod(kube, "web-0", LIMITED, host_port=HOST_PORT)
    yield shared_real_node.wait("the pod is ready", lambda: addresses(read_pod(kube, "web-0")))
    clear_pods(shared_real_node, kube)


def test_pod_has_addresses_of_both_families(web: list[str], node: ClusterNode, kube: Kube) -> None:
    assert [":" in address for address in web] == [False, True]
    assert pod_disagreements(kube, node) == []
    pod = read_pod(kube, "web-0")
    assert pod is not None
    v4, v6 = web
    notes = {name: text for name, text in pod["metadata"]["annotations"].items() if name.startswith("cni.svc.internal/")}
    container = notes.pop("cni.svc.internal/containerID")
    assert notes == {"cni.svc.internal/podIP": f"{v4}/32", "cni.svc.internal/podIPs": f"{v4}/32,{v6}/128"}
    assert audit([node]).allocations == dict.fromkeys(web, f"pods.{container}")
    for address in web:
        assert node.netns.run("ping", "-c", "1", "-w", "5", address, check=False).returncode == 0


def test_host_port_is_forwarded_to_the_pod(web: list[str], outside: Netns) -> None:
    with entered(outside), urllib.request.urlopen(f"http://192.0.2.1:{HOST_PORT}/", timeout=5) as page:
        assert page.read().decode() == PAGE


@statement(
    "2.8",
    "ingress-bandwidth",
    "A quantity, such as `10M`, in bits a second: limits what the pod receives, by the bandwidth plugin.",
    "kubelet reads it and tells the bandwidth plugin by the runtime; we put it on the endpoint as well (`qosControls`).",
    choice="An annotation of our own domain (`qos.svc.internal/ingressBandwidth`) counts more on the endpoint.",
)
@statement("2.8", "egress-bandwidth", "The same for what the pod sends.", "As the other one.")
def test_bandwidth_is_limited_in_both_directions(web: list[str], node: ClusterNode, outside: Netns) -> None:
    pod = inside(node, web[0])
    assert 2e6 < steady_rate(outside, pod, web[0]) < 20e6
    assert 2e6 < steady_rate(pod, outside, OUTSIDE) < 20e6


def test_other_nodes_get_other_addresses(web: list[str], node: ClusterNode, kube: Kube, sandbox: Callable[[], Netns]) -> None:
    other = node.pod(sandbox(), args="K8S_POD_NAMESPACE=default;K8S_POD_NAME=far-0", nodename="node2")
    node.site.add_pod("far-0", "node2")
    other.add()
    assert not set(other.addresses) & set(web)
    assert audit([node]).allocations.keys() == {*web, *other.addresses}
    other.delete()
    delete_pod(kube, "far-0", at_once=True)
