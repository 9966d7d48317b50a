"""svcctl ipam check on every datastore: each finding on addresses, handles and blocks, and none without a cause."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from harness.datastores import Site, session
from harness.ipam import block_of, put, put_block, put_pool, put_reservation, put_settings
from harness.ipam_check import NODE, POOL, WEB, add, attributes, delete, ids, place, put_endpoint, result, spoil, web_in_pool
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.skips import OTHER_STORES
from svc._core.bitmap import Ordinals
from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check.local_uses import LocalUses
from svc.admin.ipam_check.observation import Place
from svc.admin.ipam_check.release import REFUSED, RELEASED, carry_out, examine
from svc.datastore.api import Backend, Delete
from svc.ipam.blocks import allocations, format_time
from svc.ipam.cache import read_blocks
from svc.ipam.requests import Assign, Release, ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.ipam import Attribute, Block, Handle
from svc.model.keys import BlockKey, HandleKey, ResourceKey

pytestmark = ON_EACH_DATASTORE

BLOCK = "10.65.0.0/30"


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with web_in_pool(site) as store:
        yield store


@pytest.fixture
def checked(site: Site, store: Backend) -> Place:
    return place(site, store)


@pytest.fixture
def ipam(store: Backend) -> IpamService:
    return IpamService(store, NODE)


def assign(ipam: IpamService, handle: str, owner: dict[str, str]) -> str:
    return str(ipam.assign(Assign(handle, owner)).addresses[0])


def change_block(store: Backend, address: str, **fields: Any) -> None:
    block = block_of(store, address)
    put(store, BlockKey(block.cidr), replace(block, sequence=block.sequence + 1, **fields))


def put_small_block(store: Backend, text: str, attribute: Attribute | None = None) -> None:
    """Write a block of another size than the pool's. With an attribute, its second address is allocated."""
    cidr = Cidr(text)
    block = Block(cidr, None, Ordinals(32 - cidr.length), 1000)
    if attribute is not None:
        block.ordinals.allocate_at(1, 0)
        block.attributes = [attribute]
    put(store, BlockKey(cidr), block)


def held(store: Backend) -> dict[str, list[str]]:
    """Return the addresses that each block shows allocated."""
    return {str(block.cidr): [str(address) for _, address in allocations(block)] for block in read_blocks(store)}


def release_at(store: Backend, released: datetime, ordinal: int) -> None:
    """Begin the cooldown of an address at this time."""
    block = block_of(store, WEB).copy()
    block.ordinals.allocate_at(ordinal, len(block.attributes or ()))
    attribute = Attribute(released_at=format_time(released))
    put(store, BlockKey(block.cidr), replace(block, attributes=[*(block.attributes or ()), attribute]))


# without findings


def test_consistent_store_has_no_findings(site: Site, store: Backend, checked: Place, ipam: IpamService) -> None:
    """So it is after ADDs and DELs, with a second interface, and with a container that is not a pod."""
    site.add_pod("db")
    second = assign(ipam, "other.c1", attributes("web"))
    put_endpoint(site, store, "web", "c1", second, ifname="net1")
    add(site, store, ipam, "db", "c2")
    bare = assign(ipam, "net.c3", {"node": NODE})
    found = result(checked)
    assert found.findings == ()
    assert found.verdicts.count() == {"used": 3, "unverifiable": 1}
    delete(site, store, ipam, "db", "c2")
    ipam.release(Release("net.c3"))
    assert ids(checked) == []
    assert bare in {"10.65.0.2", "10.65.0.3"}


def test_empty_store_has_no_findings(site: Site) -> None:
    with session(site) as store:
        assert ids(place(site, store)) == []


def test_reserved_address_may_be_used_without_an_allocation(site: Site, store: Backend, checked: Place) -> None:
    put_reservation(store, "set-aside", "10.65.0.9/32")
    site.add_pod("db")
    put_endpoint(site, store, "db", "c2", "10.65.0.9")
    assert ids(checked) == []


# addresses


def test_leaked_address_is_found(checked: Place, ipam: IpamService) -> None:
    """The finding names handle, sequence number and time, and the command that releases the address."""
    leaked = assign(ipam, "net.c9", attributes("gone"))
    (finding,) = result(checked).findings
    assert (finding.id, finding.object, finding.addresses, finding.node) == ("leaked", leaked, (leaked,), NODE)
    assert finding.since == "2026-01-02T03:04:05Z"
    assert finding.fix.startswith(f"svcctl ipam release --ip {leaked} --handle net.c9 --sequence ")
    assert "pod default/gone" in finding.problem


def test_address_of_an_earlier_sandbox_is_leaked(checked: Place, ipam: IpamService) -> None:
    assert ids(checked) == []
    leaked = assign(ipam, "net.c0", attributes("web"))
    assert ids(checked) == [("leaked", leaked)]


def test_address_of_a_later_sandbox_is_not_leaked(checked: Place, ipam: IpamService) -> None:
    """Its ADD may not have written the endpoint yet, so the pod still shows the earlier sandbox."""
    assign(ipam, "net.c2", attributes("web") | {"timestamp": "2026-01-02 03:04:05.5 +0000 UTC"})
    found = result(checked)
    assert (found.findings, found.verdicts.count()) == ((), {"used": 1, "unverifiable": 1})


def test_address_of_the_present_sandbox_is_not_leaked(checked: Place, ipam: IpamService) -> None:
    """It may be that of a further interface without an endpoint."""
    assign(ipam, "other.c1", attributes("web"))
    found = result(checked)
    assert (found.findings, found.verdicts.count()["unverifiable"]) == ((), 1)


def test_tunnel_address_that_no_tunnel_has_is_leaked(checked: Place, ipam: IpamService) -> None:
    leaked = assign(ipam, f"vxlan-tunnel-addr-{NODE}", {"node": NODE, "type": "vxlanTunnelAddress"})
    assert ids(checked) == [("leaked", leaked)]


def test_used_address_without_an_allocation_is_found(site: Site, store: Backend, checked: Place) -> None:
    site.add_pod("db")
    put_endpoint(site, store, "db", "c2", "10.65.0.9")
    (finding,) = result(checked).findings
    assert (finding.id, finding.object, finding.node) == ("unallocated", "10.65.0.9", NODE)
    assert finding.problem == "endpoint of default/db has it"


def test_second_interface_without_an_allocation_is_found(site: Site, store: Backend, checked: Place) -> None:
    put_endpoint(site, store, "web", "c1", "10.65.0.9", ifname="net1")
    assert ids(checked) == [("unallocated", "10.65.0.9")]


def test_used_address_in_no_enabled_pool_is_found(site: Site, store: Backend, checked: Place) -> None:
    """The address is outside of the pools, or its pool is disabled."""
    site.add_pod("db")
    put_endpoint(site, store, "db", "c2", "192.0.2.1")
    assert ids(checked) == [("outside", "192.0.2.1")]
    put_pool(store, "pool4", POOL, blockSize=30, disabled=True)
    assert ids(checked) == [("outside", WEB), ("outside", "192.0.2.1")]


def test_address_of_two_endpoints_is_found(site: Site, store: Backend, checked: Place) -> None:
    site.add_pod("db")
    put_endpoint(site, store, "db", "c2", WEB)
    (finding,) = result(checked).findings
    assert (finding.id, finding.object) == ("duplicate", WEB)
    assert "default/db" in finding.problem
    assert "default/web" in finding.problem


def test_address_of_two_interfaces_is_found(site: Site, store: Backend, checked: Place) -> None:
    put_endpoint(site, store, "web", "c1", WEB, ifname="net1")
    found = result(checked)
    (finding,) = found.findings
    assert (finding.id, finding.object, finding.node) == ("duplicate", WEB, NODE)
    assert finding.problem == "interface eth0 of default/web and interface net1 of default/web"
    assert finding.fix == f"recreate the workload of {WEB}"
    assert found.verdicts.count() == {"used": 1}


def test_address_of_one_pod_on_two_nodes_is_found(site: Site, store: Backend, checked: Place) -> None:
    if checked.pods_are_endpoints:
        pytest.skip(OTHER_STORES + "a pod has one node")
    put_endpoint(site, store, "web", "c2", WEB, node="node2")
    (finding,) = result(checked).findings
    assert (finding.id, finding.object) == ("duplicate", WEB)
    assert finding.problem == "endpoint of default/web on node 'node1' and endpoint of default/web on node 'node2'"


def test_overlapping_blocks_are_found(store: Backend, checked: Place) -> None:
    """One of them necessarily has another size than the blocks of its pool."""
    put_block(store, "10.65.0.8/29", None)
    put_block(store, "10.65.0.8/30", None)
    assert ids(checked) == [("duplicate", "10.65.0.8/29 and 10.65.0.8/30"), ("block-size", "10.65.0.8/29")]


@pytest.mark.parametrize("cidr", ["10.65.0.0/31", "10.65.0.0/29"])
def test_overlapping_block_hides_no_allocation(store: Backend, checked: Place, ipam: IpamService, cidr: str) -> None:
    """Used addresses are allocated, and a release examines the block that it writes."""
    leaked = Address(assign(ipam, "net.c9", attributes("gone")))
    put_small_block(store, cidr)
    found = ids(checked)
    assert ("leaked", str(leaked)) in found
    assert {id_ for id_, _ in found} == {"leaked", "duplicate", "block-size"}
    used, free = examine(checked, [ReleaseTarget(Address(WEB)), ReleaseTarget(leaked)], (), LocalUses())
    assert (used.result, used.reason) == (REFUSED, "endpoint of default/web has it: end that first")
    assert [outcome.result for outcome in carry_out(store, [free])] == [RELEASED]
    assert held(store) == {BLOCK: [WEB], cidr: []}


@pytest.mark.parametrize("cidr", ["10.65.0.0/31", "10.65.0.0/29"])
def test_address_that_overlapping_blocks_allocate_is_not_released(
    store: Backend, checked: Place, ipam: IpamService, cidr: str
) -> None:
    leaked = assign(ipam, "net.c9", attributes("gone"))
    put_small_block(store, cidr, Attribute("net.c8", attributes("old")))
    (outcome,) = examine(checked, [ReleaseTarget(Address(leaked))], (), LocalUses())
    assert (outcome.result, outcome.target) == (REFUSED, None)
    assert f"blocks {BLOCK} and {cidr} overlap, and {cidr} has it allocated" in outcome.reason


def test_overlapping_block_that_cannot_be_read_is_named(site: Site, store: Backend, checked: Place, ipam: IpamService) -> None:
    leaked = assign(ipam, "net.c9", attributes("gone"))
    put_small_block(store, "10.65.0.0/31")
    spoil(site, BlockKey(Cidr("10.65.0.0/31")), {"allocations": [7, None]})
    (outcome,) = examine(checked, [ReleaseTarget(Address(leaked))], (), LocalUses())
    assert (outcome.result, outcome.reason) == (REFUSED, f"another block than {BLOCK} has it as well, and cannot be read")


def test_ended_cooldown_is_found(store: Backend, checked: Place) -> None:
    put_settings(store, cooldown_seconds=60)
    release_at(store, datetime.now(timezone.utc) - timedelta(seconds=90), 2)
    assert ids(checked) == []
    release_at(store, datetime.now(timezone.utc) - timedelta(hours=1), 3)
    assert ids(checked) == [("cooldown-over", "10.65.0.3")]


def test_release_in_the_future_is_found(store: Backend, checked: Place) -> None:
    release_at(store, datetime.now(timezone.utc) + timedelta(hours=1), 3)
    (finding,) = result(checked).findings
    assert (finding.id, finding.object) == ("cooldown-future", "10.65.0.3")
    assert f" s ahead of this clock, in block {BLOCK} (host:{NODE})" in finding.problem
    assert finding.fix.endswith("the next ADD or DEL that writes the block frees it")  # an hour is longer than the cooldown


# handles


def test_handle_without_addresses_is_found(store: Backend, checked: Place) -> None:
    put(store, HandleKey("net.c9"), Handle({BLOCK: 1}))
    assert ids(checked) == [("handle-empty", "net.c9")]


@pytest.mark.parametrize("counts", [{}, {BLOCK: 0}, {BLOCK: 0, "10.65.0.4/30": 0}])
def test_handle_that_counts_nothing_is_found(store: Backend, checked: Place, counts: dict[str, int]) -> None:
    put(store, HandleKey("net.c9"), Handle(counts))
    put(store, HandleKey("net.c1"), Handle(counts))
    empty, miscounted = result(checked).findings
    assert (empty.id, empty.object, empty.problem) == ("handle-empty", "net.c9", "it counts no address")
    assert (miscounted.id, miscounted.object) == ("handle-miscounted", "net.c1")
    assert miscounted.problem == f"it counts 0 addresses in {BLOCK}, which shows 1"


def test_missing_handle_is_found(store: Backend, checked: Place) -> None:
    store.write([Delete(HandleKey("net.c1"))])
    (finding,) = result(checked).findings
    assert (finding.id, finding.object, finding.addresses) == ("handle-missing", "net.c1", (WEB,))


@pytest.mark.parametrize("counts", [{BLOCK: 2}, {BLOCK: 1, "10.65.0.4/30": 1}, {"10.65.0.4/30": 1}])
def test_miscounting_handle_is_found(store: Backend, checked: Place, counts: dict[str, int]) -> None:
    """It counts too many, or leaves out a block."""
    put(store, HandleKey("net.c1"), Handle(counts))
    assert ids(checked) == [("handle-miscounted", "net.c1")]


def test_handle_that_changes_between_the_observations_is_no_finding(store: Backend, checked: Place) -> None:
    """An ADD in flight has written its handle, and not its block yet."""
    from svc.admin.ipam_check.check import check

    put(store, HandleKey("net.c9"), Handle({BLOCK: 1}))

    def complete(seconds: float, counts: Any) -> bool:
        assert (seconds, dict(counts)) == (60.0, {"handle-empty": 1})
        put(store, HandleKey("net.c9"), Handle({BLOCK: 2}))
        return True

    found = check(checked, complete)
    assert found.findings == ()
    assert found.unconfirmed == {"handle-empty": 1}


# blocks


def test_block_with_an_unused_attribute_is_found(store: Backend, checked: Place) -> None:
    change_block(store, WEB, attributes=[*(block_of(store, WEB).attributes or ()), Attribute("net.c9")])
    assert ids(checked) == [("block-invalid", BLOCK)]


def test_orphaned_block_is_found(store: Backend, checked: Place) -> None:
    put_block(store, "10.99.0.0/30", None)
    assert ids(checked) == [("block-orphaned", "10.99.0.0/30")]


def test_block_of_another_size_is_found(store: Backend, checked: Place) -> None:
    cidr = Cidr("10.65.0.8/29")
    put(store, BlockKey(cidr), Block(cidr, None, Ordinals(3), 1000))
    assert ids(checked) == [("block-size", "10.65.0.8/29")]


def test_pools_that_overlap_are_found(store: Backend, checked: Place) -> None:
    put_pool(store, "wide", "10.65.0.0/24", blockSize=30)
    assert ids(checked) == [("pools-overlap", "pool4 and wide")]


def test_pool_that_cannot_be_used_is_found(store: Backend, checked: Place) -> None:
    """Blocks and addresses may be in its range, so nothing is said about those in no pool."""
    put_pool(store, "odd", "10.99.0.0/24", nodeSelector="((")
    put_block(store, "10.99.0.0/30", None)
    ((id_, object_),) = ids(checked)
    assert (id_, object_) == ("undecodable", "IP pool odd")
    store.write([Delete(ResourceKey("IPPool", "odd"))])
    assert ids(checked) == [("block-orphaned", "10.99.0.0/30")]
