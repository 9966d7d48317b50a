"""Section 2.8 and rules R3 to R5: settings that annotations of pods and namespaces make, on each datastore."""

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
TIMEOUT_SECONDS = 20.0


def annotations(**given: Any) -> dict[str, str]:
    """Return the annotations as JSON, with the prefix of svc."""
    return {f"{DEFAULT.annotation_prefix}/{name}": json.dumps(value) for name, value in given.items()}


TOO_MANY = (
    (annotations(ipAddrs=["10.65.3.1"], ipAddrsNoIpam=["10.65.3.1"]), "cannot be used together"),
    (annotations(ipAddrs=["10.65.3.1", "10.65.3.2"]), "has two IPv4 addresses"),
    (annotations(ipAddrsNoIpam=["fd65::1", "fd65::2"]), "has two IPv6 addresses"),
    (annotations(ipAddrs=["10.65.3.1", "fd65::1", "10.65.3.2"]), "has 3 addresses"),
    (annotations(ipAddrs=[]), "is an empty list"),
)


@pytest.fixture
def annotate(kube: Kube) -> Iterator[Callable[..., None]]:
    """Return a function that sets annotations of the namespace. They are removed at the end."""
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
    "Each ADD reads the annotations if `policy.type` is set.",
    choice="Annotations that the specification does not name (`ipFamilies`, `hwAddr`, `allowedSourcePrefixes`, and those that"
    " shape traffic) are those of existing deployments that svc takes over. One error lists all invalid ones, and nothing "
    "is assigned.",
)
@statement("2.8", "ipv6pools", "The same for IPv6.", "It does not switch IPv6 on: `ipam.assign_ipv6` and `ipFamilies` do.")
@statement(
    "3",
    "rank 1",
    "Annotations override the network configuration and node selectors.",
    "The pool that an annotation names is used, even if the other two name other pools.",
)
@statement(
    "4",
    "R3 netconf",
    "Pools of annotations replace those of the network configuration.",
    "This applies to each family separately.",
)
def test_annotation_chooses_the_pools(make: MakePod) -> None:
    chosen = annotations(ipv4pools=["green"], ipv6pools=["fd71::/120"])
    pod = make(annotations=chosen, with_policy=True, ipam={**DUAL, "ipv4_pools": ["blue"]})
    pod.add()
    assert [address[:6] for address in pod.addresses] == ["10.72.", "fd71::"]
    refused(make("web-1", annotations=annotations(ipv4pools=["nowhere"]), with_policy=True), POOL, "(nowhere) does not exist")
    refused(
        make("web-2", annotations=annotations(ipv4pools="blue"), with_policy=True), ANNOTATION, "ipv4pools of pod default/web-2"
    )


@statement(
    "2.8",
    "namespaces",
    "Annotations for pools and addresses may be on a namespace as well as on a pod.",
    "An error names the object with the annotation.",
    choice="An address of a namespace goes to one pod at a time. The ADD of another pod without its own annotation fails"
    " and names the holder. `floatingIPs` apply to each pod, except with the Kubernetes API as the datastore.",
)
@statement("4", "R3 namespace", "A namespace's pools apply to all its pods.", "They apply to pods without such an annotation.")
@statement("4", "R3 pod", "If both have the annotation, the pod's applies.", "That of the namespace is not read then.")
def test_annotation_of_the_pod_overrides_that_of_the_namespace(make: MakePod, annotate: Callable[..., None]) -> None:
    pod = make(annotations={}, with_policy=True)
    annotate(annotations(ipv4pools=["blue"]))
    attach_within(pod, "10.71.0.")
    other = make("web-1", annotations=annotations(ipv4pools=["green"]), with_policy=True)
    other.add()
    assert other.addresses[0].startswith("10.72.0.")
    pod.delete()
    annotate(annotations(ipAddrs=["10.71.0.77"]))
    attach_within(pod, "10.71.0.77")


@statement(
    "2.8",
    "ipAddrs",
    "The addresses of the pod, assigned through IPAM: they lie in a pool.",
    "Each from the enabled pool that contains it. The ADD fails if no pool does, or if another handle has the "
    "address; the error names the handle.",
    choice="They keep the order of the annotation. A family that the network does not assign is assigned all the same.",
)
@statement("4", "R4 priority", "Address annotations override those for pools.", "They also override `IP` of `CNI_ARGS`.")
def test_annotation_requests_addresses(make: MakePod, cluster_node: ClusterNode) -> None:
    chosen = annotations(ipAddrs=["10.65.3.77", "fd65::77"], ipv4pools=["blue"])
    pod = make(annotations=chosen, with_policy=True, args="IP=10.65.1.1")
    pod.add()
    assert pod.addresses == ["10.65.3.77", "fd65::77"]
    assert set(audit([cluster_node]).allocations) == {"10.65.3.77", "fd65::77"}
    assert pod.check().status == 0
    refused(make("web-1", annotations=annotations(ipAddrs=["203.0.113.7"]), with_policy=True), UNAVAILABLE, "203.0.113.7")


@statement(
    "2.8",
    "ipAddrsNoIpam",
    "Addresses that no IPAM records; the feature must be on.",
    "They are set up like others. DEL releases nothing, because nothing was assigned.",
)
@statement(
    "4",
    "R5 conflicts",
    "With it the user is responsible for conflicts and routes.",
    "A log line of level WARNING names an address that IPAM could assign, or has assigned, to another container. svc "
    "makes no routes between nodes.",
    choice="One node has one route to an address: a second pod with it on the same node is refused by the kernel.",
)
@field("feature_control", "A feature that it does not list is off.")
@field("feature_control.ip_addrs_no_ipam", "Without it the annotation is refused with code 112.")
def test_addresses_can_bypass_ipam(make: MakePod, cluster_node: ClusterNode) -> None:
    chosen = annotations(ipAddrsNoIpam=["10.65.3.78", "2001:db8:9::1"])
    pod = make(annotations=chosen, with_policy=True, **NO_IPAM)
    called = pod.call("ADD")
    assert [ip["address"] for ip in called.output["ips"]] == ["10.65.3.78/32", "2001:db8:9::1/128"]
    assert "WARNING" in called.stderr
    assert audit([cluster_node]).allocations == {}
    refused(make("web-1", annotations=chosen, with_policy=True), ANNOTATION, "feature_control.ip_addrs_no_ipam")


@statement("4", "R4 together", "`ipAddrs` and `ipAddrsNoIpam` exclude each other.", "Code 112; nothing is assigned.")
@statement("4", "R4 families", "Either has one IPv4 address, one IPv6 address, or one of each.", "Any other number is refused.")
@statement("8", "addresses", "One IPv4 and one IPv6 address in `ipAddrs` or `ipAddrsNoIpam`, at most.", "As R4 says.")
def test_at_most_one_address_of_each_family_is_requested(make: MakePod, cluster_node: ClusterNode) -> None:
    for number, (chosen, words) in enumerate(TOO_MANY):
        refused(make(f"web-{number}", annotations=chosen, with_policy=True, **NO_IPAM), ANNOTATION, words)
    assert audit([cluster_node]).entries() == []


@statement(
    "2.8",
    "floatingIPs",
    "Further addresses of the pod; the feature must be on.",
    "The endpoint has them (`ipNATs`), each with the pod's address of its family. Another component translates them.",
)
@statement(
    "4",
    "R5 floating",
    "A floating address is advertised if it belongs to a pool; both features need admission control.",
    "svc does not advertise addresses, so it does not check that. Both features are off unless the network enables them.",
)
@field("feature_control.floating_ips", "Without it the annotation is refused with code 112.")
def test_endpoint_has_the_floating_addresses(make: MakePod, cluster_node: ClusterNode) -> None:
    chosen = annotations(floatingIPs=["198.51.100.7", "198.51.100.7"])
    pod = make(annotations=chosen, with_policy=True, **FLOATING)
    for _ in range(2):
        pod.add()
        expected = [{"internalIP": pod.addresses[0], "externalIP": "198.51.100.7"}]
        assert endpoint(cluster_node).spec["ipNATs"] == expected
    refused(make("web-1", annotations=chosen, with_policy=True), ANNOTATION, "feature_control.floating_ips")
