"""Section 2.8 and rules R3 to R5: what annotations of pods and namespaces choose, on each datastore."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.annotations import attach_within, endpoint
from harness.cluster_node import ClusterNode, audit
from harness.datastores import session
from harness.ipam import put_pool
from harness.kube import Kube
from harness.pod import Pod, refused
from harness.spec_rows import field, statement
from svc.names import DEFAULT

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

NAMESPACE = "/api/v1/namespaces/default"
MERGE = "application/merge-patch+json"
ANNOTATION, POOL, UNAVAILABLE = 112, 102, 103
DUAL = {"assign_ipv6": "true"}
NO_IPAM = {"feature_control": {"ip_addrs_no_ipam": True}}
FLOATING = {"feature_control": {"floating_ips": True}}
TIMEOUT_SECONDS = 20.0  # seconds


def notes(**given: Any) -> dict[str, str]:
    """Annotations in our domain, as JSON."""
    return {f"{DEFAULT.annotation_prefix}/{name}": json.dumps(value) for name, value in given.items()}


TOO_MANY = (
    (notes(ipAddrs=["10.65.3.1"], ipAddrsNoIpam=["10.65.3.1"]), "cannot be used together"),
    (notes(ipAddrs=["10.65.3.1", "10.65.3.2"]), "has two IPv4 addresses"),
    (notes(ipAddrsNoIpam=["fd65::1", "fd65::2"]), "has two IPv6 addresses"),
    (notes(ipAddrs=["10.65.3.1", "fd65::1", "10.65.3.2"]), "has 3 addresses"),
    (notes(ipAddrs=[]), "is an empty list"),
)


@pytest.fixture
def annotate(kube: Kube) -> Iterator[Callable[..., None]]:
    """Gives the namespace annotations; they are gone at the end."""
    names: set[str] = set()

    def patch(annotations: dict[str, str | None]) -> None:
        names.update(annotations)
        kube.call("PATCH", NAMESPACE, {"metadata": {"annotations": annotations}}, MERGE)

    yield patch
    patch(dict.fromkeys(names))


@pytest.fixture(autouse=True)
def pools(cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "blue", "10.71.0.0/24")
        put_pool(store, "green", "10.72.0.0/24", nodeSelector="has(nothing)")
        put_pool(store, "blue6", "fd71::/120")


@statement(
    "2.8",
    "ipv4pools",
    "The IPv4 pools to choose from: a JSON list of names or ranges.",
    "Read with `policy.type`, at every ADD.",
    choice="Annotations that the specification does not name (`ipFamilies`, `hwAddr`, `allowedSourcePrefixes`, and those that"
    " shape traffic) are those of the deployments that are taken over. One error lists all invalid ones, and nothing "
    "is assigned.",
)
@statement("2.8", "ipv6pools", "The same for IPv6.", "It does not switch IPv6 on: `ipam.assign_ipv6` and `ipFamilies` do.")
@statement(
    "3",
    "rank 1",
    "Annotations count more than the network configuration and node selectors.",
    "The pool that an annotation names is used, even if the other two say otherwise.",
)
@statement("4", "R3 netconf", "Pools of annotations replace those of the network configuration.", "Each family by itself.")
def test_annotation_chooses_the_pools(make: MakePod) -> None:
    chosen = notes(ipv4pools=["green"], ipv6pools=["fd71::/120"])
    pod = make(annotations=chosen, with_policy=True, ipam={**DUAL, "ipv4_pools": ["blue"]})
    pod.add()
    assert [address[:6] for address in pod.addresses] == ["10.72.", "fd71::"]
    refused(make("web-1", annotations=notes(ipv4pools=["nowhere"]), with_policy=True), POOL, "(nowhere) does not exist")
    refused(make("web-2", annotations=notes(ipv4pools="blue"), with_policy=True), ANNOTATION, "ipv4pools of pod default/web-2")


@statement(
    "2.8",
    "namespaces",
    "Annotations for pools and addresses may be on a namespace as well as on a pod.",
    "The same code reads both; an error says whose annotation it was.",
    choice="An address of a namespace goes to one pod at a time: the ADD of another one without an annotation of its own fails"
    " and names the holder. `floatingIPs` count for each pod, but in the API as datastore.",
)
@statement("4", "R3 namespace", "A namespace's pools hold for all its pods.", "For those that have no such annotation.")
@statement("4", "R3 pod", "Where both have the annotation, the pod's counts.", "The namespace's is not even looked at then.")
def test_annotation_of_the_pod_counts_more(make: MakePod, annotate: Callable[..., None]) -> None:
    pod = make(annotations={}, with_policy=True)
    annotate(notes(ipv4pools=["blue"]))
    attach_within(pod, "10.71.0.")
    other = make("web-1", annotations=notes(ipv4pools=["green"]), with_policy=True)
    other.add()
    assert other.addresses[0].startswith("10.72.0.")
    pod.delete()
    annotate(notes(ipAddrs=["10.71.0.77"]))
    attach_within(pod, "10.71.0.77")


@statement(
    "2.8",
    "ipAddrs",
    "The addresses of the pod, assigned through IPAM: they lie in a pool.",
    "Each from the enabled pool that contains it. The ADD fails if no pool does, or if another handle has the "
    "address; the error names the handle.",
    choice="They keep the order of the annotation. A family that the network does not assign is assigned all the same.",
)
@statement("4", "R4 priority", "Address annotations count more than those for pools.", "And more than `IP` of `CNI_ARGS`.")
def test_addresses_are_those_of_the_annotation(make: MakePod, cluster_node: ClusterNode) -> None:
    chosen = notes(ipAddrs=["10.65.3.77", "fd65::77"], ipv4pools=["blue"])
    pod = make(annotations=chosen, with_policy=True, args="IP=10.65.1.1")
    pod.add()
    assert pod.addresses == ["10.65.3.77", "fd65::77"]
    assert set(audit([cluster_node]).allocations) == {"10.65.3.77", "fd65::77"}
    assert pod.check().status == 0
    refused(make("web-1", annotations=notes(ipAddrs=["203.0.113.7"]), with_policy=True), UNAVAILABLE, "203.0.113.7")


@statement(
    "2.8",
    "ipAddrsNoIpam",
    "Addresses that no IPAM knows of; the feature has to be on.",
    "They are wired like others. DEL frees nothing, since nothing was taken.",
)
@statement(
    "4",
    "R5 conflicts",
    "With it the user is responsible for conflicts and routes.",
    "A log line of level WARNING names an address that IPAM could assign, or has assigned, to another container. svc "
    "makes no routes between nodes.",
    choice="One node has one route to an address: a second pod with it on the same node is refused by the kernel.",
)
@field("feature_control", "What is not in it is off.")
@field("feature_control.ip_addrs_no_ipam", "Without it the annotation is refused with code 112.")
def test_addresses_may_bypass_ipam(make: MakePod, cluster_node: ClusterNode) -> None:
    chosen = notes(ipAddrsNoIpam=["10.65.3.78", "2001:db8:9::1"])
    pod = make(annotations=chosen, with_policy=True, **NO_IPAM)
    called = pod.call("ADD")
    assert [ip["address"] for ip in called.output["ips"]] == ["10.65.3.78/32", "2001:db8:9::1/128"]
    assert "WARNING" in called.stderr
    assert audit([cluster_node]).allocations == {}
    refused(make("web-1", annotations=chosen, with_policy=True), ANNOTATION, "feature_control.ip_addrs_no_ipam")


@statement("4", "R4 together", "`ipAddrs` and `ipAddrsNoIpam` exclude each other.", "Code 112; nothing is assigned.")
@statement("4", "R4 families", "Either has one IPv4 address, one IPv6 address, or one of each.", "Anything else is refused.")
@statement("8", "addresses", "One IPv4 and one IPv6 address in `ipAddrs` or `ipAddrsNoIpam`, at most.", "As R4 says.")
def test_one_address_of_each_family_at_most(make: MakePod, cluster_node: ClusterNode) -> None:
    for number, (chosen, said) in enumerate(TOO_MANY):
        refused(make(f"web-{number}", annotations=chosen, with_policy=True, **NO_IPAM), ANNOTATION, said)
    assert audit([cluster_node]).entries() == []


@statement(
    "2.8",
    "floatingIPs",
    "Further addresses by which the pod is reached; the feature has to be on.",
    "They are on the endpoint (`ipNATs`), each beside the pod's address of its family; who translates is not this plugin.",
)
@statement(
    "4",
    "R5 floating",
    "A floating address is advertised if it belongs to a pool; both features need admission control.",
    "Whether it does is not asked: advertising is not this plugin's. Both features are off unless the network says otherwise.",
)
@field("feature_control.floating_ips", "Without it the annotation is refused with code 112.")
def test_floating_addresses_are_on_the_endpoint(make: MakePod, cluster_node: ClusterNode) -> None:
    chosen = notes(floatingIPs=["198.51.100.7", "198.51.100.7"])
    pod = make(annotations=chosen, with_policy=True, **FLOATING)
    for _ in range(2):
        pod.add()
        expected = [{"internalIP": pod.addresses[0], "externalIP": "198.51.100.7"}]
        assert endpoint(cluster_node).spec["ipNATs"] == expected
    refused(make("web-1", annotations=chosen, with_policy=True), ANNOTATION, "feature_control.floating_ips")
