"""svcctl ipam check on every datastore: findings on affinities, nodes and documents."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from harness.datastores import Site
from harness.ipam import put_affinity, put_block, put_pool, remove
from harness.ipam_check import NODE, WEB, attributes, ids, place, put_document, result, spoil, web_in_pool
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.skips import OTHER_STORES
from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check.check import check
from svc.admin.ipam_check.local_uses import LocalUses
from svc.admin.ipam_check.observation import Place
from svc.admin.ipam_check.release import REFUSED, examine
from svc.datastore.api import Backend
from svc.ipam.blocks import format_time
from svc.ipam.load_balancer import LOAD_BALANCERS
from svc.ipam.requests import Assign, ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.ipam import CONFIRMED, PENDING, PENDING_DELETION
from svc.model.keys import AffinityKey, BlockKey, BlockQuery, HandleKey, ResourceKey
from svc.model.kv_codec import Codec

pytestmark = ON_EACH_DATASTORE

BLOCK, OTHER = "10.65.0.0/30", "10.65.0.8/30"


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with web_in_pool(site, "node2") as store:
        yield store


@pytest.fixture
def checked(site: Site, store: Backend) -> Place:
    return place(site, store)


def seconds_waited(checked: Place) -> tuple[list[float], list[tuple[str, str]]]:
    """Return how long the check waits, and what it finds after that."""
    waited: list[float] = []

    def note(seconds: float, _counts: Any) -> bool:
        waited.append(seconds)
        return True

    return waited, [(finding.id, finding.object) for finding in check(checked, note).findings]


# affinities


@pytest.mark.parametrize("affinity", [None, "host:node1"])
def test_affinity_without_its_block_is_found(store: Backend, checked: Place, affinity: str | None) -> None:
    """The block does not exist, or names another host."""
    put_affinity(store, OTHER, CONFIRMED, "node2")
    if affinity is not None:
        put_block(store, OTHER, None)
    assert ids(checked) == [("affinity-stale", f"host:node2 {OTHER}")]


def test_block_without_its_affinity_is_found(store: Backend, checked: Place) -> None:
    remove(store, AffinityKey(NODE, Cidr(BLOCK)))
    (finding,) = result(checked).findings
    assert (finding.id, finding.object, finding.node) == ("affinity-missing", BLOCK, NODE)


def test_affinities_of_two_hosts_are_found(store: Backend, checked: Place) -> None:
    put_affinity(store, BLOCK, CONFIRMED, "node2")
    (finding,) = result(checked).findings
    assert (finding.id, finding.object) == ("affinity-double", BLOCK)
    assert "host:node1 and host:node2 have an affinity; the block names host:node1" in finding.problem


@pytest.mark.parametrize("state", [PENDING, PENDING_DELETION])
def test_affinity_that_stays_pending_is_found(store: Backend, checked: Place, state: str) -> None:
    """Without a block nothing shows its age, so it must be seen for five minutes."""
    put_affinity(store, OTHER, state)
    assert seconds_waited(checked) == ([300.0], [("affinity-pending", f"host:node1 {OTHER}")])


def test_claim_that_was_begun_long_ago_is_found_sooner(store: Backend, checked: Place) -> None:
    put_block(store, OTHER, "host:node1", claimed_at=format_time(datetime.now(timezone.utc) - timedelta(seconds=301)))
    put_affinity(store, OTHER, PENDING)
    assert seconds_waited(checked) == ([60.0], [("affinity-pending", f"host:node1 {OTHER}")])


def test_affinity_that_is_confirmed_in_time_is_no_finding(store: Backend, checked: Place) -> None:
    put_affinity(store, OTHER, PENDING)

    def confirm(_seconds: float, counts: Any) -> bool:
        assert counts == {"affinity-pending": 1}
        put_block(store, OTHER, "host:node1")
        put_affinity(store, OTHER, CONFIRMED)
        return True

    assert check(checked, confirm).findings == ()


# nodes


@pytest.mark.usefixtures("store")
def test_node_that_does_not_exist_is_found(site: Site, store: Backend, checked: Place) -> None:
    """The store of one node needs no nodes. What it has assigned to pods is leaked."""
    put_block(store, OTHER, "host:gone")
    put_affinity(store, OTHER, CONFIRMED, "gone")
    if not store.requires_node:
        assert ids(checked) == []
        return
    assert ids(checked) == [("node-gone", "gone")]
    leaked = str(IpamService(store, NODE).assign(Assign("net.c9", attributes("db", "gone"))).addresses[0])
    found = result(checked).findings
    assert [(finding.id, finding.object) for finding in found] == [("leaked", leaked), ("node-gone", "gone")]
    assert found[1].addresses == (leaked,)


def test_container_of_a_node_that_does_not_exist_is_unverifiable(store: Backend, checked: Place) -> None:
    """The node may be registered again, and only its agent knows the container."""
    IpamService(store, NODE).assign(Assign("net.c9", {"node": "gone"}))
    found = result(checked)
    assert [finding.id for finding in found.findings] == (["node-gone"] if store.requires_node else [])
    assert found.verdicts.count() == {"used": 1, "unverifiable": 1}


def test_pod_of_the_same_name_on_another_node_proves_nothing(store: Backend, checked: Place) -> None:
    """The other pod is below another main plugin, so it has no endpoint."""
    (address,) = IpamService(store, "node2").assign(Assign("mac.c2", attributes("web", "node2"))).addresses
    found = result(checked)
    assert (found.findings, found.verdicts.count()) == ((), {"used": 1, "unverifiable": 1})
    (outcome,) = examine(checked, [ReleaseTarget(address)], (), LocalUses())
    assert (outcome.result, "only the agent of node 'node2' can tell" in outcome.reason) == (REFUSED, True)
    (leaked,) = IpamService(store, "node2").assign(Assign("net.c2", attributes("web", "node2"))).addresses
    assert ids(checked) == [("leaked", str(leaked))]


def test_endpoint_on_another_node_shows_no_sandbox_of_an_unknown_node(store: Backend, checked: Place) -> None:
    owner = {name: text for name, text in attributes("web").items() if name != "node"}
    IpamService(store, NODE).assign(Assign("net.c2", owner))
    found = result(checked)
    assert (found.findings, found.verdicts.count()) == ((), {"used": 1, "unverifiable": 1})


def test_tunnels_of_a_node_that_cannot_be_read_are_unverifiable(site: Site, store: Backend, checked: Place) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "a node of Kubernetes can always be read")
    IpamService(store, NODE).assign(Assign("tunnel", {"node": NODE, "type": "vxlanTunnelAddress"}))
    assert [finding.id for finding in result(checked).findings] == ["leaked"]
    spoil(site, ResourceKey("Node", NODE), None)
    found = result(checked)
    assert [finding.id for finding in found.findings] == ["undecodable"]
    assert found.verdicts.count()["unverifiable"] == 1


def test_virtual_host_needs_no_node(store: Backend, checked: Place) -> None:
    """Without the Kubernetes API, its services are unverifiable."""
    put_pool(store, "services", "10.66.0.0/28", blockSize=30, allowedUses=["LoadBalancer"])
    owner = {"service": "web", "namespace": "default", "type": "LoadBalancer"}
    (address,) = IpamService(store, LOAD_BALANCERS).assign(Assign("lb-1", owner, use="LoadBalancer")).addresses
    found = result(checked)
    if checked.client is None:
        assert (found.findings, found.verdicts.count()["unverifiable"]) == ((), 1)
    else:
        assert [(finding.id, finding.object) for finding in found.findings] == [("leaked", str(address))]


# documents


def test_block_that_contradicts_itself_is_found(site: Site, store: Backend, checked: Place) -> None:
    """Nothing is said about its addresses, its affinity and the handles that count them."""
    spoil(site, BlockKey(Cidr(BLOCK)), {"allocations": [7, None, None, None]})
    assert ids(checked) == [("block-invalid", BLOCK)]


@pytest.mark.parametrize("key", [BlockKey(Cidr(BLOCK)), AffinityKey(NODE, Cidr(BLOCK)), HandleKey("net.c1")])
def test_document_that_cannot_be_read_is_found(site: Site, store: Backend, checked: Place, key: Any) -> None:
    """The other documents are checked, and nothing is derived from its absence."""
    spoil(site, key, None)
    put_block(store, "10.99.0.0/30", None)
    first, second = result(checked).findings
    assert (first.id, first.object) == ("block-orphaned", "10.99.0.0/30")
    assert second.id == "undecodable"


def test_endpoint_that_cannot_be_read_shields_its_namespace(site: Site, store: Backend, checked: Place) -> None:
    """In the Kubernetes API, the pod's own addresses are its status as well."""
    key = ResourceKey("WorkloadEndpoint", "node1-k8s-web-eth0", "default")
    spoil(site, key, None)
    assert [finding.id for finding in result(checked).findings] == ["undecodable"]


WEB_ENDPOINT = ResourceKey("WorkloadEndpoint", "node1-k8s-web-eth0", "default")


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"node": NODE, "pod": "web", "containerID": "", "ipNetworks": WEB},
        {"node": NODE, "pod": "web", "containerID": "c1", "ipNetworks": [None]},
        {"node": NODE, "pod": ["web"], "containerID": "c1"},
        {"pod": "web"},
    ],
)
def test_damaged_endpoint_shields_its_namespace(site: Site, store: Backend, checked: Place, spec: Any) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "the pod is the endpoint")
    spoil(site, WEB_ENDPOINT, {"spec": spec})
    assert ids(checked) == [("undecodable", Codec(site.names).path(WEB_ENDPOINT))]
    (outcome,) = examine(checked, [ReleaseTarget(Address(WEB))], (), LocalUses())
    assert (outcome.result, "an endpoint of its namespace cannot be read" in outcome.reason) == (REFUSED, True)


@pytest.mark.parametrize("fields", [{"metadata": {}}, {"metadata": {"name": "other", "namespace": "other"}}])
def test_key_of_an_endpoint_has_its_namespace(site: Site, store: Backend, checked: Place, fields: dict[str, Any]) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "the pod is the endpoint")
    IpamService(store, NODE).assign(Assign("net.c1", attributes("web")))
    spoil(site, WEB_ENDPOINT, fields)
    found = result(checked)
    assert (found.findings, found.verdicts.count()) == ((), {"used": 1, "unverifiable": 1})


@pytest.mark.parametrize("address", [f"::ffff:{WEB}", "::ffff:a41:0/128"])
def test_mapped_address_of_an_endpoint_is_in_use(site: Site, store: Backend, checked: Place, address: str) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "the pod is the endpoint")
    spoil(site, WEB_ENDPOINT, {"spec": {"node": NODE, "pod": "web", "containerID": "c2", "ipNetworks": [address]}})
    found = result(checked)
    assert (found.findings, found.verdicts.count()) == ((), {"used": 1})


def test_endpoint_without_a_container_may_be_that_of_any_sandbox(site: Site, store: Backend, checked: Place) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "the pod is the endpoint")
    spoil(site, WEB_ENDPOINT, {"spec": {"node": NODE, "pod": "web"}})
    found = result(checked)
    assert (found.findings, found.verdicts.count()) == ((), {"unverifiable": 1})


@pytest.mark.parametrize(
    "spec", [{"bgp": "10.65.0.1"}, {"ipv4VXLANTunnelAddr": "10.65.0"}, {"wireguard": {"interfaceIPv4Address": 7}}]
)
def test_damaged_tunnels_of_a_node_are_unverifiable(site: Site, store: Backend, checked: Place, spec: dict[str, Any]) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "a node of Kubernetes can always be read")
    IpamService(store, NODE).assign(Assign("tunnel", {"node": NODE, "type": "vxlanTunnelAddress"}))
    spoil(site, ResourceKey("Node", NODE), {"spec": spec})
    found = result(checked)
    assert [finding.id for finding in found.findings] == ["undecodable"]
    assert found.verdicts.count()["unverifiable"] == 1


# keys


@pytest.mark.parametrize(
    "path",
    [
        "ipam/v2/assignment/ipv4/block/junk",
        "ipam/v2/assignment/ipv4/block/10.65.0.17-28",
        "ipam/v2/assignment/ipv6/block/10.65.0.16-28",
        "ipam/v2/host/node1/ipv4/block/junk",
        "ipam/v2/host/node1/ipv4/block/10.65.0.17-28",
        "ipam/v2/host/node1/ipv6/block/10.65.0.8-30",
        "ipam/v2/virtual/load-balancer/ipv4/block/junk",
        "ipam/v2/handle/",
        "resources/v3/svc.internal/ippools/pool4/more",
        "resources/v3/svc.internal/workloadendpoints/default/node1-k8s-web-eth0/more",
    ],
)
def test_key_that_cannot_be_parsed_is_found(site: Site, store: Backend, checked: Place, path: str) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "objects have no such keys")
    put_document(site, path, "{}")
    named = "IP pool more" if "/ippools/" in path else f"{site.names.key_root}/{path}"
    assert ids(checked) == [("undecodable", named)]
    assert store.list(BlockQuery())[0].value.cidr == Cidr(BLOCK)


def test_records_of_old_programs_are_no_findings(site: Site, checked: Place) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "objects have no such keys")
    put_document(site, "ipam/v2/host/node1", "")
    assert ids(checked) == []


def test_addresses_of_a_block_at_a_bad_key_are_not_free(site: Site, checked: Place) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "objects have no such keys")
    put_document(site, "ipam/v2/assignment/ipv4/block/10.65.0.9-30", "{}")
    (outcome,) = examine(checked, [ReleaseTarget(Address("10.65.0.10"))], (), LocalUses())
    assert (outcome.result, outcome.reason) == (REFUSED, "its block cannot be read")
