"""Single addresses: checked releases, limits per handle, and changes of their owner."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.backend_wrappers import Interfering, Recording, Through
from harness.ipam import (
    NODE,
    block_of,
    blocks,
    document,
    free,
    handles,
    holdings,
    in_threads,
    put,
    put_block,
    put_node,
    put_pool,
    put_settings,
    take,
    wipe,
)
from svc._core.cidr import Address
from svc.admin.owner_attributes import Owner, SetOwner, attributes_of, set_owners
from svc.datastore.api import Backend
from svc.ipam.requests import Allocation, Assign, ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, PeerError
from svc.model.ipam import Attribute, Handle
from svc.model.keys import HandleKey, ResourceQuery

POOL = "10.65.0.0/28"  # four blocks of four addresses


@pytest.fixture
def store(backend: Backend) -> Backend:
    put_node(backend)
    put_node(backend, "node2")
    put_pool(backend, "pool4", POOL, blockSize=30)
    put_pool(backend, "pool6", "fd65::/124", blockSize=126)
    return backend


@pytest.fixture
def ipam(store: Backend) -> IpamService:
    return IpamService(store, NODE)


def sequence_of(store: Backend, address: str) -> int:
    block = block_of(store, address)
    return block.ordinal_sequences[block.cidr.ordinal(Address(address))]


# several requested addresses


def assign_requested(ipam: IpamService, handle: str, *addresses: str) -> list[str]:
    request = Assign(handle, {}, addresses=tuple(map(Address, addresses)))
    return [str(allocation.address) for allocation in ipam.assign(request).allocations]


def test_requested_addresses_keep_their_order(store: Backend, ipam: IpamService) -> None:
    """The order does not depend on the requested families. Two addresses may be in one block."""
    assert assign_requested(ipam, "net.a", "fd65::5", "10.65.0.5", "10.65.0.6") == ["fd65::5", "10.65.0.5", "10.65.0.6"]
    assert holdings(store) == {"net.a": frozenset(map(Address, ("10.65.0.5", "10.65.0.6", "fd65::5")))}
    assert sum(handles(store)["net.a"].values()) == 3


@pytest.mark.parametrize("refused", ["10.99.0.1", "10.65.0.9"], ids=["in no pool", "held by another"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_assigns_all_requested_addresses_or_none(store: Backend, ipam: IpamService, refused: str, position: int) -> None:
    take(ipam, "net.other", at="10.65.0.9")
    wanted = ["10.65.0.5", "fd65::5"]
    wanted.insert(position, refused)
    with pytest.raises(CallerError) as caught:
        assign_requested(ipam, "net.a", *wanted)
    assert f"address {refused!r} " in caught.value.msg
    assert holdings(store) == {"net.other": frozenset({Address("10.65.0.9")})}
    assert set(handles(store)) == {"net.other"}


def test_full_handle_gets_its_requested_addresses_again(ipam: IpamService) -> None:
    first = Assign("net.a", {}, addresses=(Address("10.65.0.5"), Address("fd65::5")), max_per_handle=1)
    assert [str(each.address) for each in ipam.assign(first).allocations] == ["10.65.0.5", "fd65::5"]
    assert ipam.assign(first).allocations == ipam.assign(first).allocations
    with pytest.raises(CallerError, match="holds 1 IPv6 addresses already"):
        ipam.assign(Assign("net.a", {}, addresses=(Address("10.65.0.5"), Address("fd65::6")), max_per_handle=1))


def test_pool_and_handle_of_an_address(ipam: IpamService) -> None:
    take(ipam, "net.a", at="10.65.0.5")
    assert ipam.pool_and_handle(Address("10.65.0.5")) == ("pool4", "net.a")
    assert ipam.pool_and_handle(Address("10.65.0.6")) == ("pool4", "")
    assert ipam.pool_and_handle(Address("10.65.0.9")) == ("pool4", ""), "the address has no block"
    assert ipam.pool_and_handle(Address("10.99.0.1")) == ("", "")


# releasing by address


def test_each_block_is_written_once_per_release(store: Backend) -> None:
    """The same write updates the handles of all its released addresses."""
    recording = Recording(store)
    ipam = IpamService(recording, NODE)
    got = [take(ipam, f"net.c{n}", versions=(4, 6)) for n in range(4)]
    recording.written.clear()
    addresses = [Address(address) for pair in got[:3] for address in pair]
    freed = ipam.release_addresses([ReleaseTarget(address) for address in addresses])
    assert set(freed.freed) == set(addresses)
    assert (freed.unallocated, freed.refused) == ((), {})
    assert recording.written == [["update block", "update block", "delete handle", "delete handle", "delete handle"]]
    assert holdings(store).keys() == {"net.c3"}


def test_many_handles_are_read_with_one_list(store: Backend) -> None:
    put_pool(store, "pool4", "10.65.0.0/26", blockSize=26)
    for number in range(40):
        take(IpamService(store, NODE), f"net.c{number}")
    counting = Through(store)
    addresses = [ReleaseTarget(address) for held in holdings(store).values() for address in held]
    assert len(IpamService(counting, NODE).release_addresses(addresses).freed) == 40
    assert counting.calls["get"] < 10
    assert holdings(store) == {}


def test_releasing_free_addresses_reports_them(store: Backend, ipam: IpamService) -> None:
    """They can be in a block, in no block or in no pool. For a repeated address, the last condition counts."""
    (got,) = take(ipam, "net.c")
    wanted = [Address(text) for text in (got, str(block_of(store, got).cidr.address(3)), "10.65.0.99", "fd99::1")]
    freed = ipam.release_addresses(
        [ReleaseTarget(wanted[0], "net.other"), *map(ReleaseTarget, wanted), ReleaseTarget(wanted[0])]
    )
    assert freed.freed == (wanted[0],)
    assert set(freed.unallocated) == set(wanted[1:])
    assert holdings(store) == {}
    before = document(store)
    assert set(ipam.release_addresses([ReleaseTarget(address) for address in wanted]).unallocated) == set(wanted)
    assert document(store) == before


@pytest.mark.parametrize("condition", [{"handle": "net.other"}, {"sequence": 7}])
def test_address_with_another_handle_or_sequence_is_not_released(
    store: Backend, ipam: IpamService, condition: dict[str, Any]
) -> None:
    """No other address of the same block is released either. Other blocks are not affected."""
    got = [take(ipam, f"net.c{n}")[0] for n in range(5)]
    freed = ipam.release_addresses(
        [ReleaseTarget(Address(got[0]), **condition), ReleaseTarget(Address(got[1])), ReleaseTarget(Address(got[4]))]
    )
    assert freed.freed == (Address(got[4]),)
    assert freed.refused.keys() == {Address(got[0]), Address(got[1])}
    assert all(isinstance(failure, CallerError) for failure in freed.refused.values())
    assert len(holdings(store)) == 4


def test_release_checks_handle_and_sequence(store: Backend, ipam: IpamService) -> None:
    """A later allocation of the same address has another sequence number."""
    put_pool(store, "pool4", "10.65.0.0/30", blockSize=30)
    (got,) = take(ipam, "net.c")
    old = sequence_of(store, got)
    free(ipam, "net.c")
    for number in range(4):
        take(ipam, f"net.d{number}")
    (refused,) = ipam.release_addresses([ReleaseTarget(Address(got), sequence=old)]).refused.values()
    assert "was assigned again" in str(refused)
    holder = next(name for name, held in holdings(store).items() if Address(got) in held)
    assert ipam.release_addresses([ReleaseTarget(Address(got), holder, sequence_of(store, got))]).freed == (Address(got),)
    assert holder not in holdings(store)


@pytest.mark.only_over("embedded", "piecemeal", "etcdv3")  # an API server refuses such a handle
def test_stored_handle_is_cut_at_a_line_end(store: Backend, ipam: IpamService) -> None:
    """Some programs used to store more text after the line end."""
    (got,) = take(ipam, "net.c\rmore")
    assert ipam.release_addresses([ReleaseTarget(Address(got), "net.c")]).freed == (Address(got),)
    assert (holdings(store), handles(store)) == ({}, {})


def test_release_refuses_only_after_reading_the_datastore(store: Backend, ipam: IpamService) -> None:
    """Another process of the node has assigned the address, or released and assigned it again."""
    (got,) = take(ipam, "net.c")
    block = block_of(store, got).cidr
    take(IpamService(store, NODE), "net.new", at=str(block.address(2)))
    assert ipam.release_addresses([ReleaseTarget(block.address(2), "net.new")]).freed == (block.address(2),)
    free(IpamService(store, NODE), "net.c")
    take(IpamService(store, NODE), "net.late", at=got)
    assert ipam.release_addresses([ReleaseTarget(Address(got), "net.late")]).freed == (Address(got),)
    assert holdings(store) == {}


@pytest.mark.parametrize("deed", ["disabled", "gone", "other size"])
def test_addresses_of_former_pools_can_be_released(store: Backend, ipam: IpamService, deed: str) -> None:
    """The pool is disabled, deleted, or created again with another block size."""
    (got,) = take(ipam, "net.c")
    _POOLS[deed](store)
    assert IpamService(store, "node2").release_addresses([ReleaseTarget(Address(got))]).freed == (Address(got),)
    assert holdings(store) == {}


_POOLS: dict[str, Callable[[Backend], object]] = {
    "disabled": lambda store: put_pool(store, "pool4", POOL, blockSize=30, disabled=True),
    "gone": lambda store: wipe(store, ResourceQuery("IPPool")),
    "other size": lambda store: put_pool(store, "pool4", POOL, blockSize=28),
}


def test_addresses_without_a_handle_can_be_released(store: Backend, ipam: IpamService) -> None:
    """The handle of an allocation may be empty or deleted."""
    put_block(store, "10.65.0.0/30", "host:node1", ["", "net.gone"])
    freed = ipam.release_addresses([ReleaseTarget(Address("10.65.0.0")), ReleaseTarget(Address("10.65.0.1"))])
    assert len(freed.freed) == 2
    assert holdings(store) == {}


def test_release_by_address_retries_after_a_conflict(store: Backend) -> None:
    """Another caller writes the block between the read and the write."""
    (got,) = take(IpamService(store, NODE), "net.c")
    interrupted = Interfering(store, 1, lambda: take(IpamService(store, NODE), "net.rival"))
    assert IpamService(interrupted, NODE).release_addresses([ReleaseTarget(Address(got), "net.c")]).freed == (Address(got),)
    assert holdings(store).keys() == {"net.rival"}


# addresses of a handle


def test_addresses_of_a_handle_are_read_from_the_datastore(store: Backend, ipam: IpamService) -> None:
    got = take(ipam, "net.c", versions=(4, 6, 4))
    assert {str(address) for address in IpamService(store, "node2").addresses_of("net.c")} == set(got)
    assert ipam.addresses_of("net.none") == ()


def test_handle_with_a_limit_gets_its_address_again(store: Backend, ipam: IpamService) -> None:
    """The limit counts per family. A repeated request writes nothing."""
    first = take(ipam, "net.c", max_per_handle=1)
    both = take(ipam, "net.c", versions=(4, 6), max_per_handle=1)
    assert both[:1] == first
    before = document(store)
    for node in (NODE, "node2"):
        assert take(IpamService(store, node), "net.c", versions=(6, 4), max_per_handle=1) == both[::-1]
        assert take(IpamService(store, node), "net.c", at=first[0], max_per_handle=1) == first
    assert document(store) == before
    assert take(ipam, "net.c", max_per_handle=2) != first
    assert sum(handles(store)["net.c"].values()) == 3


def test_handle_with_a_limit_gets_no_further_address(store: Backend, ipam: IpamService) -> None:
    """A requested address and a second address in one request are both refused.

    After a release the handle can get another address.
    """
    take(ipam, "net.c", max_per_handle=1)
    for arguments in ({"at": "10.65.0.15"}, {"versions": (4, 4)}):
        with pytest.raises(CallerError, match="holds 1 IPv4 addresses already"):
            take(ipam, "net.c", max_per_handle=1, **arguments)
    free(ipam, "net.c")
    with pytest.raises(CallerError, match="holds 1 IPv4 addresses already"):
        take(ipam, "net.c", versions=(4, 4), max_per_handle=1)
    assert holdings(store) == {}
    assert take(ipam, "net.c", at="10.65.0.15", max_per_handle=1) == ("10.65.0.15",)


def test_concurrent_requests_of_a_limited_handle_get_one_address(store: Backend) -> None:
    """The requests come from two nodes at the same time."""
    managers = [IpamService(store, node) for node in (NODE, "node2")] * 4
    got = in_threads([lambda ipam=ipam: take(ipam, "vm", max_per_handle=1) for ipam in managers])  # type: ignore[misc]
    assert len({*got}) == 1
    assert len(holdings(store)["vm"]) == 1


def test_limit_counts_stored_addresses_not_cached_ones(store: Backend, ipam: IpamService) -> None:
    """Another process has released the address of the handle, and assigned another one to it."""
    (old,) = take(ipam, "vm", max_per_handle=1)
    rival = IpamService(store, NODE)
    free(rival, "vm")
    (new,) = take(rival, "vm")
    assert new != old
    assert take(ipam, "vm", max_per_handle=1) == (new,)


def test_handle_that_counts_a_missing_address_is_retried(store: Backend, ipam: IpamService) -> None:
    """The allocation may follow. The attempts end without an assignment beyond the limit."""
    block = block_of(store, *take(ipam, "net.c")).cidr
    put(store, HandleKey("vm"), Handle({str(block): 1}))
    with pytest.raises(PeerError, match="kept changing"):
        take(ipam, "vm", max_per_handle=1)
    free(ipam, "vm")
    assert take(ipam, "vm", max_per_handle=1)


def test_handle_counts_addresses_per_block(store: Backend, ipam: IpamService) -> None:
    found = ipam.assign(Assign("net.c", {}, (4,) * 6)).allocations
    assert len({allocation.address for allocation in found}) == 6
    assert sorted(handles(store)["net.c"].values()) == [2, 4]
    free(ipam, "net.c")
    assert handles(store) == {}


# owners

ACTIVE, OTHER = Owner("default", "vm-1"), Owner("default", "vm-2")


def owner_attributes(owner: Owner) -> dict[str, str]:
    return {"namespace": owner.namespace, "pod": owner.name}


def test_owners_of_an_allocation_can_be_replaced(store: Backend, ipam: IpamService) -> None:
    """A virtual machine migrates in this way. The other addresses of its handle keep their owners."""
    request = Assign("vm", owner_attributes(ACTIVE), (4, 4))
    migrating, sibling = (allocation.address for allocation in ipam.assign(request).allocations)
    set_owners(store, migrating, "vm", alternate=SetOwner(owner_attributes(OTHER), Owner()))
    assert attributes_of(store, migrating) == Attribute("vm", owner_attributes(ACTIVE), owner_attributes(OTHER))
    set_owners(store, migrating, "vm", active=SetOwner(owner_attributes(OTHER), ACTIVE), alternate=SetOwner({}, OTHER))
    assert attributes_of(store, migrating) == Attribute("vm", owner_attributes(OTHER))
    assert attributes_of(store, sibling) == Attribute("vm", owner_attributes(ACTIVE))
    set_owners(store, migrating, "vm", active=SetOwner({}))
    assert attributes_of(store, migrating) == Attribute("vm")
    set_owners(store, migrating, "vm", active=SetOwner(owner_attributes(ACTIVE), Owner()))
    assert len(next(iter(blocks(store).values())).attributes or ()) == 1
    free(ipam, "vm")
    assert holdings(store) == {}


@pytest.mark.parametrize(
    ("handle", "change", "message"),
    [
        ("vm", {"active": SetOwner({}, OTHER)}, "the active owner of address"),
        ("vm", {"active": SetOwner({}, Owner())}, "the active owner of address"),
        ("vm", {"alternate": SetOwner({}, ACTIVE)}, "the alternate owner of address"),
        ("vm", {"active": SetOwner({}, ACTIVE), "alternate": SetOwner({}, ACTIVE)}, "the alternate owner of address"),
        ("other", {"active": SetOwner({})}, "is not held by handle 'other'"),
    ],
)
def test_owner_changes_only_if_the_current_one_is_as_expected(
    store: Backend, ipam: IpamService, handle: str, change: dict[str, SetOwner], message: str
) -> None:
    """Otherwise nothing changes, and the error names the current owner."""
    ((address, _),) = ((each.address, each.block) for each in ipam.assign(Assign("vm", owner_attributes(ACTIVE))).allocations)
    before = document(store)
    with pytest.raises(CallerError, match=message):
        set_owners(store, address, handle, **change)
    assert document(store) == before


def test_owner_of_a_free_or_cooling_address_is_refused(store: Backend, ipam: IpamService) -> None:
    """The errors distinguish free addresses from those in cooldown."""
    put_settings(store, cooldown_seconds=60)
    (got,) = take(ipam, "vm")
    free(ipam, "vm")
    for address, message in ((got, "rests"), ("10.65.0.15", "is not assigned"), ("10.99.0.1", "is not assigned")):
        with pytest.raises(CallerError, match=message):
            attributes_of(store, Address(address))
        with pytest.raises(CallerError, match=message):
            set_owners(store, Address(address), "vm", active=SetOwner({}))


def test_owner_change_retries_after_a_conflict(store: Backend, ipam: IpamService) -> None:
    """Another caller changes the block between the read and the write."""
    (allocation,) = ipam.assign(Assign("vm", owner_attributes(ACTIVE))).allocations
    interrupted = Interfering(store, 1, lambda: take(ipam, "net.rival"))
    set_owners(interrupted, allocation.address, "vm", active=SetOwner(owner_attributes(OTHER), ACTIVE))
    assert attributes_of(store, allocation.address).secondary == owner_attributes(OTHER)
    assert isinstance(allocation, Allocation)
    assert holdings(store).keys() == {"vm", "net.rival"}


def test_unchanged_owner_is_not_written(store: Backend, ipam: IpamService) -> None:
    """The owner of an address can change after its pool was deleted."""
    (allocation,) = ipam.assign(Assign("vm", owner_attributes(ACTIVE))).allocations
    wipe(store, ResourceQuery("IPPool"))
    before = document(store)
    set_owners(store, allocation.address, "vm", active=SetOwner(owner_attributes(ACTIVE)))
    assert document(store) == before
    set_owners(store, allocation.address, "vm", active=SetOwner(owner_attributes(OTHER)))
    assert attributes_of(store, allocation.address).secondary == owner_attributes(OTHER)
