"""svcctl ipam check while pods come and go: a fault of each kind is planted, and each check finds all of them and no others."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from harness.datastores import Site, session, set_ready
from harness.ipam import put, put_affinity, put_block, put_pool
from harness.ipam_check import attributes, clear, place, put_endpoint, spoil
from harness.ipam_churn import CHECKS, THREADS, churning
from harness.site_fixtures import ON_EACH_DATASTORE
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.admin.ipam_check.check import check
from svc.admin.ipam_check.findings import DATASTORE, KINDS
from svc.datastore.api import Backend, Delete
from svc.ipam.blocks import format_time
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.ipam import CONFIRMED, PENDING, Attribute, Block, Handle
from svc.model.keys import BlockKey, HandleKey

pytestmark = ON_EACH_DATASTORE

Faults = set[tuple[str, str]]

OTHER = "node2"  # which makes no calls
AGO = timedelta(hours=1)


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    """Make a pool for the calls, and one for the faults."""
    with session(site) as store:
        set_ready(store)
        put_pool(store, "pool4", "10.65.0.0/26", blockSize=30)
        put_pool(store, "calm", "10.67.0.0/24", blockSize=30, assignmentMode="Manual")
        for number in range(THREADS):
            site.add_node(f"node{number + 1}")
            site.add_pod(f"web{number}")
        yield store
    clear(site)


def plant(site: Site, store: Backend) -> Faults:
    """Plant a fault of each kind, and return their IDs and objects."""
    planted = {*_in_addresses(site, store), *_in_handles(store), *_in_blocks(site, store), *_in_affinities(store)}
    planted |= {*_in_cooldowns(store), *_in_others(site, store)}
    return planted


def _assigned(store: Backend, handle: str, owner: dict[str, str]) -> str:
    return str(IpamService(store, OTHER).assign(Assign(handle, owner, pools={4: ("calm",)})).addresses[0])


def _in_addresses(site: Site, store: Backend) -> Iterator[tuple[str, str]]:
    for pod in ("db", "away", "first", "second"):
        site.add_pod(pod)
    yield "leaked", _assigned(store, "net.gone", attributes("gone", OTHER))
    put_endpoint(site, store, "db", "d1", "10.67.0.100")
    yield "unallocated", "10.67.0.100"
    put_endpoint(site, store, "away", "a1", "192.0.2.1")
    yield "outside", "192.0.2.1"
    shared = _assigned(store, "net.s1", attributes("first"))
    put_endpoint(site, store, "first", "s1", shared)
    put_endpoint(site, store, "second", "s2", shared)
    yield "duplicate", shared


def _in_handles(store: Backend) -> Iterator[tuple[str, str]]:
    put(store, HandleKey("net.empty"), Handle({"10.67.0.0/30": 1}))
    yield "handle-empty", "net.empty"
    _assigned(store, "net.missing", {"node": OTHER})
    store.write([Delete(HandleKey("net.missing"))])
    yield "handle-missing", "net.missing"
    _assigned(store, "net.wrong", {"node": OTHER})
    put(store, HandleKey("net.wrong"), Handle({"10.67.0.0/30": 2}))
    yield "handle-miscounted", "net.wrong"


def _in_blocks(site: Site, store: Backend) -> Iterator[tuple[str, str]]:
    put_block(store, "10.99.0.0/30", None)
    yield "block-orphaned", "10.99.0.0/30"
    large = Cidr("10.67.0.128/29")
    put(store, BlockKey(large), Block(large, None, Ordinals(3), 1000))
    yield "block-size", str(large)
    put_block(store, "10.67.0.140/30", None)
    spoil(site, BlockKey(Cidr("10.67.0.140/30")), {"allocations": [7, None, None, None]})
    yield "block-invalid", "10.67.0.140/30"


def _in_affinities(store: Backend) -> Iterator[tuple[str, str]]:
    put_affinity(store, "10.67.0.200/30", CONFIRMED, OTHER)
    yield "affinity-stale", f"host:{OTHER} 10.67.0.200/30"
    put_block(store, "10.67.0.204/30", f"host:{OTHER}")
    yield "affinity-missing", "10.67.0.204/30"
    put_block(store, "10.67.0.208/30", f"host:{OTHER}")
    put_affinity(store, "10.67.0.208/30", CONFIRMED, OTHER)
    put_affinity(store, "10.67.0.208/30", CONFIRMED, "node3")
    yield "affinity-double", "10.67.0.208/30"
    put_block(store, "10.67.0.212/30", f"host:{OTHER}", claimed_at=format_time(datetime.now(timezone.utc) - AGO))
    put_affinity(store, "10.67.0.212/30", PENDING, OTHER)
    yield "affinity-pending", f"host:{OTHER} 10.67.0.212/30"


def _in_cooldowns(store: Backend) -> Iterator[tuple[str, str]]:
    now, cidr = datetime.now(timezone.utc), Cidr("10.67.0.216/30")
    block = Block(cidr, None, Ordinals(2), 1000)
    attributes_ = [Attribute(released_at=format_time(moment)) for moment in (now - AGO, now + AGO)]
    for ordinal in (0, 1):
        block.ordinals.allocate_at(ordinal, ordinal)
    put(store, BlockKey(cidr), replace(block, attributes=attributes_))
    yield "cooldown-over", "10.67.0.216"
    yield "cooldown-future", "10.67.0.217"


def _in_others(site: Site, store: Backend) -> Iterator[tuple[str, str]]:
    put_pool(store, "narrow", "10.98.0.0/24", blockSize=30, assignmentMode="Manual")
    put_pool(store, "wide", "10.98.0.0/16", blockSize=30, assignmentMode="Manual")
    yield "pools-overlap", "narrow and wide"
    put(store, HandleKey("net.broken"), Handle({"10.67.0.0/30": 1}))
    spoil(site, HandleKey("net.broken"), None)
    yield "undecodable", "net.broken"
    if store.requires_node:
        put_block(store, "10.67.0.220/30", "host:gone")
        put_affinity(store, "10.67.0.220/30", CONFIRMED, "gone")
        yield "node-gone", "gone"


def test_checks_during_churn_find_a_fault_of_each_kind(site: Site, store: Backend) -> None:
    planted = plant(site, store)
    kinds = {id_ for id_, kind in KINDS.items() if kind.source == DATASTORE}
    assert {id_ for id_, _ in planted} == kinds - (set() if store.requires_node else {"node-gone"})
    with session(site) as reader, churning(site, store) as churn:
        for _ in range(CHECKS):
            found = check(place(site, reader), churn.await_calls).findings
            shown = {(each.id, each.object.rpartition("/")[2] if each.id == "undecodable" else each.object) for each in found}
            assert shown == planted
