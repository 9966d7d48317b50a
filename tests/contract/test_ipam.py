"""Assignment and release of addresses, on every datastore."""

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
    """Return the IPAM of a node that has a pool of each family."""
    put_node(backend, zone="a")
    put_pool(backend, "pool4", POOL4)
    put_pool(backend, "pool6", POOL6)
    return IpamService(backend, NODE)


def tiny(backend: Backend) -> None:
    """Create pools of one block each."""
    put_pool(backend, "pool4", TINY4, blockSize=30)
    put_pool(backend, "pool6", TINY6, blockSize=126)


def inside(addresses: Sequence[str], *pools: str) -> bool:
    return all(Address(address) in Cidr(pool) for address, pool in zip(addresses, pools, strict=True))


def held(backend: Backend, handle: str) -> set[str]:
    return {str(address) for address in holdings(backend).get(handle, ())}


@pytest.mark.parametrize(
    ("versions", "pools"), [((4,), [POOL4]), ((6,), [POOL6]), ((4, 6), [POOL4, POOL6]), ((6, 4), [POOL6, POOL4])]
)
def test_assigns_one_address_of_each_requested_family(
    backend: Backend, ipam: IpamService, versions: tuple[int, ...], pools: list[str]
) -> None:
    """The addresses have the order of the requested families."""
    got = take(ipam, "net.c1", versions=versions)
    assert inside(got, *pools)
    assert held(backend, "net.c1") == set(got)
    require_whole_claims(backend)


def test_allocations_name_the_block_of_the_address(ipam: IpamService) -> None:
    first, second = ipam.assign(Assign("net.c1", {}, (4, 6))).allocations
    assert (first.block.length, second.block.length) == (26, 122)
    assert first.address in first.block
    assert second == Allocation(second.block.address(0), second.block)


def test_stored_documents_have_exactly_the_captured_fields(backend: Backend, ipam: IpamService) -> None:
    """A first address writes a block, a handle and an affinity. Other programs read these fields."""
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
    """The node claims its second block only after it has assigned the 64 addresses of the first."""
    got = [take(ipam, f"net.c{n}")[0] for n in range(65)]
    assert len(set(got)) == 65
    assert len({block_of(backend, address).cidr for address in got[:64]}) == 1
    assert len(blocks(backend)) == 2
    require_whole_claims(backend)


def test_released_addresses_are_assigned_last(backend: Backend, ipam: IpamService) -> None:
    """Peers may still send packets to the previous owner of an address."""
    put_pool(backend, "pool4", TINY4, blockSize=30)
    first, *_ = [take(ipam, f"net.c{n}")[0] for n in range(3)]
    free(ipam, "net.c0")
    assert take(ipam, "net.c4") != (first,)
    assert take(ipam, "net.c5") == (first,)


def test_handle_can_have_several_addresses(backend: Backend, ipam: IpamService) -> None:
    """A container with several interfaces needs them."""
    got = {*take(ipam, "net.c1"), *take(ipam, "net.c1", versions=(4, 6))}
    assert held(backend, "net.c1") == got
    assert sum(handles(backend)["net.c1"].values()) == len(got) == 3
    free(ipam, "net.c1")
    assert holdings(backend) == {}


@pytest.mark.parametrize("versions", [(4, 6), (6, 4)])
def test_assigns_both_families_or_none(backend: Backend, ipam: IpamService, versions: tuple[int, ...]) -> None:
    """If one family has no free address, the stored documents of both stay byte for byte the same."""
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


def test_error_of_exhausted_pools_states_their_numbers(backend: Backend, ipam: IpamService) -> None:
    """The error states the pool's addresses, those of the node's blocks, and those in use."""
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
    assert refusal.value.details.endswith("or release leaked addresses, which `svcctl ipam check` lists")
    free(ipam, "net.c3")
    assert len(take(ipam, "net.late")) == 1


def test_named_pools_are_tried_in_order(backend: Backend, ipam: IpamService) -> None:
    """The next named pool is used if the previous one is full. Other pools are never used."""
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
    """Nothing is assigned, not even in the family with a valid pool."""
    with pytest.raises(CallerError) as refusal:
        take(ipam, "net.c1", versions=(4, 6), pools=pools)
    assert (refusal.value.msg, refusal.value.code) == (message, Code.POOL)
    assert holdings(backend) == {}


def test_error_says_that_no_pool_selects_the_node(backend: Backend) -> None:
    put_node(backend, zone="b")
    put_pool(backend, "pool4", POOL4, nodeSelector="zone == 'a'")
    with pytest.raises(PeerError, match="no IPv4 pool is available to node 'node1'") as refusal:
        take(IpamService(backend, NODE), "net.c1")
    assert refusal.value.code == Code.POOL
    assert refusal.value.details == 'pool4 selects nodes by zone == "a": see `svcctl pool get`'


def test_error_without_a_pool_names_the_command_that_makes_one(backend: Backend) -> None:
    put_node(backend)
    with pytest.raises(PeerError, match="no IPv4 pool is available to node 'node1'") as refusal:
        take(IpamService(backend, NODE), "net.c1")
    assert refusal.value.details == "the datastore has no IPv4 pool: make one with `svcctl pool apply`"


@pytest.mark.parametrize("needed", [True, False])
def test_shared_datastore_requires_a_registered_node(backend: Backend, needed: bool) -> None:
    """The labels of the node are matched by selectors. A datastore of a single node needs no record of it."""
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
def test_free_address_can_be_requested(backend: Backend, ipam: IpamService, address: str) -> None:
    """The node claims the block of the address if it has no affinity."""
    assert take(ipam, "net.c1", at=address) == (address,)
    assert held(backend, "net.c1") == {address}
    require_whole_claims(backend)


def test_automatic_assignment_skips_a_requested_address(ipam: IpamService) -> None:
    """A requested address is removed from the queue of its block, at any position."""
    (first,) = take(ipam, "net.c1")
    following = str(Cidr(POOL4).address(Cidr(POOL4).ordinal(Address(first)) + 1))
    take(ipam, "net.c2", at=following)
    assert take(ipam, "net.c3")[0] not in (first, following)


@pytest.mark.parametrize("same", [True, False], ids=["own handle", "other handle"])
def test_error_for_an_assigned_address_names_its_handle(backend: Backend, ipam: IpamService, same: bool) -> None:
    """The same handle cannot request it again either, because each assignment is of a new address."""
    take(ipam, "net.c1", at="10.65.0.7")
    before = document(backend)
    with pytest.raises(CallerError, match=r"address '10\.65\.0\.7' is already assigned") as refusal:
        take(ipam, "net.c1" if same else "net.c2", at="10.65.0.7")
    assert refusal.value.code == Code.ADDRESS_UNAVAILABLE
    assert "net.c1" in refusal.value.details
    assert document(backend) == before


def test_address_outside_all_pools_is_refused(backend: Backend, ipam: IpamService) -> None:
    """The node does not claim a block."""
    with pytest.raises(CallerError, match=r"'10\.99\.0\.1' is not in any enabled IP pool"):
        take(ipam, "net.c1", at="10.99.0.1")
    assert document(backend) == []


def test_address_in_a_block_of_another_node_can_be_requested(backend: Backend, ipam: IpamService) -> None:
    """A caller that names an address knows its route. The affinity of the block does not change."""
    put_block(backend, "10.65.0.64/26", "host:node2")
    assert take(ipam, "net.c1", at="10.65.0.70") == ("10.65.0.70",)
    assert block_of(backend, "10.65.0.70").affinity == "host:node2"
    assert held(backend, "net.c1") == {"10.65.0.70"}
    assert affinities(backend) == {}
    assert take(ipam, "net.c2")[0] not in {str(Cidr("10.65.0.64/26").address(n)) for n in range(64)}


def test_unclaimed_block_is_deleted_with_its_last_address(backend: Backend, ipam: IpamService) -> None:
    """A block whose affinity was released exists only for its allocations."""
    put_block(backend, "10.65.0.64/26", None)
    take(ipam, "net.c1", at="10.65.0.70")
    take(ipam, "net.c2", at="10.65.0.71")
    free(ipam, "net.c1")
    assert block_of(backend, "10.65.0.71").affinity is None
    free(ipam, "net.c2")
    assert blocks(backend) == {}


# releasing


def test_releasing_a_handle_releases_all_its_addresses(backend: Backend, ipam: IpamService) -> None:
    """The addresses may be in both families and several blocks. The node keeps its affinities."""
    take(ipam, "net.c1", versions=(4, 6))
    take(ipam, "net.c1", at="10.65.0.200")
    take(ipam, "net.c2")
    free(ipam, "net.c1")
    assert set(holdings(backend)) == {"net.c2"}
    require_whole_claims(backend)


def test_kept_addresses_are_not_released(backend: Backend, ipam: IpamService) -> None:
    """These belong to other interfaces of the container. The list may include addresses of other handles."""
    kept, *gone = (*take(ipam, "net.c1"), *take(ipam, "net.c1"), *take(ipam, "net.c1", versions=(6,)))
    (others,) = take(ipam, "net.c2")
    free(ipam, "net.c1", [kept, others, "192.0.2.1"])
    assert (held(backend, "net.c1"), held(backend, "net.c2")) == ({kept}, {others})
    assert len(gone) == 2
    free(ipam, "net.c2", [kept])
    free(ipam, "net.c1", [kept])
    assert held(backend, "net.c1") == {kept}


def test_releasing_a_free_address_is_not_an_error(backend: Backend, ipam: IpamService) -> None:
    """DEL can be repeated, so a second release and an unknown handle succeed. They write nothing."""
    take(ipam, "net.c1")
    free(ipam, "net.c1")
    before = document(backend)
    free(ipam, "net.c1")
    free(ipam, "net.unknown", ["10.65.0.1"])
    assert document(backend) == before


def test_release_keeps_the_addresses_of_similar_handles(backend: Backend, ipam: IpamService) -> None:
    """Another handle may have the same prefix, or the same letters in another case if the datastore distinguishes case."""
    others = {"net.c1.x", "net.c"} | ({"Net.c1"} if backend.atomic else set())
    for handle in ("net.c1", *others):
        take(ipam, handle)
    free(ipam, "net.c1")
    assert set(holdings(backend)) == others


# asking


def test_holds_all_reads_current_allocations(backend: Backend, ipam: IpamService) -> None:
    """The handle must have all of the addresses at the time of the call."""
    got = [Address(text) for text in take(ipam, "net.c1", versions=(4, 6))]
    other = [Address(text) for text in take(ipam, "net.c2")]
    assert ipam.holds("net.c1", got)
    assert ipam.holds("net.c1", got[1:])
    assert not ipam.holds("net.c1", [*got, *other])
    assert not ipam.holds("net.c2", got)
    assert not ipam.holds("net.c3", got)
    free(IpamService(backend, NODE), "net.c1")
    assert not ipam.holds("net.c1", got)


def test_handle_with_a_deleted_block_keeps_its_other_addresses(backend: Backend, ipam: IpamService) -> None:
    """A handle can still count addresses in a block that was deleted."""
    (four, six) = take(ipam, "net.c1", versions=(4, 6))
    backend.write([Delete(BlockKey(block_of(backend, six).cidr))])
    assert ipam.holds("net.c1", [Address(four)])
    assert not ipam.holds("net.c1", [Address(six)])


def test_capacity_check_does_not_write(backend: Backend, ipam: IpamService) -> None:
    """It succeeds before the first block, with a free address in a block, and if another block can be claimed."""
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
def test_capacity_check_fails_like_an_add(backend: Backend, ipam: IpamService, arguments: Any, message: str) -> None:
    """The error equals that of an ADD, and nothing is written."""
    tiny(backend)
    for number in range(4):
        take(ipam, f"net.c{number}", versions=(6,))
    before = document(backend)
    with pytest.raises(SvcError, match=message):
        ipam.require_capacity(*arguments)
    assert document(backend) == before
    ipam.require_capacity((4,), {})


def test_refused_request_does_not_affect_its_batch(backend: Backend, ipam: IpamService) -> None:
    """Each request of a batch succeeds or fails alone."""
    wrong = [lambda n=n: take(ipam, f"net.bad{n}", pools={4: ("nosuch",)}) for n in range(4)]
    right = [lambda n=n: take(ipam, f"net.c{n}", versions=(4, 6)) for n in range(12)]
    outcomes = in_threads([*wrong, *right])
    assert all(isinstance(outcome, CallerError) for outcome in outcomes[:4])
    assert set(holdings(backend)) == {f"net.c{n}" for n in range(12)}
    assert len({id(outcome) for outcome in outcomes[:4]}) == 4
