"""Releases that are planned first and carried out later have the effect of plain ones, also if the datastore changes."""

import random
from collections.abc import Callable

import pytest

from harness.backend_wrappers import Recording
from harness.ipam import NODE, free, handles, holdings, in_threads, put, put_node, put_pool, take
from svc._core.cidr import Address
from svc.datastore.api import Backend, Delete, KeyedError
from svc.ipam import service as module
from svc.ipam.requests import Release
from svc.ipam.service import IpamService, PlannedRelease
from svc.model.keys import HandleKey, ResourceKey
from svc.model.resource import Resource

POOL = "10.65.0.0/28"
ENDPOINT = ResourceKey("WorkloadEndpoint", "node1-cni-c1-eth0", "default")

OpenStore = Callable[[], Backend]


@pytest.fixture
def store(backend: Backend) -> Backend:
    put_node(backend)
    put_node(backend, "node2")
    put_pool(backend, "pool4", POOL, blockSize=30)
    return backend


@pytest.fixture
def ipam(store: Backend) -> IpamService:
    return IpamService(store, NODE)


def planned(ipam: IpamService, store: Backend, request: Release) -> PlannedRelease:
    found = ipam.plan_release(request, store.get(HandleKey(request.handle)))
    assert found is not None
    return found


def carry_out(ipam: IpamService, store: Backend, plan: PlannedRelease) -> bool:
    return ipam.carry_out(plan, store.get(HandleKey(plan.request.handle)))


def test_plan_changes_nothing_until_it_is_carried_out(store: Backend, ipam: IpamService) -> None:
    (address,) = take(ipam, "net.c1")
    plan = planned(ipam, store, Release("net.c1"))
    assert holdings(store) == {"net.c1": {Address(address)}}
    assert carry_out(ipam, store, plan)
    assert holdings(store) == {}


def test_kept_address_stays(store: Backend, ipam: IpamService) -> None:
    (first,), (second,) = take(ipam, "net.c1"), take(ipam, "net.c1")
    carry_out(ipam, store, planned(ipam, store, Release("net.c1", frozenset({Address(first)}))))
    assert holdings(store) == {"net.c1": {Address(first)}}
    assert second != first


def change_by_this_process(store: Backend, ipam: IpamService) -> None:
    take(ipam, "net.c2")


def change_by_another_process(store: Backend, ipam: IpamService) -> None:
    take(IpamService(store, NODE), "net.c2")


def borrow(store: Backend, ipam: IpamService) -> None:
    for number in range(14):
        take(IpamService(store, "node2"), f"net.other{number}")


def nothing(store: Backend, ipam: IpamService) -> None: ...


@pytest.mark.parametrize("change", [nothing, change_by_this_process, change_by_another_process, borrow])
def test_block_that_changes_after_the_plan(
    store: Backend, ipam: IpamService, change: Callable[[Backend, IpamService], None]
) -> None:
    take(ipam, "net.c1")
    plan = planned(ipam, store, Release("net.c1"))
    change(store, ipam)
    before = holdings(store)
    carry_out(ipam, store, plan)
    assert holdings(store) == {handle: held for handle, held in before.items() if handle != "net.c1"}


@pytest.mark.only_over("embedded", "etcdv3")
def test_known_change_costs_no_write(store: Backend) -> None:
    """The plan is made again at once: its write would conflict."""
    recording = Recording(store)
    ipam = IpamService(recording, NODE)
    take(ipam, "net.c1")
    plan = planned(ipam, store, Release("net.c1"))
    take(ipam, "net.c2")
    conflicts = recording.meter.ipam_conflicts
    carry_out(ipam, store, plan)
    assert recording.meter.ipam_conflicts == conflicts


def test_old_plan_is_made_again(store: Backend, ipam: IpamService, monkeypatch: pytest.MonkeyPatch) -> None:
    take(ipam, "net.c1")
    plan = planned(ipam, store, Release("net.c1"))
    monkeypatch.setattr(module, "PLAN_SECONDS", -1.0)
    monkeypatch.setattr(plan, "batch", None)
    assert carry_out(ipam, store, plan)
    assert holdings(store) == {}


def test_release_of_a_missing_handle_is_not_planned(store: Backend, ipam: IpamService) -> None:
    (found,) = store.get_all([HandleKey("net.c1")])
    assert ipam.plan_release(Release("net.c1"), found) is None


@pytest.mark.only_over("embedded", "etcdv3")
def test_deletion_joins_the_write_and_its_conflict_fails_the_release(store: Backend, ipam: IpamService) -> None:
    endpoint = Resource(ENDPOINT.kind, {"name": ENDPOINT.name, "namespace": ENDPOINT.namespace}, {"node": NODE})
    take(ipam, "net.c1")
    stale = put(store, ENDPOINT, endpoint).revision
    present = put(store, ENDPOINT, endpoint).revision
    with pytest.raises(KeyedError):
        carry_out(ipam, store, planned(ipam, store, Release("net.c1", extra_write=Delete(ENDPOINT, stale))))
    assert handles(store).keys() == {"net.c1"}
    assert carry_out(ipam, store, planned(ipam, store, Release("net.c1", extra_write=Delete(ENDPOINT, present))))
    assert holdings(store) == {}
    assert store.find(ENDPOINT) is None


def test_many_at_once_beside_assignments(store: Backend, ipam: IpamService) -> None:
    names = [f"net.c{number}" for number in range(6)]
    for name in names:
        take(ipam, name)
    plans = [planned(ipam, store, Release(name)) for name in names]
    calls: list[Callable[[], object]] = [lambda plan=plan: carry_out(ipam, store, plan) for plan in plans]  # type: ignore[misc]
    calls += [lambda number=number: take(ipam, f"net.new{number}") for number in range(6)]  # type: ignore[misc]
    outcomes = in_threads(calls)
    assert outcomes[:6] == [True] * 6
    assert holdings(store).keys() == {f"net.new{number}" for number in range(6)}


@pytest.mark.parametrize("seed", range(10))
def test_planned_releases_leave_what_plain_ones_leave(store: Backend, ipam: IpamService, seed: int) -> None:
    """Random calls of two services on one node. A release is planned some calls before it is carried out, or not at all."""
    chance, other = random.Random(seed), IpamService(store, NODE)
    expected: dict[str, set[Address]] = {}
    plans: list[tuple[IpamService, PlannedRelease]] = []
    for number in range(40):
        service = chance.choice((ipam, other))
        free_ones = sorted(expected.keys() - {plan.request.handle for _, plan in plans})
        match chance.choice(("take", "take", "plan", "carry out", "free")):
            case "take" if sum(map(len, expected.values())) < 14:
                expected[f"net.c{number}"] = set(map(Address, take(service, f"net.c{number}")))
            case "plan" if free_ones:
                plans.append((service, planned(service, store, Release(chance.choice(free_ones)))))
            case "carry out" if plans:
                service, plan = plans.pop(chance.randrange(len(plans)))
                assert carry_out(service, store, plan)
                del expected[plan.request.handle]
            case "free" if free_ones:
                free(service, handle := chance.choice(free_ones))
                del expected[handle]
        assert holdings(store) == expected
