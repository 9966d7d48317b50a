"""The release of unused addresses beside other programs, which change them between the look and the write."""

from collections.abc import Iterator
from functools import partial

import pytest

from harness.datastores import Site, session, set_ready
from harness.ipam import handles, in_threads, put, put_pool
from harness.ipam_check import NODE, attributes, clear, ids, place
from harness.site_fixtures import ON_EACH_DATASTORE
from svc._core.cidr import Address
from svc.admin.ipam_check import living_agents
from svc.admin.ipam_check.local_uses import LocalUses
from svc.admin.ipam_check.release import DELETED, FREE, READY, REFUSED, RELEASED, Outcome, carry_out, examine
from svc.attach import node_claim
from svc.attach.node_claim import NodeNameClaim
from svc.datastore.api import Backend, Delete
from svc.ipam.requests import Assign, Release, ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.claim import Claimant
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, NodeClaimKey

pytestmark = ON_EACH_DATASTORE

LEAKS = 12


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with session(site) as store:
        set_ready(store)
        put_pool(store, "pool4", "10.65.0.0/26", blockSize=30)
        site.add_node(NODE)
        yield store
    clear(site)


@pytest.fixture
def leaked(store: Backend) -> tuple[Address, ...]:
    """Assign addresses in three blocks to pods that do not exist."""
    ipam = IpamService(store, NODE)
    return tuple(ipam.assign(Assign(f"net.c{number}", attributes(f"gone{number}"))).addresses[0] for number in range(LEAKS))


def look(site: Site, store: Backend, *addresses: Address) -> list[Outcome]:
    return examine(place(site, store), [ReleaseTarget(address) for address in addresses], [], LocalUses())


def results(store: Backend, outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.object: outcome.result for outcome in carry_out(store, outcomes)}


def test_address_that_was_assigned_after_the_look_stays(site: Site, store: Backend, leaked: tuple[Address, ...]) -> None:
    """Also if its new allocation has the same handle. The sequence number tells them apart."""
    ipam, first = IpamService(store, NODE), leaked[0]
    outcomes = look(site, store, first)
    ipam.release(Release("net.c0"))
    ipam.assign(Assign("net.c0", attributes("gone0"), addresses=(first,)))
    assert results(store, outcomes) == {str(first): REFUSED}
    assert ipam.pool_and_handle(first)[1] == "net.c0"


def test_address_that_was_released_after_the_look_is_free(site: Site, store: Backend, leaked: tuple[Address, ...]) -> None:
    outcomes = look(site, store, leaked[0])
    IpamService(store, NODE).release(Release("net.c0"))
    assert results(store, outcomes) == {str(leaked[0]): FREE}


def test_handle_that_was_changed_after_the_look_stays(site: Site, store: Backend) -> None:
    """An ADD has counted an address in it."""
    revision = put(store, HandleKey("net.lost"), Handle({"10.65.0.0/30": 1})).revision
    outcomes = examine(place(site, store), [], [("net.lost", revision)], LocalUses())
    put(store, HandleKey("net.lost"), Handle({"10.65.0.0/30": 2}))
    assert results(store, outcomes) == {"handle net.lost": REFUSED}
    revision = store.get(HandleKey("net.lost")).revision
    outcomes = examine(place(site, store), [], [("net.lost", revision)], LocalUses())
    assert results(store, outcomes) == {"handle net.lost": DELETED}


def test_two_releases_at_once_release_each_address_once(site: Site, store: Backend, leaked: tuple[Address, ...]) -> None:
    def release(own: Backend) -> list[Outcome]:
        return list(carry_out(own, look(site, own, *leaked)))

    with session(site) as one, session(site) as two:
        done = in_threads([partial(release, one), partial(release, two)])
    assert [each for each in done if isinstance(each, Exception)] == []
    first, second = done
    assert {outcome.result for outcome in (*first, *second)} <= {RELEASED, FREE}
    released = [outcome.object for outcome in (*first, *second) if outcome.result == RELEASED]
    assert sorted(released) == sorted(map(str, leaked))
    assert handles(store) == {}
    assert ids(place(site, store)) == []


# an endpoint that an administrator has deleted


@pytest.fixture
def elsewhere() -> LocalUses:
    """Return what the machine of an administrator uses: none of the cluster's addresses."""
    return LocalUses(node="desk", is_shared=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_claim, "RENEW_SECONDS", 0.2)
    monkeypatch.setattr(living_agents, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(living_agents, "WATCH_SECONDS", 2.0)


def test_address_without_endpoint_of_a_living_node_stays(
    site: Site, store: Backend, leaked: tuple[Address, ...], elsewhere: LocalUses, quick: None
) -> None:
    """Only the node can tell whether the pod lives. With pods in the datastore, the pod itself shows that."""
    claim = NodeNameClaim(store, NODE, Claimant("machine", "boot", "/state"), renews=True)
    claim.require_decided()
    targets = [ReleaseTarget(address) for address in leaked]
    try:
        store.write([Delete(NodeClaimKey(NODE))])  # as an administrator does who believes that the machine is gone
        outcomes = examine(place(site, store), targets, [], elsewhere, is_forced=True)
        own = examine(place(site, store), targets, [], LocalUses(node=NODE, is_shared=True))
    finally:
        claim.close()
        claim.join()
    assert {outcome.result for outcome in own} == {READY}
    if place(site, store).client is not None:
        assert {outcome.result for outcome in outcomes} == {READY}
        return
    assert {outcome.result for outcome in outcomes} == {REFUSED}
    assert f"The agent of node {NODE!r} is alive: repeat this there" in outcomes[0].reason


def test_address_without_endpoint_of_a_silent_node_needs_force(
    site: Site, store: Backend, leaked: tuple[Address, ...], elsewhere: LocalUses, quick: None
) -> None:
    claim = NodeNameClaim(store, NODE, Claimant("machine", "boot", "/state"), renews=False)
    claim.require_decided()
    claim.close()
    targets = [ReleaseTarget(leaked[0])]
    if place(site, store).client is None:
        (outcome,) = examine(place(site, store), targets, [], elsewhere)
        assert outcome.result == REFUSED
        assert f"Repeat this on node {NODE!r}, which can tell; with --force if that machine is gone" in outcome.reason
    outcomes = examine(place(site, store), targets, [], elsewhere, is_forced=True)
    assert results(store, outcomes) == {str(leaked[0]): RELEASED}
