"""Addresses chosen by annotations of real pods and namespaces, through the executable, on each datastore."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, books, faults, remains
from harness.ipam import put_pool, put_reservation, remove, wipe
from harness.kube import Kube
from harness.netns import Netns
from harness.orch import PODS
from harness.pod import Pod
from harness.site import OrchSite, Site, session
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.model.keys import AffinityQuery, BlockQuery, HandleQuery, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT, Names

pytestmark = pytest.mark.root

Json = dict[str, Any]
MakePod = Callable[..., Pod]

NAMESPACE = "/api/v1/namespaces/default"
PREFIX = DEFAULT.annotation_prefix
POOL, UNAVAILABLE, ANNOTATION = 102, 103, 112
BOTH = {"assign_ipv6": "true"}
ALL = {"ip_addrs_no_ipam": True, "floating_ips": True}
PATIENCE = 20.0  # seconds
MERGE = "application/merge-patch+json"


class EmbeddedSite:
    """The store on the node itself; pods are an API server's all the same."""

    names: Names = DEFAULT

    def __init__(self, state_dir: Path, port: int) -> None:
        self.config: Json = {"datastore_type": "embedded"}
        self.port = port
        self._file = state_dir / EMBEDDED_FILE

    def open(self) -> Backend:
        return EmbeddedStore(self._file)

    def add_node(self, name: str, **labels: str) -> None:
        """Whose store it is needs no entry."""

    def add_pod(self, name: str, node: str = "node1", **spec: Any) -> str:
        return ""

    def clear(self) -> None:
        kinds = ("IPPool", "IPReservation", "WorkloadEndpoint", "ClusterInformation")
        with session(self) as store:
            wipe(store, BlockQuery(), HandleQuery(), AffinityQuery(), *map(ResourceQuery, kinds))


@pytest.fixture(scope="module", params=["etcdv3", "orch", "embedded"])
def lasting_node(
    request: pytest.FixtureRequest, orch_site: OrchSite, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterNode]:
    """It reaches the API server, whichever datastore it is on."""
    directory = tmp_path_factory.mktemp("node") / "node"
    sites: dict[str, Callable[[], Site]] = {
        "etcdv3": lambda: request.getfixturevalue("etcd_site"),
        "orch": lambda: orch_site,
        "embedded": lambda: EmbeddedSite(directory / "state", orch_site.port),
    }
    with ClusterNode(directory, "node1", sites[request.param](), orch_site) as node:
        yield node


@pytest.fixture
def make(cluster_node: ClusterNode, orch_site: OrchSite, kube: Kube, sandbox: Callable[[], Netns]) -> Iterator[MakePod]:
    """Makes pods with annotations, and what attaches them; what is left of them is detached afterwards."""
    made: list[Pod] = []

    def pod(name: str = "web-0", container: str = "c1", *, notes: Json | None = None, args: str = "", **config: Any) -> Pod:
        if notes is not None:
            put_pod(kube, name, notes)
        arguments = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}{args}"
        access = {"policy": {"type": "orch"}, "orch": {"kubeconfig": str(orch_site.kubeconfig)}, "feature_control": ALL}
        made.append(cluster_node.pod(sandbox(), container, args=arguments, **{**access, "ipam": BOTH, **config}))
        return made[-1]

    try:
        yield pod
        for each in made:
            each.delete()
    finally:
        annotate(kube, NAMESPACE, **dict.fromkeys(("ipv4pools", "ipFamilies", "ipAddrs")))
        kube.call("DELETE", f"{PODS}?gracePeriodSeconds=0")


def spelled(notes: Json) -> dict[str, Any]:
    """With the prefix, unless there is one; what is no text becomes JSON, and nothing stays nothing."""
    return {
        name if "/" in name else f"{PREFIX}/{name}": text if text is None or isinstance(text, str) else json.dumps(text)
        for name, text in notes.items()
    }


def put_pod(kube: Kube, name: str, notes: Json) -> None:
    spec = {"nodeName": "node1", "automountServiceAccountToken": False, "containers": [{"name": "c", "image": "x"}]}
    metadata = {"name": name, "annotations": spelled(notes)}
    kube.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def annotate(kube: Kube, path: str, **notes: Any) -> None:
    kube.call("PATCH", path, {"metadata": {"annotations": spelled(notes)}}, MERGE)


def endpoint(node: ClusterNode) -> Resource:
    """The only one."""
    with session(node.site) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(entry.value, Resource)
    return entry.value


def attach_within(pod: Pod, network: str) -> None:
    """Again and again, until the pod has an address that begins so: what is said of namespaces arrives within moments."""
    until = time.monotonic() + PATIENCE
    pod.add()
    while not pod.addresses[0].startswith(network):
        assert time.monotonic() < until, pod.addresses
        pod.delete()
        pod.add()


def demand_refused(pod: Pod, node: ClusterNode, code: int, *words: str) -> None:
    """With these words, and nothing is left of it."""
    error = pod.failed("ADD").output
    assert error["code"] == code, error
    for word in words:
        assert word in f"{error['msg']}: {error['details']}", error
    assert remains([node]) == []


def host_routes(pod: Pod) -> list[str]:
    """To single addresses, by the pod's own interface."""
    routes = [route for family in ("-4", "-6") for route in pod.node.netns.ip(family, "route", "show", "dev", pod.host_name)]
    return sorted(route["dst"] for route in routes if "/" not in route["dst"])


@pytest.fixture
def colours(cluster_node: ClusterNode) -> None:
    """Further pools; `grey` is out of use, `old` is nobody's by itself."""
    with session(cluster_node.site) as store:
        put_pool(store, "blue", "10.71.0.0/24")
        put_pool(store, "green", "10.72.0.0/24")
        put_pool(store, "grey", "10.73.0.0/24", disabled=True)
        put_pool(store, "old", "10.74.0.0/24", nodeSelector="has(nothing)")


def test_without_annotations_all_available_pools_serve(make: MakePod, cluster_node: ClusterNode) -> None:
    """R1: one after the other, and none that does not select the node."""
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
    assert faults([cluster_node]) == []


@pytest.mark.usefixtures("colours")
def test_annotations_come_before_the_network_and_selectors(make: MakePod, kube: Kube) -> None:
    """The pod's before the namespace's (R3), by name or by CIDR, whatever the pool selects."""
    pod = make(notes={})
    pod.config["ipam"] = {**pod.config["ipam"], "ipv4_pools": ["blue"]}
    pod.add()
    assert pod.addresses[0].startswith("10.71.0.")
    pod.delete()
    annotate(kube, NAMESPACE, ipv4pools=["10.72.0.0/24"])
    attach_within(pod, "10.72.0.")
    assert pod.addresses[1].startswith("fd65::"), "the other family is as before"
    pod.delete()
    annotate(kube, f"{PODS}/web-0", ipv4pools=["old"])
    pod.add()
    assert pod.addresses[0].startswith("10.74.0.")
    assert pod.check().status == 0
    pod.delete()


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
def test_pool_that_cannot_be_is_refused(
    make: MakePod, cluster_node: ClusterNode, kube: Kube, pools: Any, code: int, words: tuple[str, ...]
) -> None:
    """R2, on the pod and on the namespace; both name the annotation."""
    demand_refused(make(notes={"ipv4pools": pools}), cluster_node, code, *words, f"{PREFIX}/ipv4pools of pod default/web-0")
    annotate(kube, f"{PODS}/web-0", ipv4pools=None)
    annotate(kube, NAMESPACE, ipv4pools=pools)
    pod = make()
    until = time.monotonic() + PATIENCE
    while pod.call("ADD").status == 0:
        assert time.monotonic() < until
        pod.delete()
    demand_refused(pod, cluster_node, code, *words, f"{PREFIX}/ipv4pools of namespace default")
    annotate(kube, NAMESPACE, ipv4pools=None)
    pod.add()
    pod.delete()


def test_families_are_chosen(make: MakePod, kube: Kube, cluster_node: ClusterNode) -> None:
    """Also one that the network does not assign; then the network's pools of that family count."""
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


def test_given_addresses(make: MakePod, cluster_node: ClusterNode) -> None:
    """In the order of the annotation; the host has its routes, and what is said again is the same."""
    pod = make(notes={"ipAddrs": ["fd65::77", "10.65.3.77"], "ipv4pools": ["nowhere"]}, args=";IP=10.65.1.1")
    pod.add()
    assert [ip["address"] for ip in pod.result["ips"]] == ["fd65::77/128", "10.65.3.77/32"]
    assert "routes" not in pod.result
    assert host_routes(pod) == ["10.65.3.77", "fd65::77"]
    assert pod.netns.addresses("eth0") == ["10.65.3.77/32", "fd65::77/128"]
    assert endpoint(cluster_node).spec["ipNetworks"] == ["fd65::77/128", "10.65.3.77/32"]
    assert books([cluster_node]).allocations == {"10.65.3.77": "net.c1", "fd65::77": "net.c1"}
    assert faults([cluster_node]) == []
    assert pod.check().status == 0
    assert pod.add() == pod.result
    pod.delete()
    assert remains([cluster_node]) == []
    called = pod.call("ADD")
    assert f"CNI_ARGS IP = '10.65.1.1' is set aside: {PREFIX}/ipAddrs of pod default/web-0" in called.stderr


def test_addresses_are_the_first_interfaces(make: MakePod, cluster_node: ClusterNode) -> None:
    """Another one of the pod gets its own from a pool."""
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
    assert faults([cluster_node]) == []
    second.delete()


def test_given_address_may_be_one_that_is_set_aside(make: MakePod, cluster_node: ClusterNode) -> None:
    """Reservations keep automatic assignment away, nobody else; first and last addresses are like others."""
    with session(cluster_node.site) as store:
        put_reservation(store, "set-aside", "10.65.9.0/24")
    for number, address in enumerate(("10.65.9.9", "10.65.0.0", "10.65.255.255")):
        pod = make(f"web-{number}", f"c{number}", notes={"ipAddrs": [address]})
        pod.add()
        assert pod.addresses == [address]


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
        ({"ipAddrs": ["10.65.0.9"] * 15_000}, ANNOTATION, ("has 15000 addresses",)),
        ({"ipAddrs": ["10.65.0.09"], "floatingIPs": {}}, ANNOTATION, ("2 faults", "leading zeros", "is an object, not a list")),
    ],
)
def test_faulty_annotations_are_refused(
    make: MakePod, cluster_node: ClusterNode, kube: Kube, notes: Json, code: int, words: tuple[str, ...]
) -> None:
    """Nothing is kept, and once they are corrected the same pod is attached."""
    pod = make(notes=notes)
    demand_refused(pod, cluster_node, code, *words)
    annotate(kube, f"{PODS}/web-0", **dict.fromkeys(notes))
    pod.add()
    pod.delete()


def test_features_are_off_by_default(make: MakePod, cluster_node: ClusterNode) -> None:
    for number, (name, feature) in enumerate((("ipAddrsNoIpam", "ip_addrs_no_ipam"), ("floatingIPs", "floating_ips"))):
        pod = make(f"web-{number}", notes={name: ["203.0.113.7"]}, feature_control={})
        demand_refused(pod, cluster_node, ANNOTATION, f"needs feature_control.{feature}")


def test_address_of_another_pod_is_refused(make: MakePod, cluster_node: ClusterNode) -> None:
    """It stays that pod's, whose attachment stands as before."""
    first = make("web-0", "c0", notes={"ipAddrs": ["10.65.0.9"]})
    first.add()
    second = make("web-1", "c1", notes={"ipAddrs": ["fd65::9", "10.65.0.9"]})
    error = second.failed("ADD").output
    assert error["code"] == UNAVAILABLE
    assert "'10.65.0.9' is already assigned" in error["msg"]
    assert "net.c0" in error["details"]
    assert f"{PREFIX}/ipAddrs of pod default/web-1" in error["details"]
    assert books([cluster_node]).allocations == {"10.65.0.9": "net.c0"}
    assert first.check().status == 0
    first.delete()
    second.add()
    assert second.addresses == ["fd65::9", "10.65.0.9"]


def test_one_of_many_gets_the_address(make: MakePod, cluster_node: ClusterNode) -> None:
    """All ask at once, each with an address of its own besides: whoever is refused keeps neither."""
    pods = [make(f"web-{number}", f"c{number}", notes={"ipAddrs": [f"fd65::a{number}", "10.65.0.9"]}) for number in range(8)]
    with ThreadPoolExecutor(len(pods)) as threads:
        called = list(threads.map(lambda pod: pod.call("ADD"), pods))
    assert sorted(each.status == 0 for each in called) == [False] * 7 + [True]
    assert {each.output["code"] for each in called if each.status} == {UNAVAILABLE}
    assert len(books([cluster_node]).allocations) == 2
    assert faults([cluster_node]) == []


def test_agent_is_not_needed(make: MakePod, cluster_node: ClusterNode, orch_site: OrchSite, tmp_path: Path) -> None:
    """The executable does it all by itself."""
    first = make("web-0", "c0", notes={"ipAddrs": ["10.65.0.9"], "hwAddr": "0a:00:5e:00:53:01"})
    second = make("web-1", "c1", notes={"ipAddrsNoIpam": ["203.0.113.9"]})
    with ClusterNode(tmp_path / "node", "node1", cluster_node.site, orch_site) as node:
        if isinstance(cluster_node.site, EmbeddedSite):
            node.apply_pools()
        assert node.stop_agent() == 0
        for pod, address in ((first.copy(node=node), "10.65.0.9"), (second.copy(node=node), "203.0.113.9")):
            pod.add()
            assert pod.addresses == host_routes(pod) == [address]
            assert pod.add() == pod.result
            assert pod.check().status == 0
            pod.delete()


def test_namespace_may_give_the_address(make: MakePod, kube: Kube) -> None:
    """To one pod at a time; another one needs an annotation of its own."""
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
    """Whether or not the earlier one's DEL has come: it comes late here, and takes nothing away."""
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
    assert faults([cluster_node]) == []


def test_next_sandbox_frees_what_the_earlier_one_had(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    first = make(container="c1", notes={})
    first.add()
    annotate(kube, f"{PODS}/web-0", ipAddrs=["10.65.0.99"])
    second = make(container="c2")
    second.add()
    assert books([cluster_node]).allocations == {"10.65.0.99": "net.c2"}
    first.delete()
    assert second.check().status == 0


def test_refused_sandbox_leaves_the_earlier_one_alone(make: MakePod, cluster_node: ClusterNode, kube: Kube) -> None:
    first = make(container="c1", notes={"ipAddrs": ["10.65.0.9"]})
    first.add()
    annotate(kube, f"{PODS}/web-0", ipAddrs=["10.65.0.01"])
    assert make(container="c2").failed("ADD").output["code"] == ANNOTATION
    assert first.check().status == 0
    assert faults([cluster_node]) == []


def test_addresses_that_bypass_ipam(make: MakePod, cluster_node: ClusterNode) -> None:
    """The host has its routes; IPAM knows nothing of them."""
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
    assert (books([cluster_node]).allocations, books([cluster_node]).handles) == ({}, {})
    assert faults([cluster_node]) == []
    assert pod.check().status == 0
    assert pod.add() == pod.result
    valid: Json = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}
    assert pod.call("GC", **valid).status == 0
    assert pod.check().status == 0
    pod.delete()
    assert remains([cluster_node]) == []


def test_address_that_bypasses_ipam_may_be_somebodys(make: MakePod, cluster_node: ClusterNode) -> None:
    """It is told; on one node the kernel does not route one address to two pods. Whose it is it stays."""
    first = make("web-0", "c0", notes={"ipAddrs": ["10.65.0.9"]})
    first.add()
    called = make("web-1", "c1", notes={"ipAddrsNoIpam": ["10.65.0.9"]}).call("ADD")
    assert called.output["code"] == 106
    assert "the host already has a route to 10.65.0.9" in called.output["msg"]
    assert "address 10.65.0.9 bypasses IPAM, where net.c0 holds it: both will answer for it" in called.stderr
    assert first.check().status == 0
    assert faults([cluster_node]) == []


def test_endpoint_has_what_policy_agents_need(make: MakePod, cluster_node: ClusterNode) -> None:
    """Floating addresses without their doubles, also after the next ADD; prefixes, and how traffic is shaped."""
    notes = {
        "floatingIPs": ["198.51.100.7", "2001:db8:7::7", "198.51.100.7"], "allowedSourcePrefixes": ["192.0.2.0/24"],
        f"{DEFAULT.qos_prefix}/egressBandwidth": "5M", f"{DEFAULT.orch_domain}/ingress-bandwidth": "1M",
        f"{DEFAULT.qos_prefix}/dscp": "lots",
    }  # fmt: skip
    pod = make(notes=notes)
    for _ in range(2):
        called = pod.call("ADD")
        assert called.status == 0
        assert f"{DEFAULT.qos_prefix}/dscp = 'lots' is no code point: it is left out" in called.stderr
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


def test_hardware_address_is_chosen(make: MakePod) -> None:
    pod = make(notes={"hwAddr": "0A:00:5E:00:53:01"})
    pod.add()
    (link,) = pod.netns.ip("link", "show", "dev", "eth0")
    assert link["address"] == pod.result["interfaces"][1]["mac"] == "0a:00:5e:00:53:01"
    assert pod.check().status == 0


@pytest.mark.parametrize("change", ["disabled", "deleted", "another selector"])
def test_running_pod_keeps_its_address(make: MakePod, cluster_node: ClusterNode, change: str) -> None:
    """R10: whatever becomes of the pool; who comes later gets an address of another one."""
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
    assert "10.65.0.9" not in books([cluster_node]).allocations
    later.delete()
    assert remains([cluster_node]) == []
