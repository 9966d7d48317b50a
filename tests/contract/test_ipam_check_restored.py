"""Findings on documents that contradict themselves, have another size, or cannot be read: planted one by one, and mended."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from harness.datastores import Site
from harness.ipam import block_of, put, put_pool, put_settings, remove
from harness.ipam_check import NODE, POOL, WEB, backup, delete, ids, place, result, spoil, web_in_pool
from harness.site_fixtures import ON_EACH_DATASTORE
from svc._core.cidr import Cidr
from svc.admin.ipam_check.observation import Place
from svc.datastore.api import Backend
from svc.ipam.blocks import format_time
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.ipam import Attribute
from svc.model.keys import BlockKey, HandleKey, Key

pytestmark = ON_EACH_DATASTORE

BLOCK = "10.65.0.0/30"
TAG = {"handle_id": "net.c1"}


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


@pytest.mark.parametrize(
    "fields",
    [
        {"allocations": [1, None, None, None]},
        {"allocations": [-1, None, None, None]},
        {"allocations": [0, None, None]},
        {"allocations": [0, None, None, None, None]},
        {"attributes": []},
        {"unallocated": [1, 2, 3, 4]},
        {"unallocated": [1, 2, -1]},
        {"unallocated": [1, 2, 2]},
        {"unallocated": [0, 1, 2, 3]},
        {"unallocated": [1, 2]},
        {"unallocated": []},
    ],
    ids=str,
)
def test_block_that_contradicts_itself_is_restored(
    site: Site, store: Backend, checked: Place, fields: dict[str, object]
) -> None:
    """Its finding says so, and no address of it is reported, because nothing is known about them."""
    key = BlockKey(Cidr(BLOCK))
    restore = backup(site, key)
    spoil(site, key, fields)
    (finding,) = result(checked).findings
    assert (finding.id, finding.object) == ("block-invalid", BLOCK)
    assert finding.fix == "correct it, or restore it from a backup: svc does not use it"
    restore()
    assert ids(checked) == []


def test_attribute_that_no_address_has_is_removed_by_the_next_del(store: Backend, checked: Place, ipam: IpamService) -> None:
    block = block_of(store, WEB)
    put(store, BlockKey(Cidr(BLOCK)), replace(block, attributes=[*(block.attributes or ()), Attribute("net.c9")]))
    (finding,) = result(checked).findings
    assert (finding.id, finding.object, finding.problem) == ("block-invalid", BLOCK, "no address has attribute 1 of 2")
    assert finding.fix == "none is needed: the next DEL that frees an address of the block removes it"
    ipam.assign(Assign("net.c4", {"node": NODE}))
    ipam.release(Release("net.c4"))
    assert ids(checked) == []


def test_address_that_was_released_in_the_future_is_freed_by_the_next_add(
    store: Backend, checked: Place, ipam: IpamService
) -> None:
    """The time is further away than the cooldown lasts, so it does not count."""
    put_settings(store, cooldown_seconds=60)
    released_in(store, timedelta(hours=1))
    (finding,) = result(checked).findings
    assert (finding.id, finding.object) == ("cooldown-future", "10.65.0.3")
    assert finding.fix.startswith("set the clock of the node that is wrong")
    assert finding.fix.endswith("the next ADD or DEL that writes the block frees it")
    ipam.assign(Assign("net.c4", {"node": NODE}))
    assert ids(checked) == []
    assert [tag is None for tag in block_of(store, WEB).ordinals.allocations()] == [False, False, True, True]


def test_address_that_was_released_in_the_near_future_is_free_after_that_time(
    store: Backend, checked: Place, ipam: IpamService
) -> None:
    """Its cooldown counts from then. The time passes here by another document."""
    put_settings(store, cooldown_seconds=1200)
    released_in(store, timedelta(minutes=10))
    (finding,) = result(checked).findings
    assert (finding.id, finding.object) == ("cooldown-future", "10.65.0.3")
    assert finding.fix.endswith("the address is free a cooldown after that time")
    ipam.assign(Assign("net.c4", {"node": NODE}))
    assert ids(checked) == [("cooldown-future", "10.65.0.3")]
    tags = [
        replace(each, released_at=format_time(datetime.now(timezone.utc) - timedelta(minutes=21))) if each.released_at else each
        for each in block_of(store, WEB).attributes or ()
    ]
    put(store, BlockKey(Cidr(BLOCK)), replace(block_of(store, WEB), attributes=tags))
    ipam.assign(Assign("net.c5", {"node": NODE}))
    assert ids(checked) == []


def released_in(store: Backend, ahead: timedelta) -> None:
    """Let the last address of the block of `web` be in a cooldown that begins later."""
    block = block_of(store, WEB).copy()
    block.ordinals.allocate_at(3, 1)
    released = Attribute(released_at=format_time(datetime.now(timezone.utc) + ahead))
    put(store, BlockKey(block.cidr), replace(block, attributes=[*(block.attributes or ()), released]))


def test_block_of_another_size_is_deleted_when_its_workloads_have_ended(
    site: Site, store: Backend, checked: Place, ipam: IpamService
) -> None:
    put_pool(store, "pool4", POOL, blockSize=29)
    (finding,) = result(checked).findings
    assert (finding.id, finding.object, finding.addresses) == ("block-size", BLOCK, (WEB,))
    delete(site, store, ipam, "web", "c1")
    IpamService(store, NODE).assign(Assign("net.c4", {"node": NODE}))
    assert ids(checked) == []


@pytest.mark.parametrize("key", [HandleKey("net.c1"), BlockKey(Cidr(BLOCK))], ids=["handle", "block"])
def test_document_that_cannot_be_read_is_corrected(site: Site, store: Backend, checked: Place, key: Key) -> None:
    restore = backup(site, key)
    spoil(site, key, None)
    (finding,) = result(checked).findings
    assert finding.id == "undecodable"
    assert finding.fix == f"correct or delete {finding.object}; svc leaves it alone"
    restore()
    assert ids(checked) == []


def test_handle_that_cannot_be_read_is_deleted(site: Site, store: Backend, checked: Place, ipam: IpamService) -> None:
    """It has no address any more."""
    ipam.assign(Assign("net.c4", {"node": NODE}))
    key = HandleKey("net.c4")
    spoil(site, key, None)
    assert [id_ for id_, _ in ids(checked)] == ["undecodable"]
    remove(store, key)
    assert ids(checked) == [("handle-missing", "net.c4")]
