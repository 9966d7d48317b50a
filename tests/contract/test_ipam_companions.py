"""What is created along with addresses: in the same write, or not at all."""

import pytest

from harness.backend_wrappers import Interfering, Recording
from harness.ipam import NODE, holdings, in_threads, put_node, put_pool, take
from svc._core.cidr import Address
from svc.datastore.api import Backend, Create, NotFound
from svc.ipam.requests import Assign, AssignResult, ExtraWrite
from svc.ipam.service import IpamService
from svc.model.errors import CallerError
from svc.model.keys import ResourceKey
from svc.model.resource import Resource

KIND = "WorkloadEndpoint"

WITH_TRANSACTIONS = pytest.mark.only_over("embedded", "etcdv3")


@pytest.fixture
def store(backend: Backend) -> Backend:
    put_node(backend)
    put_pool(backend, "pool4", "10.65.0.0/28", blockSize=29)
    return backend


def companion(name: str) -> ExtraWrite:
    """Tells the addresses."""

    def make(addresses: tuple[Address, ...]) -> Create:
        spec = {"ipNetworks": [str(address) for address in addresses]}
        return Create(key(name), Resource(KIND, {"name": name, "namespace": "ns"}, spec))

    return make


def key(name: str) -> ResourceKey:
    return ResourceKey(KIND, name, "ns")


def accompanied(ipam: IpamService, handle: str, name: str) -> AssignResult:
    return ipam.assign(Assign(handle, {}, extra_write=companion(name)))


def told(store: Backend, name: str) -> list[str]:
    value = store.get(key(name)).value
    assert isinstance(value, Resource)
    return list(value.spec["ipNetworks"])


@WITH_TRANSACTIONS
def test_companion_is_created_in_the_same_write(store: Backend) -> None:
    """And knows the address."""
    take(IpamService(store, NODE), "net.first")
    recording = Recording(store)
    assigned = accompanied(IpamService(recording, NODE), "net.c1", "c1")
    assert assigned.has_extra
    assert recording.written == [["create handle", "update block", "create resource"]]
    assert told(store, "c1") == [str(address) for address in assigned.addresses]


@pytest.mark.only_over("piecemeal", "orch")
def test_store_without_transactions_is_left_alone(store: Backend) -> None:
    """Half a write of both would be worse than two."""
    recording = Recording(store)
    assert not accompanied(IpamService(recording, NODE), "net.c1", "c1").has_extra
    assert all("create resource" not in call for call in recording.written)


@WITH_TRANSACTIONS
def test_one_that_is_there_already_is_left_as_it_is(store: Backend) -> None:
    """The address is assigned all the same."""
    store.write([companion("c1")((Address("192.0.2.1"),))])
    assigned = accompanied(IpamService(store, NODE), "net.c1", "c1")
    assert not assigned.has_extra
    assert told(store, "c1") == ["192.0.2.1"]
    assert holdings(store) == {"net.c1": {*assigned.addresses}}


@WITH_TRANSACTIONS
def test_without_addresses_there_is_no_companion(store: Backend) -> None:
    with pytest.raises(CallerError):
        IpamService(store, NODE).assign(Assign("net.c1", {}, addresses=(Address("192.0.2.1"),), extra_write=companion("c1")))
    with pytest.raises(NotFound):
        store.get(key("c1"))


@WITH_TRANSACTIONS
def test_after_a_lost_race_it_knows_the_address_that_was_won(store: Backend) -> None:
    """Another caller takes the one that was planned first."""
    take(IpamService(store, NODE), "net.first")
    crossed = Interfering(store, 1, lambda: take(IpamService(store, NODE), "net.rival"))
    assigned = accompanied(IpamService(crossed, NODE), "net.c1", "c1")
    assert assigned.has_extra
    assert told(store, "c1") == [str(address) for address in assigned.addresses]
    assert holdings(store)["net.c1"] == {*assigned.addresses}


@WITH_TRANSACTIONS
def test_rivals_for_one_companion(store: Backend) -> None:
    """In one batch or in many: every caller gets an address, one of them the extra write."""
    managers = [IpamService(store, NODE) for _ in range(2)]
    outcomes = in_threads(
        lambda ipam=ipam, n=n, index=index: accompanied(ipam, f"net.m{index}c{n}", "c")  # type: ignore[misc]
        for n in range(5)
        for index, ipam in enumerate(managers)
    )
    (winner,) = [outcome for outcome in outcomes if outcome.has_extra]
    assert told(store, "c") == [str(address) for address in winner.addresses]
    assert len(holdings(store)) == 10
