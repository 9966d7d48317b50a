"""Section 2.7 and rules R8 and R9: addresses of Debian's host-local, with endpoints on each datastore."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, audit
from harness.datastores import OrchSite
from harness.host_local import data_dir, held, offer, section
from harness.kube import Kube
from harness.orch import NODES
from harness.pod import Pod, refused
from harness.spec_rows import field, statement
from svc.names import DEFAULT

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

V4, V6 = "10.71.0.0/24", "fd71::/112"
NEXT_HOP, NEXT_HOP_6 = "169.254.1.1", "fe80::ecee:eeff:feee:eeee"
EMBEDDED = pytest.mark.parametrize("site", ["embedded"], indirect=True, scope="module")
ON_ORCH = pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def base_node(base_node: ClusterNode) -> ClusterNode:
    offer(base_node)
    return base_node


@pytest.fixture
def make_with_ranges(cluster_node: ClusterNode, orch_site: OrchSite, make: MakePod) -> MakePod:
    """Return a function that makes pods with addresses of these ranges, each in its own array."""

    def pod(web: str, *ranges: str, **more: Any) -> Pod:
        config = {"orch": {"kubeconfig": str(orch_site.kubeconfig)}, **more.pop("config", {})}
        annotations = more.pop("annotations", None)
        return make(web, annotations=annotations, ipam=section(cluster_node, *ranges, **more), **config)

    return pod


@pytest.fixture
def pod_cidrs(cluster_node: ClusterNode, kube: Kube) -> Iterator[tuple[str, ...]]:
    """Return the names of three Kubernetes nodes: with an IPv4 range, with an IPv6 range, and with both."""
    ranges = {"ranged4": ["10.81.0.0/24"], "ranged6": ["fd81::/112"], "ranged": ["10.82.0.0/24", "fd82::/112"]}
    for name, cidrs in ranges.items():
        spec = {"podCIDR": cidrs[0], "podCIDRs": cidrs}
        kube.call("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})
    yield tuple(ranges)
    for name in ranges:
        kube.call("DELETE", f"{NODES}/{name}")


def routes(pod: Pod) -> set[tuple[str, str]]:
    """Return destination and next hop of the routes that svc made for the container."""
    found = [route for family in ("-4", "-6") for route in pod.netns.ip(family, "route")]
    return {(route["dst"], route["gateway"]) for route in found if "gateway" in route}


@field(
    "ipam.ranges",
    "svc executes the real host-local plugin, which reads the section unchanged and assigns an address of each array.",
)
@statement(
    "2.7",
    "gateway",
    "The `gateway` of a range has no effect, and can be omitted.",
    "No route uses it.",
    choice="host-local reads it. It reserves that address, or without it the first one, and refuses a value that is not an "
    "address.",
)
def test_each_array_of_ranges_gives_an_address(make_with_ranges: MakePod, cluster_node: ClusterNode) -> None:
    pod = make_with_ranges("web-0", V4, V6)
    pod.config["ipam"]["ranges"][0][0]["gateway"] = "10.71.0.99"
    pod.add()
    v4, v6 = pod.addresses
    assert (v4.startswith("10.71.0."), v6.startswith("fd71::")) == (True, True)
    assert set(held(cluster_node)) == {v4, v6}
    assert audit([cluster_node]).allocations == {}, "the IPAM of svc assigned an address"
    assert routes(pod) == {("default", NEXT_HOP), ("default", NEXT_HOP_6)}
    pod.delete()
    assert held(cluster_node) == {}


@field(
    "ipam.subnet",
    "A CIDR, or one of the node's `spec.podCIDRs`: `usePodCidr` is the IPv4 one, `usePodCidrIPv6` the IPv6 one.",
    choice="The words are not case-sensitive, and two CIDRs of one family are refused. A DEL does not need them.",
)
@field("orch.node_name", "It is read only for its pod CIDRs; without it the node of the ADD is read.")
def test_range_of_the_node_is_used(make_with_ranges: MakePod, pod_cidrs: tuple[str, ...], orch_site: OrchSite) -> None:
    kubeconfig = str(orch_site.kubeconfig)
    four, six, both = ({"orch": {"kubeconfig": kubeconfig, "node_name": name}} for name in pod_cidrs)
    pod = make_with_ranges("web-0", "usePodCidr", config=four)
    pod.add()
    assert pod.addresses[0].startswith("10.81.0.")
    pod.delete(orch={"kubeconfig": kubeconfig, "node_name": "nowhere"})
    other = make_with_ranges("web-1", config=six, subnet="usepodcidripv6")
    other.add()
    assert other.addresses[0].startswith("fd81::")
    refused(make_with_ranges("web-2", "usePodCidr", config=six), 111, "node 'ranged6' has no IPv4 pod CIDR")
    dual = make_with_ranges("web-4", "usePodCidr", "usePodCidrIPv6", config=both)
    dual.add()
    assert [address.rpartition("." if "." in address else "::")[0] for address in dual.addresses] == ["10.82.0", "fd82"]
    plain = make_with_ranges("web-3", subnet=V4)
    plain.add()
    assert plain.addresses[0].startswith("10.71.0.")


@statement(
    "4",
    "R8 default routes",
    "Without `routes` the container has a default route for each of its families.",
    "The routes use the link-local next hop, as with the IPAM of svc.",
)
@pytest.mark.parametrize(
    ("ranges", "expected"), [((V4,), {("default", NEXT_HOP)}), ((V6,), {("default", NEXT_HOP_6)})], ids=["IPv4", "IPv6"]
)
def test_each_family_has_its_default_route(
    make_with_ranges: MakePod, ranges: tuple[str, ...], expected: set[tuple[str, str]]
) -> None:
    pod = make_with_ranges("web-0", *ranges)
    pod.add()
    assert routes(pod) == expected


@field(
    "ipam.routes",
    "`dst` applies, and `gw` has no effect.",
    choice="Routes of a family without an address of the container are omitted.",
)
@statement(
    "4",
    "R8 routes",
    "With `routes` the container has exactly these, and all use the plugin's link-local address.",
    "The address is 169.254.1.1 or `fe80::ecee:eeff:feee:eeee`.",
)
@field("include_default_routes", "They precede the configured ones, for each family of the container.")
def test_configured_routes_are_the_only_ones(make_with_ranges: MakePod) -> None:
    given = [{"dst": "10.9.0.0/16", "gw": "none of anybody's business"}, {"dst": "fd09::/64", "gw": "fd71::1"}]
    pod = make_with_ranges("web-0", V4, routes=given)
    pod.add()
    assert routes(pod) == {("10.9.0.0/16", NEXT_HOP)}
    pod.delete()
    pod.add(include_default_routes=True)
    assert routes(pod) == {("10.9.0.0/16", NEXT_HOP), ("default", NEXT_HOP)}


@field(
    "ipam.dataDir",
    "The directory of host-local. svc records it for each attachment, so that DEL uses it even if the network changes.",
)
def test_addresses_are_stored_in_the_configured_directory(make_with_ranges: MakePod, cluster_node: ClusterNode) -> None:
    pod = make_with_ranges("web-0", V4)
    pod.add()
    assert (data_dir(cluster_node) / "net" / pod.addresses[0]).exists()
    pod.config["ipam"]["dataDir"] = str(data_dir(cluster_node).with_name("elsewhere"))
    pod.delete()
    assert held(cluster_node) == {}


@statement(
    "4",
    "R8 only subnet",
    "`usePodCidr` and `usePodCidrIPv6` are not valid in `rangeStart` and `rangeEnd`.",
    "The network configuration is refused.",
)
def test_pod_cidr_words_are_only_valid_for_subnets(make_with_ranges: MakePod) -> None:
    for key in ("rangeStart", "rangeEnd"):
        pod = make_with_ranges(f"web-{key[5:].lower()}", V4)
        pod.config["ipam"]["ranges"][0][0][key] = "usePodCidr"
        refused(pod, 7, f"{key} = 'usePodCidr'", "for subnet alone")


@ON_ORCH
def test_add_is_the_same_with_the_variable(
    make_with_ranges: MakePod, orch_site: OrchSite, pod_cidrs: tuple[str, ...], tmp_path: Path
) -> None:
    pod = make_with_ranges("web-0", "usePodCidr")
    pod.config["orch"] = {**pod.config["orch"], "node_name": pod_cidrs[0]}
    pod.add()
    pod.delete()
    with ClusterNode(tmp_path / "other", "node1", orch_site) as other:
        offer(other)
        other.stop_agent()
        other.start_agent(USE_POD_CIDR="true")
        same = pod.copy(node=other)
        same.add()
        assert same.addresses[0].startswith("10.81.0.")
        same.delete()


@EMBEDDED
@statement(
    "5",
    "5.3 nodes",
    "With `usePodCidr` or `usePodCidrIPv6` the plugin needs the right to read nodes.",
    "The right is `get` of nodes, in addition to those that the policy type needs.",
)
def test_range_of_the_node_needs_the_right_to_read_nodes(
    make_with_ranges: MakePod, pod_cidrs: tuple[str, ...], kube: Kube, rights: Callable[..., None], tmp_path: Path
) -> None:
    kubeconfig = kube.kubeconfig(tmp_path / "kubeconfig", "token-of-reader")
    access = {"orch": {"kubeconfig": str(kubeconfig), "node_name": pod_cidrs[0]}}
    rights(namespaces=["get", "list", "watch"])
    pod = make_with_ranges("web-0", "usePodCidr", config=access)
    refused(pod, 111, 'cannot get resource "nodes"')
    rights(namespaces=["get", "list", "watch"], nodes=["get"])
    pod.add()
    assert pod.addresses[0].startswith("10.81.0.")


@statement(
    "4",
    "R8 own IPAM",
    "Features that need the plugin's own IPAM do not work with host-local.",
    "A pod that requests a pool or an address is refused, and so is a network that names pools.",
)
def test_features_of_the_ipam_of_svc_are_refused(make_with_ranges: MakePod, cluster_node: ClusterNode) -> None:
    policy = {"policy": {"type": "orch"}}
    for number, name in enumerate(("ipv4pools", "ipAddrs")):
        annotations = {f"{DEFAULT.annotation_prefix}/{name}": '["10.65.0.0/16"]' if number == 0 else '["10.65.0.9"]'}
        refused(make_with_ranges(f"web-{number}", V4, config=policy, annotations=annotations), 112, name, "host-local")
    refused(make_with_ranges("web-2", V4, ipv4_pools=["pool4"]), 7, "ipam.ipv4_pools", "needs the IPAM of svc")
    assert held(cluster_node) == {}
