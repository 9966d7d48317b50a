"""The classification of allocations: each row of the table, and a plain second implementation that must agree."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.blocks import new
from svc._core.cidr import Address, Cidr
from svc.controllers.node.addresses.held import Held, all_held, held_in
from svc.controllers.node.addresses.judgement import LEAKED, UNVERIFIABLE, VALID, Facts, judge
from svc.controllers.node.addresses.survey import Survey, survey
from svc.controllers.pods import PodRow, read_pod
from svc.controllers.stored_endpoints import EndpointRow, read_endpoint
from svc.datastore.api import Entry
from svc.ipam import blocks
from svc.ipam.blocks import RESERVED_HANDLE
from svc.model.ipam import Attribute
from svc.model.keys import BlockKey, ResourceKey
from svc.model.pod_endpoint import NETWORK_STATUS
from svc.model.resource import Resource
from svc.names import DEFAULT

NODES = {"node1": "node1", "node2": "node2", "bare": "", "renamed": "node3"}
KUBE = ("node1", "node2", "node3")
HELD = Held("10.0.0.1", "pods.c1", 7, "pod", "node1", "default/web", "2026-01-01 00:00:02 +0000 UTC")
EARLIER, LATER = "2026-01-01 00:00:01 +0000 UTC", "2026-01-01 00:00:03 +0000 UTC"
RUNNING = PodRow("u1", "node1", False)
FINISHED = PodRow("u1", "node1", True)


def verdict(
    held: Held = HELD,
    pod: PodRow | None = None,
    *endpoints: EndpointRow,
    siblings: Iterable[Held] = (),
    pods: Mapping[str, PodRow] | None = None,
    networks: Iterable[str] = ("pods.",),
) -> tuple[str, str]:
    rows = dict(pods or {}) | ({held.pod: pod} if pod else {})
    facts = Facts(rows, endpoints, NODES, KUBE, frozenset(networks))
    return judge(held, facts, pod, facts.endpoints_by_pod.get(held.pod, ()), siblings)


def endpoint(container: str, *addresses: str, pod: str = "default/web", node: str = "node1") -> EndpointRow:
    return EndpointRow(pod, node, container, addresses)


SUCCESSOR = HELD._replace(address="10.0.0.2", handle="pods.c2", since=LATER)
CASES: dict[str, tuple[tuple[str, str], tuple[Any, ...], dict[str, Any]]] = {
    # never here
    "bare container": ((UNVERIFIABLE, "its owner is a container"), (HELD._replace(kind="container", pod=""),), {}),
    "service": ((UNVERIFIABLE, "its owner is a service"), (HELD._replace(kind="service"),), {}),
    "virtual machine": ((UNVERIFIABLE, "its owner is a virtual machine"), (HELD._replace(kind="virtual machine"),), {}),
    "IPAM role": ((UNVERIFIABLE, "its network has no endpoints"), (HELD._replace(handle="other.c1"),), {}),
    "IPAM role, running pod": ((UNVERIFIABLE, "its network has no endpoints"), (HELD._replace(handle="o.c1"), RUNNING), {}),
    "no node": ((UNVERIFIABLE, "its node is not recorded"), (HELD._replace(node=""),), {}),
    "no sequence": ((UNVERIFIABLE, "its allocation has no sequence number"), (HELD._replace(sequence=None),), {}),
    "other orchestrator": ((UNVERIFIABLE, "Kubernetes never had its node"), (HELD._replace(node="bare"),), {}),
    # more is valid
    "half-written status": ((VALID, ""), (HELD, RUNNING), {}),
    "address in the status": ((VALID, "a pod shows it"), (HELD, RUNNING._replace(addresses=("10.0.0.1",))), {}),
    "second interface": (
        (VALID, "a pod shows it"),
        (HELD, RUNNING._replace(addresses=("10.0.0.9", "10.0.0.1"), containers=("c1",))),
        {},
    ),
    "further interface without endpoint": (
        (VALID, ""),
        (HELD, RUNNING._replace(addresses=("10.0.0.9",), containers=("c1",))),
        {},
    ),
    "endpoint without container": ((VALID, ""), (HELD, RUNNING._replace(addresses=("10.0.0.9",), containers=("",))), {}),
    "stored endpoint": ((VALID, ""), (HELD, RUNNING, endpoint("c1", "10.0.0.1")), {}),
    "stored endpoint of another container with it": (
        (VALID, "an endpoint has it"),
        (HELD, RUNNING, endpoint("c2", "10.0.0.1")),
        {},
    ),
    "endpoint of another pod": ((VALID, "an endpoint has it"), (HELD, None, endpoint("c1", "10.0.0.1", pod="default/x")), {}),
    "status of another pod": (
        (VALID, "a pod shows it"),
        (HELD, None),
        {"pods": {"default/x": PodRow("u2", "node2", False, ("10.0.0.1",))}},
    ),
    "unreadable pod": ((VALID, "its pod cannot be read"), (HELD, RUNNING._replace(is_unreadable=True, containers=("c2",))), {}),
    "unreadable endpoint": (
        (VALID, "an endpoint of its pod cannot be read"),
        (HELD, None, EndpointRow("default/web", "node1", "c1", (), True)),
        {},
    ),
    "container of an ADD in flight": (
        (VALID, ""),
        (HELD, RUNNING._replace(containers=("c2",))),
        {"siblings": [HELD, SUCCESSOR._replace(since=EARLIER)]},
    ),
    "container of an ADD in flight, former one released": ((VALID, ""), (HELD, RUNNING._replace(containers=("c2",))), {}),
    "no time of its allocation": (
        (VALID, ""),
        (HELD._replace(since=""), RUNNING._replace(containers=("c2",))),
        {"siblings": [SUCCESSOR]},
    ),
    "pod on an unregistered node": ((VALID, ""), (HELD, RUNNING._replace(node="node9")), {}),
    "node with another name": ((VALID, ""), (HELD._replace(node="renamed"), RUNNING._replace(node="node3")), {}),
    # leaked
    "no pod": ((LEAKED, "pod default/web does not exist"), (HELD,), {}),
    "no pod, and its own endpoint": ((LEAKED, "pod default/web does not exist"), (HELD, None, endpoint("c1", "10.0.0.1")), {}),
    "finished": ((LEAKED, "pod default/web has finished"), (HELD, FINISHED), {}),
    "moved": ((LEAKED, "pod default/web is on node node2 now"), (HELD, RUNNING._replace(node="node2")), {}),
    "another container": (
        (LEAKED, "pod default/web has another container now"),
        (HELD, RUNNING._replace(containers=("c2",))),
        {"siblings": [HELD, SUCCESSOR]},
    ),
    "another container in the stored endpoint": (
        (LEAKED, "pod default/web has another container now"),
        (HELD, RUNNING, endpoint("c2", "10.0.0.2")),
        {"siblings": [HELD, SUCCESSOR]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_row_of_the_classification(name: str) -> None:
    expected, arguments, options = CASES[name]
    assert verdict(*arguments, **options) == expected


# what rows show


def pod(**given: Any) -> dict[str, Any]:
    metadata = {"name": "web", "namespace": "default", "uid": "u1", "annotations": given.pop("annotations", {})}
    return {"metadata": metadata, "spec": {"nodeName": "node1"} | given.pop("spec", {}), "status": given}


def test_pod_shows_the_addresses_of_every_interface() -> None:
    prefix = DEFAULT.annotation_prefix
    annotations = {
        f"{prefix}/podIPs": "10.0.0.1/32,fd00:0::1/128",
        f"{prefix}/containerID": "c1",
        f"{prefix}/podIPs.net1": "10.0.0.2/32",
        f"{prefix}/containerID.net1": "c1",
        f"{prefix}/podIPs.net2": "",
        "k8s.v1.cni.cncf.io/network-status": '[{"ips": ["10.0.0.3"]}]',
    }
    _, row = read_pod(DEFAULT, pod(annotations=annotations, podIPs=[{"ip": "10.0.0.4"}, {"ip": "::ffff:10.0.0.5"}]))
    assert row is not None
    assert set(row.addresses) == {"10.0.0.1", "fd00::1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"}
    assert row.containers == ("c1",)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_finished_pod_shows_no_address(phase: str) -> None:
    notes = {f"{DEFAULT.annotation_prefix}/podIPs": "10.0.0.1/32"}
    _, row = read_pod(DEFAULT, pod(annotations=notes, phase=phase, podIPs=[{"ip": "10.0.0.1"}]))
    assert row is not None
    assert row._replace(copied=b"") == PodRow("u1", "node1", True)


def test_pod_with_a_malformed_address_is_unreadable() -> None:
    _, row = read_pod(DEFAULT, pod(annotations={f"{DEFAULT.annotation_prefix}/podIPs": "10.0.0.x"}))
    assert row is not None
    assert row._replace(copied=b"") == PodRow("u1", "node1", False, is_unreadable=True)


@pytest.mark.parametrize(
    "nested",
    ["[" * 1015 + "]" * 1015, '{"a":' * 1015 + "1" + "}" * 1015, "5", "null"],
    ids=["lists", "objects", "number", "null"],
)
def test_network_status_of_another_form_shows_nothing(nested: str) -> None:
    """A user of the cluster can write it. An exception would end the watch of all pods, and the program with it."""
    _, row = read_pod(DEFAULT, pod(annotations={NETWORK_STATUS: f'[{{"ips": [{nested}, "10.0.0.1"]}}]'}))
    assert row is not None
    assert row.addresses == ("10.0.0.1",)


def test_pod_that_shows_too_many_addresses_is_unreadable() -> None:
    """It would take memory, and keep leaked addresses of others."""
    notes = {f"{DEFAULT.annotation_prefix}/podIPs": ",".join(f"10.0.{number // 256}.{number % 256}" for number in range(257))}
    _, row = read_pod(DEFAULT, pod(annotations=notes))
    assert row is not None
    assert row._replace(copied=b"") == PodRow("u1", "node1", False, is_unreadable=True)


def test_container_that_is_the_end_of_a_handle_means_nothing() -> None:
    """Otherwise it would be the container in one network, and another container in all other networks."""
    prefix = DEFAULT.annotation_prefix
    notes = {f"{prefix}/podIPs.net2": "10.0.0.3", f"{prefix}/containerID.net2": "green.c1"}
    _, row = read_pod(DEFAULT, pod(annotations=notes))
    assert row is not None
    green = HELD._replace(address="10.0.0.3", handle="green.c1", since=LATER)
    assert verdict(HELD, row, siblings=[HELD, green]) == (VALID, "")


@pytest.mark.parametrize("spec", [{"nodeName": ""}, {"hostNetwork": True}])
def test_pod_without_an_address_of_its_own_has_no_row(spec: dict[str, Any]) -> None:
    assert read_pod(DEFAULT, pod(spec=spec))[1] is None


@pytest.mark.parametrize("spec", [{"ipNetworks": 5}, {"ipNetworks": ["x"]}, {"ipNetworks": [1]}, {"containerID": 5}])
def test_endpoint_with_damaged_fields_is_unreadable(spec: dict[str, Any]) -> None:
    key = ResourceKey("WorkloadEndpoint", "e", "default")
    row = read_endpoint(DEFAULT, Entry(key, Resource("WorkloadEndpoint", {}, {"pod": "web", "node": "node1", **spec}), "1"))
    assert (row.pod, row.is_unreadable) == ("default/web", True)


def test_block_shows_what_handles_hold() -> None:
    """Addresses in cooldown, without a handle or of Windows are none."""
    block = new(Cidr("10.0.0.0/28"))
    owner = {"node": "node1", "pod": "web", "namespace": "default", "timestamp": "t"}
    for attribute in (
        Attribute("pods.c1", owner),
        Attribute(None, owner),
        Attribute(RESERVED_HANDLE, {"note": "windows host rsvd"}),
        Attribute("pods.c2", owner, {"pod": "other"}),
        Attribute("ipip-tunnel-addr-node1", {"node": "node1", "type": "ipipTunnelAddress"}),
    ):
        blocks.assign(block, attribute)
    gone = blocks.assign(block, Attribute("pods.c9", owner))
    assert gone is not None
    block.attributes = [*(block.attributes or ())]
    block.attributes[5] = Attribute(released_at="2026-01-01T00:00:00Z")
    found = [(held.handle, held.kind, held.pod, held.sequence) for held in held_in(block)]
    assert found == [
        ("pods.c1", "pod", "default/web", block.sequence),
        ("pods.c2", "unknown owner", "", block.sequence),
        ("ipip-tunnel-addr-node1", "tunnel", "", block.sequence),
    ]


# the survey


def look(
    allocations: Sequence[Held], pods: Mapping[str, PodRow], *endpoints: EndpointRow, networks: Any = ("pods.",)
) -> Survey:
    return survey(Facts(pods, endpoints, NODES, KUBE, frozenset(networks)), allocations)


def test_handle_with_a_live_address_is_kept() -> None:
    second = HELD._replace(address="10.0.0.2")
    found = look([HELD, second], {"default/x": PodRow("u", "node1", False, ("10.0.0.2",))})
    assert set(found.leaked) == {"10.0.0.1"}
    assert found.kept == {"pods.c1"}
    assert found.busy == {"node1"}


def test_network_is_learned_from_a_pod_and_from_an_own_endpoint() -> None:
    shown = HELD._replace(handle="blue.c1")
    former = HELD._replace(address="10.0.0.2", handle="red.c2", pod="default/old")
    row = RUNNING._replace(addresses=("10.0.0.1",), containers=("c1",), wired=1)
    found = look([shown, former], {"default/web": row}, endpoint("c2", "10.0.0.2", pod="default/old"))
    assert found.networks == {"pods.", "blue.", "red."}
    assert set(found.leaked) == {"10.0.0.2"}


def test_network_is_not_learned_from_the_endpoint_of_another_network() -> None:
    """The second network of the pod is one in the IPAM role: the meta plugin reports its address, and no endpoint has it."""
    first, second = HELD, HELD._replace(address="10.1.0.1", handle="macvlan.c1")
    gone = HELD._replace(address="10.1.0.2", handle="macvlan.c9", pod="default/gone")
    row = RUNNING._replace(addresses=("10.0.0.1", "10.1.0.1"), containers=("c1",), wired=1)
    found = look([first, second, gone], {"default/web": row}, endpoint("c9", "10.0.0.9", pod="default/gone"))
    assert found.networks == {"pods."}
    assert found.leaked == {}


def test_usual_network_counts_unless_its_pods_have_no_endpoints() -> None:
    """A network without endpoints is one in the IPAM role, also if it has the name of the usual network."""
    former, present = HELD, HELD._replace(address="10.0.0.2", handle="pods.c2", pod="default/new")

    def leaked(*allocations: Held, row: PodRow = RUNNING, networks: Sequence[str] = ()) -> set[str]:
        facts = Facts({"default/new": row}, (), NODES, KUBE, frozenset(networks))
        return set(survey(facts, allocations, "pods.").leaked)

    assert leaked(former) == {"10.0.0.1"}
    assert leaked(former, present) == set()
    wired = RUNNING._replace(addresses=("10.0.0.2",), containers=("c2",), wired=1)
    assert leaked(former, present, row=wired) == {"10.0.0.1"}
    assert leaked(former, present, row=wired._replace(wired=0)) == set()
    assert leaked(former, present, networks=["pods."]) == {"10.0.0.1"}


def test_tunnels_are_no_suspects() -> None:
    tunnel = Held("10.0.0.1", "ipip-tunnel-addr-node1", 1, "tunnel", "node1", "", "")
    found = look([tunnel], {})
    assert (found.leaked, found.tunnels, found.busy) == ({}, {"node1": [tunnel]}, set())


CONTAINERS = st.sampled_from(["c1", "c2", "c3"])
ADDRESSES = st.sampled_from([f"10.0.0.{number}" for number in range(5)])
NODE = st.sampled_from(["node1", "node2", "bare", "renamed", "unknown"])
POD = st.sampled_from(["default/a", "default/b"])
ALLOCATION = st.builds(
    Held,
    ADDRESSES,
    st.builds("{}.{}".format, st.sampled_from(["pods", "other"]), CONTAINERS),
    st.sampled_from([1, 2, None]),
    st.sampled_from(["pod", "pod", "pod", "container", "tunnel", "service"]),
    NODE,
    POD,
    st.sampled_from(["", EARLIER, LATER]),
)
ROW = st.builds(
    PodRow,
    st.just("u"),
    st.sampled_from(["node1", "node2", "node3", "node9"]),
    st.booleans(),
    st.lists(ADDRESSES, max_size=2).map(tuple),
    st.lists(st.sampled_from(["c1", "c2", ""]), max_size=2).map(tuple),
    st.booleans(),
).map(lambda row: row._replace(addresses=(), containers=()) if row.is_finished else row)
ENDPOINT = st.builds(
    EndpointRow, POD, NODE, st.sampled_from(["c1", "c2", ""]), st.lists(ADDRESSES, max_size=2).map(tuple), st.booleans()
)


@given(
    st.lists(ALLOCATION, max_size=5, unique_by=lambda held: held.address),
    st.dictionaries(POD, ROW),
    st.lists(ENDPOINT, max_size=3),
)
def test_survey_agrees_with_a_plain_second_implementation(
    allocations: list[Held], pods: dict[str, PodRow], endpoints: list[EndpointRow]
) -> None:
    found = look(allocations, pods, *endpoints)
    expected = {held.address for held in allocations if _is_over(held, allocations, pods, endpoints, found.networks)}
    assert set(found.leaked) == expected
    handles = {held.handle for held in allocations if held.address not in expected}
    assert {held.handle for held in found.suspects.values()} & handles == found.kept & handles


def _is_over(held: Held, allocations: list[Held], pods: dict[str, PodRow], endpoints: list[EndpointRow], networks: Any) -> bool:
    """Answer all questions of the specification in its order, without an index or a short cut."""
    container = held.handle.rpartition(".")[2]
    here = NODES.get(held.node, held.node)
    if held.kind != "pod" or held.sequence is None or here == "" or held.handle[: -len(container)] not in networks:
        return False
    if any(held.address in row.addresses for row in pods.values()):
        return False
    for each in endpoints:
        own = (each.pod, each.node, each.container) == (held.pod, held.node, container)
        if held.address in each.addresses and not own:
            return False
    row = pods.get(held.pod)
    if (row is not None and row.is_unreadable) or any(each.is_unreadable for each in endpoints if each.pod == held.pod):
        return False
    if row is None:
        return True
    if row.is_finished:
        return True
    if row.node != here:
        return row.node in NODES.values()
    shown = [*row.containers, *(each.container for each in endpoints if (each.pod, each.node) == (held.pod, held.node))]
    if not shown or "" in shown or container in shown or not held.since:
        return False
    times = [
        each.since
        for each in allocations
        if (each.pod, each.node) == (held.pod, held.node) and each.handle.rpartition(".")[2] in shown
    ]
    return bool(times) and max(times) >= held.since


def test_all_held_reads_each_block() -> None:
    first, second = new(Cidr("10.0.0.0/30")), new(Cidr("10.0.0.4/30"))
    for block in (first, second):
        blocks.assign(block, Attribute("pods.c1", {"node": "node1"}))
    entries = [Entry(BlockKey(block.cidr), block, "1") for block in (first, second)]
    assert [Address(held.address) for held in all_held(entries)] == [Address("10.0.0.0"), Address("10.0.0.4")]
