"""Settings that annotations of pods and namespaces make, on each datastore: pools, families, and fields of the endpoint."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from harness.annotations import (
    ANNOTATION,
    NAMESPACE,
    POOL,
    TIMEOUT_SECONDS,
    UNAVAILABLE,
    annotate,
    attach_within,
    endpoint,
    require_refused,
)
from harness.cluster_node import ClusterNode, audit, disagreements, remains
from harness.datastores import session
from harness.ipam import put_pool, remove
from harness.kube import Kube
from harness.orch import PODS
from harness.pod import Pod
from svc.model.keys import ResourceKey
from svc.names import DEFAULT

pytestmark = pytest.mark.root

Json = dict[str, Any]
MakePod = Callable[..., Pod]

PREFIX = DEFAULT.annotation_prefix
EMBEDDED = pytest.mark.parametrize(
    "site", ["embedded"], indirect=True, scope="module"
)  # the result is the same on other datastores


@pytest.fixture
def colours(cluster_node: ClusterNode) -> None:
    """Create more pools. `grey` is disabled, and `old` is not used for automatic assignment."""
    with session(cluster_node.site) as store:
        put_pool(store, "blue", "10.71.0.0/24")
        put_pool(store, "green", "10.72.0.0/24")
        put_pool(store, "grey", "10.73.0.0/24", disabled=True)
        put_pool(store, "old", "10.74.0.0/24", nodeSelector="has(nothing)")


def test_without_annotations_all_available_pools_are_used(make: MakePod, cluster_node: ClusterNode) -> None:
    """R1: they are used in turn, if they select the node."""
    with session(cluster_node.site) as store:
        remove(store, ResourceKey("IPPool", "pool4"))
        put_pool(store, "first", "10.75.0.0/30", blockSize=30)
        put_pool(store, "not-here", "10.76.0.0/24", nodeSelector="has(nothing)")
        put_pool(store, "second", "10.77.0.0/24")
    pods = [make(f"web-{number}", f"c{number}", notes={}, ipam={}) for number in range(6)]
    for pod in pods:
        pod.add()
    assert sorted({pod.addresses[0].rpartition(".")[0] for pod in pods[:4]}) == ["10.75.0"]
    assert sorted({pod.addresses[0].rpartition(".")[0] for pod in pods[4:]}) == ["10.77.0"]
    assert disagreements([cluster_node]) == []


@pytest.mark.usefixtures("colours")
def test_annotations_override_the_network_and_selectors(make: MakePod, kube: Kube) -> None:
    """The pod's annotation precedes the namespace's (R3). It gives a name or a CIDR, and the pool's selectors do not apply."""
    pod = make(notes={})
    pod.config["ipam"] = {**pod.config["ipam"], "ipv4_pools": ["blue"]}
    pod.add()
    assert pod.addresses[0].startswith("10.71.0.")
    pod.delete()
    annotate(kube, NAMESPACE, ipv4pools=["10.72.0.0/24"])
    attach_within(pod, "10.72.0.")
    assert pod.addresses[1].startswith("fd65::"), "the other family is not affected"
    pod.delete()
    annotate(kube, f"{PODS}/web-0", ipv4pools=["old"])
    pod.add()
    assert pod.addresses[0].startswith("10.74.0.")
    assert pod.check().status == 0
    pod.delete()


@EMBEDDED
@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize(
    ("pools", "code", "words"),
    [
        (["nowhere"], POOL, ("IP pool (nowhere) does not exist",)),
        (["blue", "grey"], POOL, ("IP pool (grey) does not exist",)),
        (["10.71.0.0/25"], POOL, ("IP pool (10.71.0.0/25) does not exist",)),
        (["pool6"], POOL, ("IP pool (pool6) is not an IPv4 pool",)),
        (["fd65::/112"], ANNOTATION, ("is not IPv4",)),
        ([], ANNOTATION, ("is an empty list",)),
        ("blue", ANNOTATION, ("is not JSON",)),
    ],
)
def test_unusable_pool_is_refused(
    make: MakePod, cluster_node: ClusterNode, kube: Kube, pools: Any, code: int, words: tuple[str, ...]
) -> None:
    """R2: this holds for annotations of the pod and of the namespace. The error names the annotation."""
    require_refused(make(notes={"ipv4pools": pools}), cluster_node, code, *words, f"{PREFIX}/ipv4pools of pod default/web-0")
    annotate(kube, f"{PODS}/web-0", ipv4pools=None)
    annotate(kube, NAMESPACE, ipv4pools=pools)
    pod = make()
    until = time.monotonic() + TIMEOUT_SECONDS
    while pod.call("ADD").status == 0:
        assert time.monotonic() < until
        pod.delete()
    require_refused(pod, cluster_node, code, *words, f"{PREFIX}/ipv4pools of namespace default")
    annotate(kube, NAMESPACE, ipv4pools=None)
    pod.add()
    pod.delete()


def test_annotation_chooses_the_families(make: MakePod, kube: Kube, cluster_node: ClusterNode) -> None:
    """A family that the network does not assign is possible. The network's pools of that family then apply."""
    with session(cluster_node.site) as store:
        put_pool(store, "blue6", "fd71::/112")
    pod = make(notes={"ipFamilies": ["IPv6"]}, ipam={"ipv6_pools": ["blue6"]})
    pod.add()
    assert [address[:6] for address in pod.addresses] == ["fd71::"]
    pod.delete()
    annotate(kube, f"{PODS}/web-0", ipFamilies=["IPv6", "IPv4"])
    pod.add()
    assert [address[:5] for address in pod.addresses] == ["10.65", "fd71:"]
    pod.delete()


@EMBEDDED
@pytest.mark.parametrize("notes", [{"ipFamilies": ["IPv6"]}, {"ipAddrs": ["fd65::9"]}, {"ipAddrsNoIpam": ["fd65::9"]}])
def test_mtu_too_small_for_the_chosen_family_is_refused(make: MakePod, cluster_node: ClusterNode, notes: Json) -> None:
    """The same MTU is valid for the network, which assigns only IPv4."""
    pod = make(notes=notes, ipam={"type": "svc-ipam"}, mtu=1000)
    require_refused(pod, cluster_node, 7, "an MTU of 1000 is too small for IPv6", "give at least 1280")
    pod.add(mtu=1280)
    pod.delete()


@EMBEDDED
@pytest.mark.parametrize(
    ("notes", "code", "words"),
    [
        (
            {"ipAddrs": ["10.99.0.1"]},
            UNAVAILABLE,
            ("'10.99.0.1' is not in any enabled IP pool", "ipAddrs of pod default/web-0"),
        ),
        ({"ipAddrs": ["10.65.0.9", "fd99::1"]}, UNAVAILABLE, ("'fd99::1' is not in any enabled IP pool",)),
        (
            {"ipAddrs": ["10.65.0.9"], "ipAddrsNoIpam": ["10.65.0.9"]},
            ANNOTATION,
            ("cannot be used together", "remove one of the two"),
        ),
        (
            {"ipAddrs": ["10.65.0.9"], "hwAddr": "x"},
            ANNOTATION,
            ("hwAddr of pod default/web-0 = 'x' is not a hardware address",),
        ),
        ({"ipAddrs": ["10.65.0.9"], "allowedSourcePrefixes": ["x"]}, ANNOTATION, ("allowedSourcePrefixes", "is not a CIDR")),
        ({"ipAddrs": "[" * 200_000}, ANNOTATION, ("is not JSON",)),
        ({"ipv4pools": ["x" * 200_000]}, ANNOTATION, ("has 200000 characters, as no pool's name",)),
        ({"ipAddrs": ["10.65.0.9"] * 15_000}, ANNOTATION, ("has 15000 addresses",)),
        ({"ipAddrs": ["10.65.0.09"], "floatingIPs": {}}, ANNOTATION, ("2 errors", "leading zeros", "is an object, not a list")),
    ],
)
def test_invalid_annotations_are_refused(
    make: MakePod, cluster_node: ClusterNode, kube: Kube, notes: Json, code: int, words: tuple[str, ...]
) -> None:
    """Nothing is kept. After a correction the same pod is attached."""
    pod = make(notes=notes)
    require_refused(pod, cluster_node, code, *words)
    assert len(pod.call("ADD").stdout) < 4000, "the error is copied into events"
    annotate(kube, f"{PODS}/web-0", **dict.fromkeys(notes))
    pod.add()
    pod.delete()


@EMBEDDED
def test_features_are_off_by_default(make: MakePod, cluster_node: ClusterNode) -> None:
    for number, (name, feature) in enumerate((("ipAddrsNoIpam", "ip_addrs_no_ipam"), ("floatingIPs", "floating_ips"))):
        pod = make(f"web-{number}", notes={name: ["203.0.113.7"]}, feature_control={})
        require_refused(pod, cluster_node, ANNOTATION, f"needs feature_control.{feature}")


@EMBEDDED
@pytest.mark.parametrize("change", ["disabled", "deleted", "another selector"])
def test_running_pod_keeps_its_address(make: MakePod, cluster_node: ClusterNode, change: str) -> None:
    """R10: this holds if the pool is disabled. A later pod gets an address of another one."""
    pod = make("web-0", "c0", notes={"ipAddrs": ["10.65.0.9"]})
    pod.add()
    key = ResourceKey("IPPool", "pool4")
    with session(cluster_node.site) as store:
        if change == "deleted":
            remove(store, key)
        else:
            put_pool(
                store, "pool4", "10.65.0.0/16", **({"disabled": True} if change == "disabled" else {"nodeSelector": "has(x)"})
            )
        put_pool(store, "next", "10.66.0.0/16")
    assert pod.check().status == 0
    assert pod.add() == pod.result
    later = make("web-1", "c1", notes={})
    attach_within(later, "10.66.")
    pod.delete()
    assert "10.65.0.9" not in audit([cluster_node]).allocations
    later.delete()
    assert remains([cluster_node]) == []


def test_endpoint_has_the_fields_for_policy_agents(make: MakePod, cluster_node: ClusterNode) -> None:
    """These are floating IPs without duplicates, source prefixes and traffic shaping. A second ADD writes the same."""
    notes = {
        "floatingIPs": ["198.51.100.7", "2001:db8:7::7", "198.51.100.7"], "allowedSourcePrefixes": ["192.0.2.0/24"],
        f"{DEFAULT.qos_prefix}/egressBandwidth": "5M", f"{DEFAULT.orch_domain}/ingress-bandwidth": "1M",
        f"{DEFAULT.qos_prefix}/dscp": "lots",
    }  # fmt: skip
    pod = make(notes=notes)
    for _ in range(2):
        called = pod.call("ADD")
        assert called.status == 0
        assert f"{DEFAULT.qos_prefix}/dscp = 'lots' is not a code point: it is left out" in called.stderr
        pod.result = called.output
        v4, v6 = pod.addresses
        spec = endpoint(cluster_node).spec
        assert spec["ipNATs"] == [
            {"internalIP": v4, "externalIP": "198.51.100.7"}, {"internalIP": v6, "externalIP": "2001:db8:7::7"},
        ]  # fmt: skip
        assert spec["allowSpoofedSourcePrefixes"] == ["192.0.2.0/24"]
        assert spec["qosControls"] == {
            "ingressBandwidth": 10**6, "ingressBurst": 1 << 32, "egressBandwidth": 5 * 10**6, "egressBurst": 1 << 32,
        }  # fmt: skip
        assert pod.check().status == 0
        make(container="c1").call("DEL")
    pod.config["ipam"] = {"type": "svc-ipam"}
    called = pod.call("ADD")
    assert "floating address 2001:db8:7::7 has no effect: the pod gets no IPv6 address" in called.stderr
    assert [nat["externalIP"] for nat in endpoint(cluster_node).spec["ipNATs"]] == ["198.51.100.7"]


def test_annotation_chooses_the_hardware_address(make: MakePod) -> None:
    pod = make(notes={"hwAddr": "0A:00:5E:00:53:01"})
    pod.add()
    (link,) = pod.netns.ip("link", "show", "dev", "eth0")
    assert link["address"] == pod.result["interfaces"][1]["mac"] == "0a:00:5e:00:53:01"
    assert pod.check().status == 0


def test_floating_addresses_of_the_namespace(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    """Those of the pod replace them. In the Kubernetes API they have no effect, and the log says so."""
    annotate(kube, NAMESPACE, floatingIPs=["198.51.100.7"])
    pod = make(notes={}, ipam={"type": "svc-ipam"})
    kept: list[str] = []
    until = time.monotonic() + TIMEOUT_SECONDS
    while not kept and time.monotonic() < until:  # events of namespaces may be late
        called = pod.call("ADD")
        assert called.status == 0, called
        kept = [nat["externalIP"] for nat in endpoint(cluster_node).spec.get("ipNATs", [])]
        if "floatingIPs of namespace default" in called.stderr:
            break
        if not kept:
            pod.delete()
    if cluster_node.site.config["datastore_type"] == "orch":
        assert "has no effect: with this datastore only annotations of the pod itself" in called.stderr
        return
    assert kept == ["198.51.100.7"]
    own = make("web-1", "c2", notes={"floatingIPs": ["198.51.100.8"]}, ipam={"type": "svc-ipam"})
    pod.delete()
    own.add()
    assert [nat["externalIP"] for nat in endpoint(cluster_node).spec["ipNATs"]] == ["198.51.100.8"]
