"""Extra writes: objects that are created in the transaction that assigns the addresses."""

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


def listing_addresses(name: str) -> ExtraWrite:
    """Return an extra write whose object lists the addresses."""

    def make(addresses: tuple[Address, ...]) -> Create:
        spec = {"ipNetworks": [str(address) for address in addresses]}
        return Create(key(name), Resource(KIND, {"name": name, "namespace": "ns"}, spec))

    return make


def key(name: str) -> ResourceKey:
    return ResourceKey(KIND, name, "ns")


def assign_with_extra_write(ipam: IpamService, handle: str, name: str) -> AssignResult:
    return ipam.assign(Assign(handle, {}, extra_write=listing_addresses(name)))


def listed_addresses(store: Backend, name: str) -> list[str]:
    value = store.get(key(name)).value
    assert isinstance(value, Resource)
    return list(value.spec["ipNetworks"])


@WITH_TRANSACTIONS
def test_extra_write_is_in_the_same_transaction(store: Backend) -> None:
    """The created object lists the assigned address."""
    take(IpamService(store, NODE), "net.first")
    recording = Recording(store)
    assigned = assign_with_extra_write(IpamService(recording, NODE), "net.c1", "c1")
    assert assigned.has_extra
    assert recording.written == [["create handle", "update block", "create resource"]]
    assert listed_addresses(store, "c1") == [str(address) for address in assigned.addresses]


@pytest.mark.only_over("piecemeal", "orch")
def test_non_atomic_store_skips_the_extra_write(store: Backend) -> None:
    """A partial write of both would be worse than two separate writes."""
    recording = Recording(store)
    assert not assign_with_extra_write(IpamService(recording, NODE), "net.c1", "c1").has_extra
    assert all("create resource" not in call for call in recording.written)


@WITH_TRANSACTIONS
def test_existing_object_is_not_changed(store: Backend) -> None:
    """The address is assigned all the same."""
    store.write([listing_addresses("c1")((Address("192.0.2.1"),))])
    assigned = assign_with_extra_write(IpamService(store, NODE), "net.c1", "c1")
    assert not assigned.has_extra
    assert listed_addresses(store, "c1") == ["192.0.2.1"]
    assert holdings(store) == {"net.c1": {*assigned.addresses}}


@WITH_TRANSACTIONS
def test_failed_assignment_makes_no_extra_write(store: Backend) -> None:
    with pytest.raises(CallerError):
        IpamService(store, NODE).assign(
            Assign("net.c1", {}, addresses=(Address("192.0.2.1"),), extra_write=listing_addresses("c1"))
        )
    with pytest.raises(NotFound):
        store.get(key("c1"))


@WITH_TRANSACTIONS
def test_extra_write_lists_the_address_of_the_last_attempt(store: Backend) -> None:
    """Another caller assigns the address that was planned first."""
    take(IpamService(store, NODE), "net.first")
    interrupted = Interfering(store, 1, lambda: take(IpamService(store, NODE), "net.rival"))
    assigned = assign_with_extra_write(IpamService(interrupted, NODE), "net.c1", "c1")
    assert assigned.has_extra
    assert listed_addresses(store, "c1") == [str(address) for address in assigned.addresses]
    assert holdings(store)["net.c1"] == {*assigned.addresses}


@WITH_TRANSACTIONS
def test_concurrent_extra_writes_of_one_object(store: Backend) -> None:
    """In one batch or several, each caller gets an address, and one caller creates the object."""
    managers = [IpamService(store, NODE) for _ in range(2)]
    outcomes = in_threads(
        lambda ipam=ipam, n=n, index=index: assign_with_extra_write(ipam, f"net.m{index}c{n}", "c")  # type: ignore[misc]
        for n in range(5)
        for index, ipam in enumerate(managers)
    )
    (winner,) = [outcome for outcome in outcomes if outcome.has_extra]
    assert listed_addresses(store, "c") == [str(address) for address in winner.addresses]
    assert len(holdings(store)) == 10
