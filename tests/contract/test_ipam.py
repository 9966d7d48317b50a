"""Assigning and releasing addresses, on every datastore."""

from collections.abc import Sequence
from typing import Any

import pytest

from harness.backend_wrappers import Through
from harness.ipam import (
    NODE,
    affinities,
    block_of,
    blocks,
    document,
    free,
    handles,
    holdings,
    in_threads,
    put_block,
    put_node,
    put_pool,
    require_whole_claims,
    take,
)
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Delete
from svc.ipam.requests import Allocation, Assign
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, Code, PeerError, SvcError
from svc.model.keys import BlockKey

POOL4 = "10.65.0.0/24"  # four blocks
POOL6 = "fd65::/120"
TINY4 = "10.66.0.0/30"  # one block of four addresses
TINY6 = "fd66::/126"


@pytest.fixture
def ipam(backend: Backend) -> IpamService:
    """A node with a pool of each family."""
    put_node(backend, zone="a")
    put_pool(backend, "pool4", POOL4)
    put_pool(backend, "pool6", POOL6)
    return IpamService(backend, NODE)


def tiny(backend: Backend) -> None:
    """Pools that are soon exhausted."""
    put_pool(backend, "pool4", TINY4, blockSize=30)
    put_pool(backend, "pool6", TINY6, blockSize=126)


def inside(addresses: Sequence[str], *pools: str) -> bool:
    return all(Address(address) in Cidr(pool) for address, pool in zip(addresses, pools, strict=True))


def held(backend: Backend, handle: str) -> set[str]:
    return {str(address) for address in holdings(backend).get(handle, ())}


@pytest.mark.parametrize(
    ("versions", "pools"), [((4,), [POOL4]), ((6,), [POOL6]), ((4, 6), [POOL4, POOL6]), ((6, 4), [POOL6, POOL4])]
)
def test_one_address_of_each_family_wanted(
    backend: Backend, ipam: IpamService, versions: tuple[int, ...], pools: list[str]
) -> None:
    """In the order in which the families are named."""
    got = take(ipam, "net.c1", versions=versions)
    assert inside(got, *pools)
    assert held(backend, "net.c1") == set(got)
    require_whole_claims(backend)


def test_allocations_name_the_block_of_the_address(ipam: IpamService) -> None:
    """As results need it."""
    first, second = ipam.assign(Assign("net.c1", {}, (4, 6))).allocations
    assert (first.block.length, second.block.length) == (26, 122)
    assert first.address in first.block
    assert second == Allocation(second.block.address(0), second.block)


def test_stored_documents_look_as_captured(backend: Backend, ipam: IpamService) -> None:
    """Block, handle and affinity after a first address: the fields that other programs read, and no others."""
    attributes = {"timestamp": "2026-11-20 18:03:22.033964365 +0000 UTC", "pod": "web-0", "node": NODE, "namespace": "default"}
    (allocation,) = ipam.assign(Assign("net1.c2", attributes)).allocations
    stored = {type(key).__name__: value for key, _, value in document(backend)}
    block = stored["BlockKey"]
    sequence = block["sequenceNumber"]
    assert list(block.items()) == [
        ("cidr", str(allocation.block)),
        ("affinity", "host:node1"),
        ("affinity_claim_time", block["affinity_claim_time"]),
        ("allocations", [0] + [None] * 63),
        ("unallocated", list(range(1, 64))),
        ("attributes", [{"handle_id": "net1.c2", "secondary": dict(sorted(attributes.items()))}]),
        ("sequenceNumber", sequence),
        ("sequenceNumberForAllocation", {"0": sequence - 1}),
        ("deleted", False),
    ]
    assert list(block["attributes"][0]["secondary"]) == ["namespace", "node", "pod", "timestamp"]
    assert stored["HandleKey"] == {"block": {str(allocation.block): 1}, "deleted": False}
    assert stored["AffinityKey"] == {"state": "confirmed", "deleted": False}


def test_blocks_are_filled_before_another_is_claimed(backend: Backend, ipam: IpamService) -> None:
    """Sixty-four addresses of one block, then the next block."""
    got = [take(ipam, f"net.c{n}")[0] for n in range(65)]
    assert len(set(got)) == 65
    assert len({block_of(backend, address).cidr for address in got[:64]}) == 1
    assert len(blocks(backend)) == 2
    require_whole_claims(backend)


def test_freed_addresses_are_given_out_last(backend: Backend, ipam: IpamService) -> None:
    """A peer may still talk to the former holder of an address."""
    put_pool(backend, "pool4", TINY4, blockSize=30)
    first, *_ = [take(ipam, f"net.c{n}")[0] for n in range(3)]
    free(ipam, "net.c0")
    assert take(ipam, "net.c4") != (first,)
    assert take(ipam, "net.c5") == (first,)


def test_a_handle_may_hold_several_addresses(backend: Backend, ipam: IpamService) -> None:
    """As the interfaces of one container do."""
    got = {*take(ipam, "net.c1"), *take(ipam, "net.c1", versions=(4, 6))}
    assert held(backend, "net.c1") == got
    assert sum(handles(backend)["net.c1"].values()) == len(got) == 3
    free(ipam, "net.c1")
    assert holdings(backend) == {}


@pytest.mark.parametrize("versions", [(4, 6), (6, 4)])
def test_both_families_or_none(backend: Backend, ipam: IpamService, versions: tuple[int, ...]) -> None:
    """No room in one family leaves the other as it was, byte for byte."""
    tiny(backend)
    for number in range(4):
        take(ipam, f"net.c{number}", versions=(6,))
    take(ipam, "net.v4")
    before = document(backend)
    with pytest.raises(PeerError, match="no free IPv6 address") as refusal:
        take(ipam, "net.dual", versions=versions)
    assert refusal.value.code == Code.NO_ADDRESS
    assert document(backend) == before
    assert len(take(ipam, "net.c9")) == 1


def test_exhaustion_names_the_pools_and_their_numbers(backend: Backend, ipam: IpamService) -> None:
    """The pool's addresses, those of the node's blocks, and those in use."""
    tiny(backend)
    put_pool(backend, "second", "10.67.0.0/29", blockSize=30)
    put_block(backend, "10.67.0.0/30", "host:node2", ["net.theirs"] * 4)
    for number in range(8):
        take(ipam, f"net.c{number}")
    with pytest.raises(PeerError) as refusal:
        take(ipam, "net.late")
    assert refusal.value.msg == "no free IPv4 address for node 'node1'"
    assert "pool4 10.66.0.0/30 (1 of 1 blocks are the node's, 4 addresses used in them)" in refusal.value.details
    assert "second 10.67.0.0/29 (1 of 2 blocks are the node's, 4 addresses used in them)" in refusal.value.details
    free(ipam, "net.c3")
    assert len(take(ipam, "net.late")) == 1


def test_named_pools_are_tried_in_order(backend: Backend, ipam: IpamService) -> None:
    """The next one serves when the one before is full; others never."""
    put_pool(backend, "tiny", TINY4, blockSize=30, nodeSelector="zone == 'elsewhere'")
    put_pool(backend, "tiny2", "10.67.0.0/30", blockSize=30, assignmentMode="Manual")
    wanted = {4: ("tiny2", TINY4)}
    got = [take(ipam, f"net.c{n}", pools=wanted)[0] for n in range(8)]
    assert inside(got, *["10.67.0.0/30"] * 4, *[TINY4] * 4)
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(ipam, "net.late", pools=wanted)
    assert inside(take(ipam, "net.any"), POOL4)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({4: ("nosuch",)}, "IP pool (nosuch) does not exist"),
        ({4: ("pool6",)}, "IP pool (pool6) is not an IPv4 pool"),
        ({4: ("pool4",), 6: ("10.65.0.0/24",)}, "IP pool (10.65.0.0/24) is not an IPv6 pool"),
        ({4: ("pool4",), 6: ("pool6", "gone")}, "IP pool (gone) does not exist"),
    ],
)
def test_wrong_pools_are_refused(backend: Backend, ipam: IpamService, pools: dict[int, tuple[str, ...]], message: str) -> None:
    """And nothing is assigned, not even in the family that was right."""
    with pytest.raises(CallerError) as refusal:
        take(ipam, "net.c1", versions=(4, 6), pools=pools)
    assert (refusal.value.msg, refusal.value.code) == (message, Code.POOL)
    assert holdings(backend) == {}


def test_nodes_without_a_pool_are_told(backend: Backend) -> None:
    """No pool selects this node."""
    put_node(backend, zone="b")
    put_pool(backend, "pool4", POOL4, nodeSelector="zone == 'a'")
    with pytest.raises(PeerError, match="no IPv4 pool is available to node 'node1'") as refusal:
        take(IpamService(backend, NODE), "net.c1")
    assert refusal.value.code == Code.POOL


@pytest.mark.parametrize("needed", [True, False])
def test_nodes_are_registered_where_the_datastore_is_shared(backend: Backend, needed: bool) -> None:
    """A datastore of one node needs no record of it; in any other its labels decide."""
    put_pool(backend, "pool4", POOL4)
    shared = type("Shared", (Through,), {"requires_node": needed})(backend)
    if not needed:
        assert inside(take(IpamService(shared, NODE), "net.c1"), POOL4)
        return
    with pytest.raises(PeerError, match="node 'node1' does not exist in the datastore"):
        take(IpamService(shared, NODE), "net.c1")
    put_node(backend)
    assert inside(take(IpamService(shared, NODE), "net.c1"), POOL4)


# an address of the caller's choice


@pytest.mark.parametrize("address", ["10.65.0.77", "10.65.0.0", "fd65::ff"])
def test_a_free_address_can_be_asked_for(backend: Backend, ipam: IpamService, address: str) -> None:
    """Its block is claimed if it has no affinity yet."""
    assert take(ipam, "net.c1", at=address) == (address,)
    assert held(backend, "net.c1") == {address}
    require_whole_claims(backend)


def test_the_next_address_passes_over_one_that_was_asked_for(ipam: IpamService) -> None:
    """An address is out of the queue wherever it stood."""
    (first,) = take(ipam, "net.c1")
    following = str(Cidr(POOL4).address(Cidr(POOL4).ordinal(Address(first)) + 1))
    take(ipam, "net.c2", at=following)
    assert take(ipam, "net.c3")[0] not in (first, following)


@pytest.mark.parametrize("same", [True, False], ids=["own handle", "other handle"])
def test_a_taken_address_is_refused_and_its_holder_named(backend: Backend, ipam: IpamService, same: bool) -> None:
    """Even to its holder: every assignment is of a new address."""
    take(ipam, "net.c1", at="10.65.0.7")
    before = document(backend)
    with pytest.raises(CallerError, match=r"address '10\.65\.0\.7' is already assigned") as refusal:
        take(ipam, "net.c1" if same else "net.c2", at="10.65.0.7")
    assert refusal.value.code == Code.ADDRESS_UNAVAILABLE
    assert "net.c1" in refusal.value.details
    assert document(backend) == before


def test_an_address_outside_the_pools_is_refused(backend: Backend, ipam: IpamService) -> None:
    """Nothing is claimed for it."""
    with pytest.raises(CallerError, match=r"'10\.99\.0\.1' is not in any enabled IP pool"):
        take(ipam, "net.c1", at="10.99.0.1")
    assert document(backend) == []


def test_an_address_in_a_block_of_another_node_can_be_asked_for(backend: Backend, ipam: IpamService) -> None:
    """A caller that names an address knows its route. The affinity of the block does not change."""
    put_block(backend, "10.65.0.64/26", "host:node2")
    assert take(ipam, "net.c1", at="10.65.0.70") == ("10.65.0.70",)
    assert block_of(backend, "10.65.0.70").affinity == "host:node2"
    assert held(backend, "net.c1") == {"10.65.0.70"}
    assert affinities(backend) == {}
    assert take(ipam, "net.c2")[0] not in {str(Cidr("10.65.0.64/26").address(n)) for n in range(64)}


def test_the_block_of_nobody_goes_with_its_last_address(backend: Backend, ipam: IpamService) -> None:
    """Blocks that their node gave up live on only for what is held in them."""
    put_block(backend, "10.65.0.64/26", None)
    take(ipam, "net.c1", at="10.65.0.70")
    take(ipam, "net.c2", at="10.65.0.71")
    free(ipam, "net.c1")
    assert block_of(backend, "10.65.0.71").affinity is None
    free(ipam, "net.c2")
    assert blocks(backend) == {}


# releasing


def test_releasing_a_handle_frees_all_that_it_holds(backend: Backend, ipam: IpamService) -> None:
    """In every family and block; the blocks stay the node's."""
    take(ipam, "net.c1", versions=(4, 6))
    take(ipam, "net.c1", at="10.65.0.200")
    take(ipam, "net.c2")
    free(ipam, "net.c1")
    assert set(holdings(backend)) == {"net.c2"}
    require_whole_claims(backend)


def test_kept_addresses_are_not_released(backend: Backend, ipam: IpamService) -> None:
    """Those of the container's other interfaces; addresses of others in the list do no harm."""
    kept, *gone = (*take(ipam, "net.c1"), *take(ipam, "net.c1"), *take(ipam, "net.c1", versions=(6,)))
    (others,) = take(ipam, "net.c2")
    free(ipam, "net.c1", [kept, others, "192.0.2.1"])
    assert (held(backend, "net.c1"), held(backend, "net.c2")) == ({kept}, {others})
    assert len(gone) == 2
    free(ipam, "net.c2", [kept])
    free(ipam, "net.c1", [kept])
    assert held(backend, "net.c1") == {kept}


def test_releasing_what_is_free_already_is_no_error(backend: Backend, ipam: IpamService) -> None:
    """Twice, or a handle that never was: DEL may be repeated. Nothing is written for it."""
    take(ipam, "net.c1")
    free(ipam, "net.c1")
    before = document(backend)
    free(ipam, "net.c1")
    free(ipam, "net.unknown", ["10.65.0.1"])
    assert document(backend) == before


def test_addresses_of_others_survive_a_release(backend: Backend, ipam: IpamService) -> None:
    """Handles are compared whole: one may begin like another, or differ in case where a datastore has room for both."""
    others = {"net.c1.x", "net.c"} | ({"Net.c1"} if backend.atomic else set())
    for handle in ("net.c1", *others):
        take(ipam, handle)
    free(ipam, "net.c1")
    assert set(holdings(backend)) == others


# asking


def test_holding_is_told_from_the_datastore(backend: Backend, ipam: IpamService) -> None:
    """All of the addresses, of this handle, now."""
    got = [Address(text) for text in take(ipam, "net.c1", versions=(4, 6))]
    other = [Address(text) for text in take(ipam, "net.c2")]
    assert ipam.holds("net.c1", got)
    assert ipam.holds("net.c1", got[1:])
    assert not ipam.holds("net.c1", [*got, *other])
    assert not ipam.holds("net.c2", got)
    assert not ipam.holds("net.c3", got)
    free(IpamService(backend, NODE), "net.c1")
    assert not ipam.holds("net.c1", got)


def test_holding_does_not_depend_on_blocks_that_are_gone(backend: Backend, ipam: IpamService) -> None:
    """A handle may name a block that was deleted: what it holds elsewhere is still held."""
    (four, six) = take(ipam, "net.c1", versions=(4, 6))
    backend.write([Delete(BlockKey(block_of(backend, six).cidr))])
    assert ipam.holds("net.c1", [Address(four)])
    assert not ipam.holds("net.c1", [Address(six)])


def test_room_is_told_without_a_write(backend: Backend, ipam: IpamService) -> None:
    """Before the first block, with room in a block, and in a block that is yet to be claimed."""
    tiny(backend)
    for expected in ([], ["net.c1"]):
        before = document(backend)
        ipam.require_capacity((4, 6), {})
        ipam.require_capacity((4,), {4: (TINY4,)})
        assert document(backend) == before
        assert set(holdings(backend)) == set(expected)
        take(ipam, "net.c1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4, 6), {}), "no free IPv6 address"),
        (((4,), {4: ("nosuch",)}), "does not exist"),
        (((4, 6), {6: ("pool4",)}), "is not an IPv6 pool"),
    ],
)
def test_want_of_room_is_told(backend: Backend, ipam: IpamService, arguments: Any, message: str) -> None:
    """With the words that an ADD would get, and without a write."""
    tiny(backend)
    for number in range(4):
        take(ipam, f"net.c{number}", versions=(6,))
    before = document(backend)
    with pytest.raises(SvcError, match=message):
        ipam.require_capacity(*arguments)
    assert document(backend) == before
    ipam.require_capacity((4,), {})


def test_one_refusal_does_not_touch_the_others(backend: Backend, ipam: IpamService) -> None:
    """Requests that are carried out together succeed or fail each for itself."""
    wrong = [lambda n=n: take(ipam, f"net.bad{n}", pools={4: ("nosuch",)}) for n in range(4)]
    right = [lambda n=n: take(ipam, f"net.c{n}", versions=(4, 6)) for n in range(12)]
    outcomes = in_threads([*wrong, *right])
    assert all(isinstance(outcome, CallerError) for outcome in outcomes[:4])
    assert set(holdings(backend)) == {f"net.c{n}" for n in range(12)}
    assert len({id(outcome) for outcome in outcomes[:4]}) == 4
