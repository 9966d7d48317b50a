"""svcctl ipam check while pods come and go: it reports none of what calls in flight look like, and every planted fault."""

from collections.abc import Iterator

import pytest

from harness.datastores import Site, session, set_ready
from harness.ipam import put, put_pool
from harness.ipam_check import attributes, clear, place
from harness.ipam_churn import CHECKS, THREADS, churning
from harness.site_fixtures import ON_EACH_DATASTORE
from svc._core.cidr import Cidr
from svc.admin import pools
from svc.admin.ipam_check.check import check
from svc.admin.ipam_check.local_uses import LocalUses
from svc.admin.ipam_check.release import RELEASED, carry_out, examine
from svc.datastore.api import Backend
from svc.ipam.requests import Assign, Release, ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.ipam import Handle
from svc.model.keys import HandleKey

pytestmark = ON_EACH_DATASTORE


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with session(site) as store:
        set_ready(store)
        put_pool(store, "pool4", "10.65.0.0/26", blockSize=30)
        for number in range(THREADS):
            site.add_node(f"node{number + 1}")
            site.add_pod(f"web{number}")
        yield store
    clear(site)


def test_checks_during_churn_find_nothing(site: Site, store: Backend) -> None:
    with session(site) as reader, churning(site, store) as churn:
        for _ in range(CHECKS):
            assert check(place(site, reader), churn.await_calls).findings == ()
    assert check(place(site, store), churn.await_calls).findings == ()


def test_checks_during_churn_find_every_planted_fault(site: Site, store: Backend) -> None:
    """A handle and an address are lost beside the calls."""
    put(store, HandleKey("net.lost"), Handle({"10.65.0.0/30": 1}))
    (leaked,) = IpamService(store, "node2").assign(Assign("net.c9", attributes("gone", "node2"))).addresses
    planted = [("leaked", str(leaked)), ("handle-empty", "net.lost")]
    with session(site) as reader, churning(site, store) as churn:
        for _ in range(CHECKS):
            found = check(place(site, reader), churn.await_calls).findings
            assert [(finding.id, finding.object) for finding in found] == planted


def test_checks_during_changes_find_nothing(site: Site, store: Backend) -> None:
    """A pool is created, a node claims a block of it, the pool is deleted, and the datastore is locked and unlocked."""

    def change(count: int) -> None:
        name = f"extra{count}"
        put_pool(store, name, f"10.66.{count % 256}.0/28", blockSize=30, assignmentMode="Manual")
        ipam = IpamService(store, "node3")
        ipam.assign(Assign(f"net.x{count}", {"node": "node3"}, pools={4: (name,)}))
        ipam.release(Release(f"net.x{count}"))
        pools.delete(store, name)
        set_ready(store, ready=bool(count % 2))

    with session(site) as reader, churning(site, store, change) as churn:
        for _ in range(CHECKS):
            assert check(place(site, reader), churn.await_calls).findings == ()
    assert check(place(site, store), churn.await_calls).findings == ()


def test_release_during_churn_frees_only_what_is_leaked(site: Site, store: Backend) -> None:
    """It is asked to release every address of the pool. A pod fails whose address is not its own any more."""
    (leaked,) = IpamService(store, "node2").assign(Assign("net.c9", attributes("gone", "node2"))).addresses
    pool = Cidr("10.65.0.0/26")
    targets = [ReleaseTarget(pool.address(ordinal)) for ordinal in range(pool.size)]
    released: list[str] = []
    with session(site) as reader, churning(site, store) as churn:
        for _ in range(CHECKS):
            outcomes = carry_out(reader, examine(place(site, reader), targets, [], LocalUses()))
            released += [outcome.object for outcome in outcomes if outcome.result == RELEASED]
        churn.await_calls()
    assert released == [str(leaked)]
    assert check(place(site, store), churn.await_calls).findings == ()
