"""Addresses that annotations of pods and namespaces request, on each datastore."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.annotations import ANNOTATION, NAMESPACE, UNAVAILABLE, annotate, attach_within, endpoint, host_routes
from harness.cluster_node import ClusterNode, audit, disagreements, remains
from harness.datastores import EmbeddedSite, OrchSite, session
from harness.ipam import put_reservation
from harness.kube import Kube
from harness.orch import PODS
from harness.pod import Pod
from harness.reference_plugins import Attached, require_plugin
from svc.names import DEFAULT

pytestmark = pytest.mark.root

Json = dict[str, Any]
MakePod = Callable[..., Pod]

PREFIX = DEFAULT.annotation_prefix


def test_requested_addresses_are_assigned(make: MakePod, cluster_node: ClusterNode) -> None:
    """They have the order of the annotation, and the host has their routes. A repeated ADD returns the same result."""
    pod = make(notes={"ipAddrs": ["fd65::77", "10.65.3.77"], "ipv4pools": ["nowhere"]}, args=";IP=10.65.1.1")
    pod.add()
    assert [ip["address"] for ip in pod.result["ips"]] == ["fd65::77/128", "10.65.3.77/32"]
    assert "routes" not in pod.result
    assert host_routes(pod) == ["10.65.3.77", "fd65::77"]
    assert pod.netns.addresses("eth0") == ["10.65.3.77/32", "fd65::77/128"]
    assert endpoint(cluster_node).spec["ipNetworks"] == ["fd65::77/128", "10.65.3.77/32"]
    assert audit([cluster_node]).allocations == {"10.65.3.77": "net.c1", "fd65::77": "net.c1"}
    assert disagreements([cluster_node]) == []
    assert pod.check().status == 0
    assert pod.add() == pod.result
    pod.delete()
    assert remains([cluster_node]) == []
    called = pod.call("ADD")
    assert f"CNI_ARGS IP = '10.65.1.1' is set aside: {PREFIX}/ipAddrs of pod default/web-0" in called.stderr


def test_requested_addresses_are_for_the_first_interface(make: MakePod, cluster_node: ClusterNode) -> None:
    """Another interface of the pod gets its own address from a pool."""
    pod = make(notes={"ipAddrs": ["10.65.3.77"], "hwAddr": "0a:00:5e:00:53:01", "ipFamilies": ["IPv4"]})
    pod.add()
    second = pod.copy(ifname="net1", args=pod.args + ";IP=10.65.3.78")
    second.add()
    assert second.addresses == ["10.65.3.78"]
    assert second.result["interfaces"][1]["mac"] != "0a:00:5e:00:53:01"
    second.delete()
    second = pod.copy(ifname="net1")
    second.add()
    assert pod.check().status == second.check().status == 0
    assert disagreements([cluster_node]) == []
    second.delete()


def test_requested_address_may_be_reserved(make: MakePod, cluster_node: ClusterNode) -> None:
    """Reservations apply only to automatic assignment. First and last addresses of a block can be requested too."""
    with session(cluster_node.site) as store:
        put_reservation(store, "set-aside", "10.65.9.0/24")
    for number, address in enumerate(("10.65.9.9", "10.65.0.0", "10.65.255.255")):
        pod = make(f"web-{number}", f"c{number}", notes={"ipAddrs": [address]})
        pod.add()
        assert pod.addresses == [address]


def test_address_of_another_pod_is_refused(make: MakePod, cluster_node: ClusterNode) -> None:
    """The attachment of that pod does not change."""
    first = make("web-0", "c0", notes={"ipAddrs": ["10.65.0.9"]})
    first.add()
    second = make("web-1", "c1", notes={"ipAddrs": ["fd65::9", "10.65.0.9"]})
    error = second.failed("ADD").output
    assert error["code"] == UNAVAILABLE
    assert "'10.65.0.9' is already assigned" in error["msg"]
    assert "net.c0" in error["details"]
    assert f"{PREFIX}/ipAddrs of pod default/web-1" in error["details"]
    assert audit([cluster_node]).allocations == {"10.65.0.9": "net.c0"}
    assert first.check().status == 0
    first.delete()
    second.add()
    assert second.addresses == ["fd65::9", "10.65.0.9"]


def test_one_of_several_concurrent_pods_gets_the_address(make: MakePod, cluster_node: ClusterNode) -> None:
    """Each of them requests a second address of its own. A refused pod keeps neither."""
    pods = [make(f"web-{number}", f"c{number}", notes={"ipAddrs": [f"fd65::a{number}", "10.65.0.9"]}) for number in range(8)]
    with ThreadPoolExecutor(len(pods)) as threads:
        called = list(threads.map(lambda pod: pod.call("ADD"), pods))
    assert sorted(each.status == 0 for each in called) == [False] * 7 + [True]
    assert {each.output["code"] for each in called if each.status} == {UNAVAILABLE}
    assert len(audit([cluster_node]).allocations) == 2
    assert disagreements([cluster_node]) == []


def test_one_shot_assigns_requested_addresses(
    make: MakePod, cluster_node: ClusterNode, orch_site: OrchSite, tmp_path: Path
) -> None:
    first = make("web-0", "c0", notes={"ipAddrs": ["10.65.0.9"], "hwAddr": "0a:00:5e:00:53:01"}, bound="node2")
    second = make("web-1", "c1", notes={"ipAddrsNoIpam": ["203.0.113.9"]}, bound="node2")
    cluster_node.site.add_node("node2")  # the agent of the other node keeps its own node claim
    with ClusterNode(tmp_path / "node", "node2", cluster_node.site, orch_site) as node:
        if isinstance(cluster_node.site, EmbeddedSite):
            node.apply_pools()
        assert node.stop_agent() == 0
        for made, address in ((first, "10.65.0.9"), (second, "203.0.113.9")):
            pod = made.copy(node=node, config={**made.config, "nodename": "node2"})
            pod.add()
            assert pod.addresses == host_routes(pod) == [address]
            assert pod.add() == pod.result
            assert pod.check().status == 0
            pod.delete()


def test_namespace_can_request_the_address(make: MakePod, kube: Kube) -> None:
    """One pod at a time gets it. A further pod needs its own annotation."""
    annotate(kube, NAMESPACE, ipAddrs=["10.65.4.4"])
    first = make("web-0", "c0", notes={})
    attach_within(first, "10.65.4.4")
    error = make("web-1", "c1", notes={}).failed("ADD").output
    assert error["code"] == UNAVAILABLE
    assert f"{PREFIX}/ipAddrs of namespace default" in error["details"]
    third = make("web-2", "c2", notes={"ipAddrs": ["10.65.4.5"]})
    third.add()
    assert third.addresses == ["10.65.4.5"]


def test_next_sandbox_of_a_pod_keeps_the_address(make: MakePod, cluster_node: ClusterNode) -> None:
    """The DEL of the previous sandbox comes later, and releases nothing of the new one."""
    notes = {"ipAddrs": ["10.65.0.9", "fd65::9"]}
    first = make(container="c1", notes=notes)
    first.add()
    second = make(container="c2")
    second.add()
    assert second.addresses == ["10.65.0.9", "fd65::9"]
    assert first.netns.links() == []
    first.delete()
    assert second.check().status == 0
    assert host_routes(second) == ["10.65.0.9", "fd65::9"]
    assert disagreements([cluster_node]) == []


def test_next_sandbox_releases_the_addresses_of_the_previous_one(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    first = make(container="c1", notes={})
    first.add()
    annotate(kube, f"{PODS}/web-0", ipAddrs=["10.65.0.99"])
    second = make(container="c2")
    second.add()
    assert audit([cluster_node]).allocations == {"10.65.0.99": "net.c2"}
    first.delete()
    assert second.check().status == 0


def test_refused_sandbox_does_not_change_the_previous_one(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    first = make(container="c1", notes={"ipAddrs": ["10.65.0.9"]})
    first.add()
    annotate(kube, f"{PODS}/web-0", ipAddrs=["10.65.0.01"])
    assert make(container="c2").failed("ADD").output["code"] == ANNOTATION
    assert first.check().status == 0
    assert disagreements([cluster_node]) == []


def test_addresses_that_bypass_ipam(make: MakePod, cluster_node: ClusterNode) -> None:
    """The host has their routes. IPAM does not record them."""
    pod = make(notes={"ipAddrsNoIpam": ["203.0.113.7", "fd65::42"]})
    called = pod.call("ADD")
    assert called.status == 0
    pod.result = called.output
    assert pod.addresses == ["203.0.113.7", "fd65::42"]
    assert "routes" not in pod.result
    assert host_routes(pod) == ["203.0.113.7", "fd65::42"]
    assert "address fd65::42 bypasses IPAM, which may assign it to others of pool pool6" in called.stderr
    assert "203.0.113.7 bypasses" not in called.stderr
    assert endpoint(cluster_node).spec["ipNetworks"] == ["203.0.113.7/32", "fd65::42/128"]
    assert (audit([cluster_node]).allocations, audit([cluster_node]).handles) == ({}, {})
    assert disagreements([cluster_node]) == []
    assert pod.check().status == 0
    assert pod.add() == pod.result
    valid: Json = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}
    assert pod.call("GC", **valid).status == 0
    assert pod.check().status == 0
    pod.delete()
    assert remains([cluster_node]) == []


@pytest.mark.parametrize("site", ["embedded"], indirect=True, scope="module")
@pytest.mark.parametrize("name", ["ipAddrs", "ipAddrsNoIpam"])
def test_requested_addresses_with_ptp(make: MakePod, cluster_node: ClusterNode, name: str) -> None:
    """ptp requires a gateway of each family, and refuses an address that is a network by itself."""
    require_plugin("ptp")
    addresses = ["10.65.3.77", "fd65::77"] if name == "ipAddrs" else ["203.0.113.9", "fd65::78"]
    pod = make(notes={name: addresses})
    pod.plugin = "svc-ipam"
    pod.config |= {"type": "ptp", "cniVersion": "1.0.0"}
    below = Attached(pod, "ptp").add()
    assert below.addresses == addresses
    for address in addresses:
        assert cluster_node.netns.run("ping", "-c", "1", "-w", "5", address, check=False).returncode == 0
    assert below.call("DEL").status == 0
    assert remains([cluster_node]) == []


def test_address_that_bypasses_ipam_may_belong_to_another_pod(make: MakePod, cluster_node: ClusterNode) -> None:
    """The log warns of it. On one node the kernel does not route an address to two pods. The owner does not change."""
    first = make("web-0", "c0", notes={"ipAddrs": ["10.65.0.9"]})
    first.add()
    called = make("web-1", "c1", notes={"ipAddrsNoIpam": ["10.65.0.9"]}).call("ADD")
    assert called.output["code"] == 106
    assert "the host already has a route to 10.65.0.9" in called.output["msg"]
    assert "address 10.65.0.9 bypasses IPAM, where net.c0 holds it: both will answer for it" in called.stderr
    assert first.check().status == 0
    assert disagreements([cluster_node]) == []
