"""The fixes that the findings of svcctl ipam check name mend what was found."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from harness.datastores import Site
from harness.ipam import block_of, put, put_affinity, put_block, put_pool, put_settings, remove
from harness.ipam_check import NODE, POOL, WEB, add, delete, ids, key_of, place, put_endpoint, web_in_pool
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.skips import OTHER_STORES
from svc._core.cidr import Cidr
from svc.admin import pools
from svc.admin.ipam_check.observation import Place
from svc.admin.resources import delete_node
from svc.datastore.api import Backend, Delete
from svc.ipam.blocks import format_time
from svc.ipam.requests import Assign, Release, ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.ipam import CONFIRMED, PENDING, Attribute, Handle
from svc.model.keys import AffinityKey, BlockKey, HandleKey

pytestmark = ON_EACH_DATASTORE

BLOCK, OTHER = "10.65.0.0/30", "10.65.0.8/30"


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with web_in_pool(site, "node2") as store:
        yield store


@pytest.fixture
def checked(site: Site, store: Backend) -> Place:
    return place(site, store)


@pytest.fixture
def ipam(store: Backend) -> IpamService:
    return IpamService(store, NODE)


def fill(store: Backend, node: str, count: int) -> None:
    """Assign addresses to containers that are not pods, so that the node needs each block that it can get."""
    service = IpamService(store, node)
    for number in range(count):
        service.assign(Assign(f"net.{node}x{number}", {"node": node}))


def test_recreated_workload_has_an_allocated_address(site: Site, store: Backend, checked: Place, ipam: IpamService) -> None:
    """The same holds if another workload has its address, and if no pool has it."""
    site.add_pod("db")
    for wrong, found in (("10.65.0.9", "unallocated"), ("192.0.2.1", "outside"), (WEB, "duplicate")):
        put_endpoint(site, store, "db", "c2", wrong)
        assert ids(checked) == [(found, wrong)]
        store.write([Delete(key_of(site, "db"))])
        add(site, store, ipam, "db", "c3")
        assert ids(checked) == []
        delete(site, store, ipam, "db", "c3")


def test_enabled_pool_has_the_addresses(store: Backend, checked: Place) -> None:
    put_pool(store, "pool4", POOL, blockSize=30, disabled=True)
    assert ids(checked) == [("outside", WEB)]
    put_pool(store, "pool4", POOL, blockSize=30)
    assert ids(checked) == []


def test_next_write_frees_what_was_in_cooldown(store: Backend, checked: Place, ipam: IpamService) -> None:
    """It also removes an attribute that no address has."""
    block = block_of(store, WEB).copy()
    block.ordinals.allocate_at(3, 1)
    released = Attribute(released_at=format_time(datetime.now(timezone.utc) - timedelta(hours=1)))
    put(store, BlockKey(block.cidr), replace(block, attributes=[*(block.attributes or ()), released, Attribute("net.c9")]))
    put_settings(store, cooldown_seconds=1)
    assert ids(checked) == [("cooldown-over", "10.65.0.3"), ("block-invalid", BLOCK)]
    IpamService(store, NODE).assign(Assign("net.c4", {"node": NODE}))
    assert ids(checked) == []


def test_release_corrects_handles(store: Backend, checked: Place, ipam: IpamService) -> None:
    """A missing handle is not needed to release an address; a release of the handle corrects or deletes it."""
    ipam.assign(Assign("net.c4", {"node": NODE}))
    put(store, HandleKey("net.c4"), Handle({BLOCK: 3}))
    assert ids(checked) == [("handle-miscounted", "net.c4")]
    ipam.release(Release("net.c4"))
    assert ids(checked) == []
    (address,) = ipam.assign(Assign("net.c5", {"node": NODE})).addresses
    store.write([Delete(HandleKey("net.c5"))])
    assert ids(checked) == [("handle-missing", "net.c5")]
    ipam.release_addresses([ReleaseTarget(address, "net.c5")])
    assert ids(checked) == []


def test_pool_adopts_an_orphaned_block(store: Backend, checked: Place) -> None:
    put_block(store, "10.99.0.0/30", None)
    assert ids(checked) == [("block-orphaned", "10.99.0.0/30")]
    put_pool(store, "more", "10.99.0.0/28", blockSize=30)
    assert ids(checked) == []


def test_pool_that_is_made_and_deleted_takes_an_empty_orphaned_block_along(store: Backend, checked: Place) -> None:
    put_block(store, "10.99.0.0/30", None)
    assert ids(checked) == [("block-orphaned", "10.99.0.0/30")]
    put_pool(store, "more", "10.99.0.0/28", blockSize=30)
    pools.delete(store, "more")
    assert ids(checked) == []


def test_deletion_of_a_pool_ends_an_overlap(store: Backend, checked: Place) -> None:
    put_pool(store, "narrow", "10.65.0.8/29", blockSize=30)
    assert ids(checked) == [("pools-overlap", "narrow and pool4")]
    pools.delete(store, "narrow")
    assert ids(checked) == []


@pytest.mark.parametrize("state", [PENDING, CONFIRMED])
def test_node_that_needs_a_block_repairs_its_affinity(store: Backend, checked: Place, state: str) -> None:
    """Its claim of a block that does not exist is completed."""
    put_affinity(store, OTHER, state, "node2")
    ((found, _),) = ids(checked)
    assert found == {PENDING: "affinity-pending", CONFIRMED: "affinity-stale"}[state]
    fill(store, "node2", 1)
    assert ids(checked) == []


def test_node_deletes_its_affinity_to_the_block_of_another_node(store: Backend, checked: Place) -> None:
    put_affinity(store, BLOCK, CONFIRMED, "node2")
    assert ids(checked) == [("affinity-double", BLOCK)]
    fill(store, "node2", 1)
    assert ids(checked) == []


def test_another_node_reclaims_an_empty_block_without_an_affinity(
    site: Site, store: Backend, checked: Place, ipam: IpamService
) -> None:
    remove(store, AffinityKey(NODE, Cidr(BLOCK)))
    assert ids(checked) == [("affinity-missing", BLOCK)]
    delete(site, store, ipam, "web", "c1")
    put(store, BlockKey(Cidr(BLOCK)), replace(block_of(store, WEB), claimed_at="2026-01-01T00:00:00Z"))
    fill(store, "node2", 16)
    assert ids(checked) == []


def test_node_that_is_registered_again_can_be_deleted(site: Site, store: Backend, checked: Place) -> None:
    if not store.requires_node:
        pytest.skip(OTHER_STORES + "the store of one node needs no nodes")
    put_block(store, OTHER, "host:gone")
    put_affinity(store, OTHER, CONFIRMED, "gone")
    assert ids(checked) == [("node-gone", "gone")]
    site.add_node("gone")
    assert ids(checked) == []
    if checked.pods_are_endpoints:
        return  # Kubernetes deletes its nodes
    delete_node(store, "gone")
    assert ids(checked) == []
