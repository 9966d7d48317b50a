"""Single addresses: released with checks, capped by handle, handed from one owner to the next."""

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


# several addresses by name


def named(ipam: IpamService, handle: str, *addresses: str) -> list[str]:
    request = Assign(handle, {}, addresses=tuple(map(Address, addresses)))
    return [str(allocation.address) for allocation in ipam.assign(request).allocations]


def test_named_addresses_come_in_their_order(store: Backend, ipam: IpamService) -> None:
    """Independent of the requested families; also two of one block."""
    assert named(ipam, "net.a", "fd65::5", "10.65.0.5", "10.65.0.6") == ["fd65::5", "10.65.0.5", "10.65.0.6"]
    assert holdings(store) == {"net.a": frozenset(map(Address, ("10.65.0.5", "10.65.0.6", "fd65::5")))}
    assert sum(handles(store)["net.a"].values()) == 3


@pytest.mark.parametrize("refused", ["10.99.0.1", "10.65.0.9"], ids=["in no pool", "held by another"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_all_of_the_named_addresses_or_none(store: Backend, ipam: IpamService, refused: str, position: int) -> None:
    take(ipam, "net.other", at="10.65.0.9")
    wanted = ["10.65.0.5", "fd65::5"]
    wanted.insert(position, refused)
    with pytest.raises(CallerError) as caught:
        named(ipam, "net.a", *wanted)
    assert f"address {refused!r} " in caught.value.msg
    assert holdings(store) == {"net.other": frozenset({Address("10.65.0.9")})}
    assert set(handles(store)) == {"net.other"}


def test_handle_that_is_full_gets_its_named_addresses_again(ipam: IpamService) -> None:
    first = Assign("net.a", {}, addresses=(Address("10.65.0.5"), Address("fd65::5")), max_per_handle=1)
    assert [str(each.address) for each in ipam.assign(first).allocations] == ["10.65.0.5", "fd65::5"]
    assert ipam.assign(first).allocations == ipam.assign(first).allocations
    with pytest.raises(CallerError, match="holds 1 IPv6 addresses already"):
        ipam.assign(Assign("net.a", {}, addresses=(Address("10.65.0.5"), Address("fd65::6")), max_per_handle=1))


def test_standing_of_an_address(ipam: IpamService) -> None:
    take(ipam, "net.a", at="10.65.0.5")
    assert ipam.pool_and_handle(Address("10.65.0.5")) == ("pool4", "net.a")
    assert ipam.pool_and_handle(Address("10.65.0.6")) == ("pool4", "")
    assert ipam.pool_and_handle(Address("10.65.0.9")) == ("pool4", ""), "its block was never made"
    assert ipam.pool_and_handle(Address("10.99.0.1")) == ("", "")


# releasing by address


def test_addresses_are_released_one_write_a_block(store: Backend) -> None:
    """With the handles of all of them, in any block."""
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


def test_many_handles_are_listed_at_once(store: Backend) -> None:
    """Instead of a read for each."""
    put_pool(store, "pool4", "10.65.0.0/26", blockSize=26)
    for number in range(40):
        take(IpamService(store, NODE), f"net.c{number}")
    counting = Through(store)
    addresses = [ReleaseTarget(address) for held in holdings(store).values() for address in held]
    assert len(IpamService(counting, NODE).release_addresses(addresses).freed) == 40
    assert counting.calls["get"] < 10
    assert holdings(store) == {}


def test_what_is_free_is_told_and_no_error(store: Backend, ipam: IpamService) -> None:
    """In a block, in no block, in no pool; and every address once, by the last that is said of it."""
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
def test_what_is_held_otherwise_than_expected_stays(store: Backend, ipam: IpamService, condition: dict[str, Any]) -> None:
    """With all that was to be released of the same block; other blocks are not touched by that."""
    got = [take(ipam, f"net.c{n}")[0] for n in range(5)]
    freed = ipam.release_addresses(
        [ReleaseTarget(Address(got[0]), **condition), ReleaseTarget(Address(got[1])), ReleaseTarget(Address(got[4]))]
    )
    assert freed.freed == (Address(got[4]),)
    assert freed.refused.keys() == {Address(got[0]), Address(got[1])}
    assert all(isinstance(failure, CallerError) for failure in freed.refused.values())
    assert len(holdings(store)) == 4


def test_what_is_held_as_expected_goes(store: Backend, ipam: IpamService) -> None:
    """By this handle, by this very allocation; not by a later one of the same address."""
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


@pytest.mark.only_over("embedded", "piecemeal", "etcdv3")  # an API server checks what it is given
def test_stored_handles_end_at_a_line_end(store: Backend, ipam: IpamService) -> None:
    """Some programs once stored more behind it."""
    (got,) = take(ipam, "net.c\rmore")
    assert ipam.release_addresses([ReleaseTarget(Address(got), "net.c")]).freed == (Address(got),)
    assert (holdings(store), handles(store)) == ({}, {})


def test_refusals_and_free_addresses_are_never_told_from_memory(store: Backend, ipam: IpamService) -> None:
    """Another process of the node has assigned, or released and assigned again, in between."""
    (got,) = take(ipam, "net.c")
    block = block_of(store, got).cidr
    take(IpamService(store, NODE), "net.new", at=str(block.address(2)))
    assert ipam.release_addresses([ReleaseTarget(block.address(2), "net.new")]).freed == (block.address(2),)
    free(IpamService(store, NODE), "net.c")
    take(IpamService(store, NODE), "net.late", at=got)
    assert ipam.release_addresses([ReleaseTarget(Address(got), "net.late")]).freed == (Address(got),)
    assert holdings(store) == {}


@pytest.mark.parametrize("deed", ["disabled", "gone", "other size"])
def test_addresses_of_former_pools_are_found(store: Backend, ipam: IpamService, deed: str) -> None:
    """In a pool that is disabled, in none, in one that was created again with other blocks."""
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
    """Or with one that is not there any more."""
    put_block(store, "10.65.0.0/30", "host:node1", ["", "net.gone"])
    freed = ipam.release_addresses([ReleaseTarget(Address("10.65.0.0")), ReleaseTarget(Address("10.65.0.1"))])
    assert len(freed.freed) == 2
    assert holdings(store) == {}


def test_a_release_by_address_is_run_again_when_the_race_is_lost(store: Backend) -> None:
    """The block was written in between."""
    (got,) = take(IpamService(store, NODE), "net.c")
    crossed = Interfering(store, 1, lambda: take(IpamService(store, NODE), "net.rival"))
    assert IpamService(crossed, NODE).release_addresses([ReleaseTarget(Address(got), "net.c")]).freed == (Address(got),)
    assert holdings(store).keys() == {"net.rival"}


# what a handle holds


def test_the_addresses_of_a_handle_are_told(store: Backend, ipam: IpamService) -> None:
    """All of them, from the datastore."""
    got = take(ipam, "net.c", versions=(4, 6, 4))
    assert {str(address) for address in IpamService(store, "node2").addresses_of("net.c")} == set(got)
    assert ipam.addresses_of("net.none") == ()


def test_a_capped_handle_gets_its_address_again(store: Backend, ipam: IpamService) -> None:
    """In each family for itself; and nothing is written for it."""
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


def test_a_capped_handle_gets_no_other_address(store: Backend, ipam: IpamService) -> None:
    """Neither one that is asked for, nor a second one at once; a released one makes room."""
    take(ipam, "net.c", max_per_handle=1)
    for arguments in ({"at": "10.65.0.15"}, {"versions": (4, 4)}):
        with pytest.raises(CallerError, match="holds 1 IPv4 addresses already"):
            take(ipam, "net.c", max_per_handle=1, **arguments)
    free(ipam, "net.c")
    with pytest.raises(CallerError, match="holds 1 IPv4 addresses already"):
        take(ipam, "net.c", versions=(4, 4), max_per_handle=1)
    assert holdings(store) == {}
    assert take(ipam, "net.c", at="10.65.0.15", max_per_handle=1) == ("10.65.0.15",)


def test_rivals_for_a_capped_handle_get_the_same_address(store: Backend) -> None:
    """Of two nodes, at the same time."""
    managers = [IpamService(store, node) for node in (NODE, "node2")] * 4
    got = in_threads([lambda ipam=ipam: take(ipam, "vm", max_per_handle=1) for ipam in managers])  # type: ignore[misc]
    assert len({*got}) == 1
    assert len(holdings(store)["vm"]) == 1


def test_a_cap_is_never_held_against_memory(store: Backend, ipam: IpamService) -> None:
    """Another process has released the address, and taken another for the handle."""
    (old,) = take(ipam, "vm", max_per_handle=1)
    rival = IpamService(store, NODE)
    free(rival, "vm")
    (new,) = take(rival, "vm")
    assert new != old
    assert take(ipam, "vm", max_per_handle=1) == (new,)


def test_a_handle_that_is_being_counted_is_waited_for(store: Backend, ipam: IpamService) -> None:
    """It counts an address that is not there (yet): nothing is assigned beyond the cap, and the attempts end."""
    block = block_of(store, *take(ipam, "net.c")).cidr
    put(store, HandleKey("vm"), Handle({str(block): 1}))
    with pytest.raises(PeerError, match="kept changing"):
        take(ipam, "vm", max_per_handle=1)
    free(ipam, "vm")
    assert take(ipam, "vm", max_per_handle=1)


def test_a_handle_counts_what_was_obtained(store: Backend, ipam: IpamService) -> None:
    """However the addresses spread over blocks."""
    found = ipam.assign(Assign("net.c", {}, (4,) * 6)).allocations
    assert len({allocation.address for allocation in found}) == 6
    assert sorted(handles(store)["net.c"].values()) == [2, 4]
    free(ipam, "net.c")
    assert handles(store) == {}


# owners

ACTIVE, OTHER = Owner("default", "vm-1"), Owner("default", "vm-2")


def says(owner: Owner) -> dict[str, str]:
    return {"namespace": owner.namespace, "pod": owner.name}


def test_an_allocation_passes_from_one_owner_to_the_next(store: Backend, ipam: IpamService) -> None:
    """As a virtual machine migrates; the other addresses of its handle keep what is said of them."""
    request = Assign("vm", says(ACTIVE), (4, 4))
    mine, twin = (allocation.address for allocation in ipam.assign(request).allocations)
    set_owners(store, mine, "vm", alternate=SetOwner(says(OTHER), Owner()))
    assert attributes_of(store, mine) == Attribute("vm", says(ACTIVE), says(OTHER))
    set_owners(store, mine, "vm", active=SetOwner(says(OTHER), ACTIVE), alternate=SetOwner({}, OTHER))
    assert attributes_of(store, mine) == Attribute("vm", says(OTHER))
    assert attributes_of(store, twin) == Attribute("vm", says(ACTIVE))
    set_owners(store, mine, "vm", active=SetOwner({}))
    assert attributes_of(store, mine) == Attribute("vm")
    set_owners(store, mine, "vm", active=SetOwner(says(ACTIVE), Owner()))
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
def test_owners_change_only_as_expected(
    store: Backend, ipam: IpamService, handle: str, change: dict[str, SetOwner], message: str
) -> None:
    """Otherwise nothing is changed, and the error names the present owner."""
    ((address, _),) = ((each.address, each.block) for each in ipam.assign(Assign("vm", says(ACTIVE))).allocations)
    before = document(store)
    with pytest.raises(CallerError, match=message):
        set_owners(store, address, handle, **change)
    assert document(store) == before


def test_owners_of_free_and_resting_addresses_are_refused(store: Backend, ipam: IpamService) -> None:
    """With different words."""
    put_settings(store, cooldown_seconds=60)
    (got,) = take(ipam, "vm")
    free(ipam, "vm")
    for address, message in ((got, "rests"), ("10.65.0.15", "is not assigned"), ("10.99.0.1", "is not assigned")):
        with pytest.raises(CallerError, match=message):
            attributes_of(store, Address(address))
        with pytest.raises(CallerError, match=message):
            set_owners(store, Address(address), "vm", active=SetOwner({}))


def test_owners_survive_a_lost_race(store: Backend, ipam: IpamService) -> None:
    """The block was changed between look and write."""
    (allocation,) = ipam.assign(Assign("vm", says(ACTIVE))).allocations
    crossed = Interfering(store, 1, lambda: take(ipam, "net.rival"))
    set_owners(crossed, allocation.address, "vm", active=SetOwner(says(OTHER), ACTIVE))
    assert attributes_of(store, allocation.address).secondary == says(OTHER)
    assert isinstance(allocation, Allocation)
    assert holdings(store).keys() == {"vm", "net.rival"}


def test_what_is_said_already_is_not_written_again(store: Backend, ipam: IpamService) -> None:
    """The address of a pool that is gone can be changed all the same."""
    (allocation,) = ipam.assign(Assign("vm", says(ACTIVE))).allocations
    wipe(store, ResourceQuery("IPPool"))
    before = document(store)
    set_owners(store, allocation.address, "vm", active=SetOwner(says(ACTIVE)))
    assert document(store) == before
    set_owners(store, allocation.address, "vm", active=SetOwner(says(OTHER)))
    assert attributes_of(store, allocation.address).secondary == says(OTHER)
