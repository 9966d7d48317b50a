"""Addresses beyond a node's own blocks: borrowing, reclaimed blocks, and their limits."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from harness.backend_wrappers import Interfering, Recording, Through
from harness.ipam import (
    NODE,
    affinities,
    block_of,
    blocks,
    document,
    free,
    holdings,
    just_now,
    put,
    put_block,
    put_node,
    put_pool,
    put_reservation,
    put_settings,
    require_whole_claims,
    take,
    wipe,
)
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend
from svc.ipam.requests import ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, Code, PeerError
from svc.model.ipam import CONFIRMED, PENDING, PENDING_DELETION, Affinity
from svc.model.keys import AffinityKey, AffinityQuery, BlockQuery

POOL = "10.65.0.0/28"  # four blocks of four addresses
CIDRS = ("10.65.0.0/30", "10.65.0.4/30", "10.65.0.8/30", "10.65.0.12/30")


@pytest.fixture
def store(backend: Backend) -> Backend:
    for node in (NODE, "node2", "node3"):
        put_node(backend, node)
    put_pool(backend, "pool4", POOL, blockSize=30)
    return backend


class Shared(Through):
    """A datastore that several nodes share."""

    requires_node = True


def put_blocks_of(store: Backend, node: str, *cidrs: str, claimed_at: str | None = "", holders: tuple[str, ...] = ()) -> None:
    for cidr in cidrs:
        put_block(store, cidr, f"host:{node}", holders, just_now() if claimed_at == "" else claimed_at)
        put(store, AffinityKey(node, Cidr(cidr)), Affinity(CONFIRMED))


def fill(ipam: IpamService, handle: str, count: int) -> list[str]:
    return [take(ipam, f"{handle}{number}")[0] for number in range(count)]


# borrowing


def test_node_borrows_if_no_block_is_free(store: Backend) -> None:
    """It can borrow every address of the pool. The affinities of the blocks do not change."""
    put_blocks_of(store, "node2", *CIDRS[:3])
    got = fill(IpamService(store, NODE), "net.c", 16)
    assert len(set(got)) == 16
    assert {got_from.affinity for got_from in (block_of(store, address) for address in got[:4])} == {"host:node1"}
    assert [block.affinity for _, block in sorted(blocks(store).items())].count("host:node2") == 3
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(IpamService(store, NODE), "net.late")
    require_whole_claims(store)


def test_node_without_a_block_borrows(store: Backend) -> None:
    """It borrows from unclaimed blocks as well."""
    put_blocks_of(store, "node2", *CIDRS[:3], holders=("net.x",) * 4)
    put_block(store, CIDRS[3], None, ["net.y"])
    assert fill(IpamService(store, NODE), "net.c", 3) == ["10.65.0.13", "10.65.0.14", "10.65.0.15"]
    assert block_of(store, "10.65.0.13").affinity is None


def test_borrowed_addresses_can_be_released(store: Backend) -> None:
    """An unclaimed block is deleted with its last allocation."""
    put_blocks_of(store, "node2", *CIDRS[:3], holders=("net.x",) * 3)
    put_block(store, CIDRS[3], None, ["net.y"] * 3)
    ipam = IpamService(store, NODE)
    got = fill(ipam, "net.c", 4)
    for number in range(4):
        free(ipam, f"net.c{number}")
    assert {block.ordinals.used for block in blocks(store).values()} == {3}
    assert len(set(got)) == 4


def test_concurrent_borrowing_assigns_no_address_twice(store: Backend) -> None:
    """The owner assigns an address just before the borrowing node writes the block."""
    put_blocks_of(store, "node2", *CIDRS)
    owner = IpamService(store, "node2")
    interrupted = Interfering(store, 1, lambda: take(owner, "net.owner"))
    (got,) = take(IpamService(interrupted, NODE), "net.c")
    assert got not in {str(address) for address in holdings(store)["net.owner"]}
    assert len(holdings(store)) == 2


def test_strict_affinity_forbids_borrowing(store: Backend) -> None:
    """The error says so. A node with a free address in its own blocks is not affected."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    put_blocks_of(store, "node2", *CIDRS[:3])
    ipam = IpamService(store, NODE)
    fill(ipam, "net.c", 4)
    with pytest.raises(PeerError, match="no free IPv4 address") as refusal:
        take(ipam, "net.late")
    assert "Strict affinity is on" in refusal.value.details
    with pytest.raises(PeerError, match="no free IPv4 address"):
        ipam.require_capacity((4,), {})
    put_settings(store)
    ipam.require_capacity((4,), {})
    take(ipam, "net.late")


def test_strict_affinity_refuses_requested_addresses(store: Backend) -> None:
    """This applies to blocks of other nodes and to unclaimed blocks."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    put_blocks_of(store, "node2", CIDRS[0])
    put_block(store, CIDRS[1], None, ["net.x"])
    for address in ("10.65.0.1", "10.65.0.5"):
        with pytest.raises(CallerError, match="cannot be assigned on node 'node1'"):
            take(IpamService(store, NODE), "net.c", at=address)
    assert take(IpamService(store, NODE), "net.c", at="10.65.0.9") == ("10.65.0.9",)


# limits


def test_node_at_its_block_limit_borrows(store: Backend) -> None:
    """If no address is left to borrow, the error states the number of blocks and the limit."""
    put_blocks_of(store, "node2", CIDRS[0])
    ipam = IpamService(store, NODE)
    for number in range(8):
        take(ipam, f"net.c{number}", max_blocks=1)
    assert set(affinities(store)) == {(NODE, str(_own_block(store))), ("node2", CIDRS[0])}
    with pytest.raises(PeerError, match="it has 1 blocks, and may have 1") as refusal:
        take(ipam, "net.late", max_blocks=1)
    assert refusal.value.code == Code.NO_ADDRESS
    assert take(ipam, "net.late", max_blocks=2)


def _own_block(store: Backend) -> Cidr:
    return next(block.cidr for block in blocks(store).values() if block.affinity == "host:node1")


@pytest.mark.parametrize(("configured", "requested", "limit"), [(2, 0, 2), (2, 3, 2), (3, 1, 1), (0, 2, 2), (0, 0, 4)])
def test_smaller_block_limit_applies(store: Backend, configured: int, requested: int, limit: int) -> None:
    """The settings and the request each can set a limit. Without both, a datastore of one node has no limit."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=configured)
    ipam = IpamService(store, NODE)
    for number in range(limit * 4):
        take(ipam, f"net.c{number}", max_blocks=requested)
    assert len(blocks(store)) == limit
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(ipam, "net.late", max_blocks=requested)


def test_default_limit_of_a_shared_datastore_is_twenty_blocks(store: Backend) -> None:
    """Blocks in pools that the request does not use are not counted."""
    put_pool(store, "large", "10.66.0.0/24", blockSize=30)
    put_blocks_of(store, NODE, *(f"10.66.0.{number * 4}/30" for number in range(20)), holders=("net.x",) * 4)
    ipam = IpamService(Shared(store), NODE)
    with pytest.raises(PeerError, match="it has 20 blocks, and may have 20"):
        take(ipam, "net.c", pools={4: ("large",)})
    assert take(ipam, "net.c", pools={4: ("pool4",)})
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=21)
    assert take(ipam, "net.d", pools={4: ("large",)})


def test_settings_are_read_again_before_a_refusal(store: Backend) -> None:
    """This holds even if no event has announced the raised limit."""

    class NoEvents(Through):
        def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
            return (1,) * len(kinds)

    put_settings(store, strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=1)
    ipam = IpamService(NoEvents(store), NODE)
    fill(ipam, "net.c", 4)
    with pytest.raises(PeerError, match="may have 1"):
        take(ipam, "net.late")
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=2)
    assert take(ipam, "net.late")


def test_nodes_do_not_claim_blocks_if_claiming_is_off(store: Backend) -> None:
    """They use the blocks that they have, and do not borrow."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=False)
    put_blocks_of(store, NODE, CIDRS[1])
    put_blocks_of(store, "node2", CIDRS[0])
    ipam = IpamService(store, NODE)
    assert fill(ipam, "net.c", 4) == ["10.65.0.4", "10.65.0.5", "10.65.0.6", "10.65.0.7"]
    before = document(store)
    for call in (partial(take, ipam, "net.late"), partial(ipam.require_capacity, (4,), {})):
        with pytest.raises(PeerError, match="it may not claim another"):
            call()
    assert document(store) == before


# reclaimed blocks


def test_idle_block_is_reclaimed(store: Backend) -> None:
    """The affinity is marked, the block and the affinity are deleted, and the block is then claimed like any other."""
    put_blocks_of(store, "node2", *CIDRS[:3], claimed_at="2026-11-20T18:03:21Z", holders=("net.x",))
    put_blocks_of(store, "node2", CIDRS[3], claimed_at="2026-11-20T18:03:21Z")
    recording = Recording(store)
    (got,) = take(IpamService(recording, NODE), "net.c")
    assert block_of(store, got).cidr == Cidr(CIDRS[3])
    assert recording.written[:3] == [["update affinity pendingDeletion"], ["delete block"], ["delete affinity"]]
    assert ("node2", CIDRS[3]) not in affinities(store)
    require_whole_claims(store)


@pytest.mark.parametrize("claimed_at", [None, "2126-11-20T18:03:21Z"], ids=["unknown", "in future"])
def test_recently_claimed_block_is_not_reclaimed(store: Backend, claimed_at: str | None) -> None:
    """Its owner is about to use it. An unknown claim time, and one in the future, count as long ago."""
    put_blocks_of(store, "node2", *CIDRS[:3])
    put_blocks_of(store, "node2", CIDRS[3], claimed_at=claimed_at)
    (got,) = take(IpamService(store, NODE), "net.c")
    assert block_of(store, got).cidr == Cidr(CIDRS[3])
    assert block_of(store, got).affinity == "host:node1"
    take(IpamService(store, "node3"), "net.d")  # borrows
    assert {host for host, _ in affinities(store)} == {NODE, "node2"}


def test_blocks_are_reclaimed_under_strict_affinity(store: Backend) -> None:
    """This applies to owned blocks, blocks without an affinity, and unclaimed blocks."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    for cidr in CIDRS[:3]:
        put_block(store, cidr, "host:node2")
    put_block(store, CIDRS[3], None)
    fill(IpamService(store, NODE), "net.c", 16)
    assert set(affinities(store)) == {(NODE, cidr) for cidr in CIDRS}


@pytest.mark.parametrize("number", range(1, 7))
def test_owner_that_assigns_during_a_reclaim_keeps_its_block(store: Backend, number: int) -> None:
    """It assigns an address between any two writes. The other node uses another block, and no address is assigned twice."""
    put_blocks_of(store, "node2", *CIDRS, claimed_at=None)
    owner = IpamService(store, "node2")
    take(owner, "net.warm")
    free(owner, "net.warm")
    interrupted = Interfering(store, number, lambda: take(owner, "net.owner"))
    take(IpamService(interrupted, NODE), "net.c")
    take(owner, "net.again")
    assert {"net.c", "net.again"} <= holdings(store).keys()
    take(IpamService(store, "node2"), "net.cold")
    require_whole_claims(store)


def test_failed_reclaim_leaves_a_confirmed_affinity(store: Backend) -> None:
    """Otherwise the owner, which uses the block again, would have to confirm its affinity."""
    put_blocks_of(store, "node2", *CIDRS, claimed_at=None)
    owner = IpamService(store, "node2")
    take(owner, "net.warm")
    free(owner, "net.warm")
    interrupted = Interfering(store, 2, lambda: fill(owner, "net.owner", 16))
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(IpamService(interrupted, NODE), "net.c")
    assert affinities(store) == {("node2", cidr): CONFIRMED for cidr in CIDRS}


@pytest.mark.parametrize("state", [PENDING, CONFIRMED, PENDING_DELETION])
def test_interrupted_reclaim_is_completed_by_any_node(store: Backend, state: str) -> None:
    """The claimant is killed in each state of the affinity."""
    put_blocks_of(store, "node2", *CIDRS, claimed_at=None)
    put(store, AffinityKey("node2", Cidr(CIDRS[0])), Affinity(state))
    assert len(set(fill(IpamService(store, NODE), "net.c", 16))) == 16
    assert {host for host, _ in affinities(store)} == {NODE}


def test_former_owner_of_a_reclaimed_block_uses_another_one(store: Backend) -> None:
    """Its cache still contains the block."""
    ipam = IpamService(store, "node2")
    reclaimed = block_of(store, *take(ipam, "net.c")).cidr
    free(ipam, "net.c")
    wipe(store, AffinityQuery(), BlockQuery())
    put_blocks_of(store, NODE, str(reclaimed), holders=("net.x",))
    assert block_of(store, *take(ipam, "net.d")).cidr != reclaimed


# ineligible blocks


def test_empty_ineligible_blocks_are_released(store: Backend) -> None:
    """This happens before the next assignment. Blocks in use, in other pools, or in no enabled pool stay."""
    put_blocks_of(store, NODE, CIDRS[0])
    put_blocks_of(store, NODE, CIDRS[1], holders=("net.x",))
    put_pool(store, "disabled", "10.66.0.0/28", blockSize=30, disabled=True, nodeSelector="zone == 'b'")
    put_blocks_of(store, NODE, "10.66.0.0/30", "10.67.0.0/30")
    put_pool(store, "other", "10.68.0.0/28", blockSize=30)
    put_pool(store, "pool4", POOL, blockSize=30, nodeSelector="zone == 'b'")
    (got,) = take(IpamService(store, NODE), "net.c")
    assert {cidr for _, cidr in affinities(store)} == {CIDRS[1], "10.66.0.0/30", "10.67.0.0/30", str(block_of(store, got).cidr)}


@pytest.mark.parametrize("release", ["by handle", "by address"])
@pytest.mark.parametrize("node", [NODE, "node2"])
def test_last_release_frees_an_ineligible_block(store: Backend, node: str, release: str) -> None:
    """This holds for every releasing node and every owner of the block."""
    (got,) = take(IpamService(store, NODE), "net.c")
    ipam = IpamService(store, node)
    put_pool(store, "pool4", POOL, blockSize=30, nodeSelector="zone == 'b'")
    RELEASES[release](ipam, got)
    assert affinities(store) == {}
    assert blocks(store) == {}


RELEASES: dict[str, Callable[[IpamService, str], object]] = {
    "by handle": lambda ipam, _: free(ipam, "net.c"),
    "by address": lambda ipam, got: ipam.release_addresses([ReleaseTarget(Address(got))]),
}


# blocks of the size that a former pool had


def test_empty_block_of_another_size_is_released(store: Backend) -> None:
    """The next assignment deletes it, and claims a block of the pool's size."""
    put_pool(store, "pool4", POOL, blockSize=29)
    ipam = IpamService(store, NODE)
    (got,) = take(ipam, "net.c")
    free(ipam, "net.c")
    assert block_of(store, got).cidr.length == 29
    put_pool(store, "pool4", POOL, blockSize=30)
    (got,) = take(IpamService(store, NODE), "net.c")
    assert [cidr.length for cidr in map(Cidr, blocks(store))] == [30]
    assert {cidr for _, cidr in affinities(store)} == {str(block_of(store, got).cidr)}


def test_block_of_another_size_is_used_last_and_deleted_by_its_last_release(store: Backend) -> None:
    put_pool(store, "pool4", POOL, blockSize=29)
    (old,) = take(IpamService(store, NODE), "net.old")
    large = block_of(store, old).cidr
    put_pool(store, "pool4", POOL, blockSize=30)
    ipam = IpamService(store, NODE)
    others = fill(ipam, "net.c", 8)
    assert all(Address(address) not in large for address in others)
    (last,) = take(ipam, "net.last")
    assert Address(last) in large
    for handle in ("net.last", "net.old"):
        free(ipam, handle)
    assert str(large) not in blocks(store)


def test_empty_eligible_block_keeps_its_affinity(store: Backend) -> None:
    ipam = IpamService(store, NODE)
    (got,) = take(ipam, "net.c")
    free(ipam, "net.c")
    assert block_of(store, got).affinity == "host:node1"


def test_reserved_blocks_are_not_claimed_reclaimed_or_borrowed(store: Backend) -> None:
    """All addresses of such a block are reserved."""
    put_reservation(store, "res", CIDRS[0], "10.65.0.4/31", "10.65.0.6", "10.65.0.7/32")
    put_blocks_of(store, "node2", CIDRS[1], CIDRS[2], claimed_at=None)
    got = fill(IpamService(store, NODE), "net.c", 8)
    assert {block_of(store, address).cidr for address in got} == {Cidr(CIDRS[2]), Cidr(CIDRS[3])}
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(IpamService(store, NODE), "net.late")
