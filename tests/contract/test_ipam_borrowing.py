"""Room beyond a node's own blocks: blocks of others, blocks that others do not use, and the limits to both."""

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
    """A datastore of many nodes."""

    requires_node = True


def owned_by(store: Backend, node: str, *cidrs: str, claimed_at: str | None = "", holders: tuple[str, ...] = ()) -> None:
    for cidr in cidrs:
        put_block(store, cidr, f"host:{node}", holders, just_now() if claimed_at == "" else claimed_at)
        put(store, AffinityKey(node, Cidr(cidr)), Affinity(CONFIRMED))


def fill(ipam: IpamService, handle: str, count: int) -> list[str]:
    return [take(ipam, f"{handle}{number}")[0] for number in range(count)]


# borrowing


def test_the_blocks_of_others_lend_when_nothing_else_is_free(store: Backend) -> None:
    """To the last address of the pool; the blocks stay their owner's."""
    owned_by(store, "node2", *CIDRS[:3])
    got = fill(IpamService(store, NODE), "net.c", 16)
    assert len(set(got)) == 16
    assert {got_from.affinity for got_from in (block_of(store, address) for address in got[:4])} == {"host:node1"}
    assert [block.affinity for _, block in sorted(blocks(store).items())].count("host:node2") == 3
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(IpamService(store, NODE), "net.late")
    require_whole_claims(store)


def test_a_node_without_a_block_borrows_too(store: Backend) -> None:
    """Also from unclaimed blocks."""
    owned_by(store, "node2", *CIDRS[:3], holders=("net.x",) * 4)
    put_block(store, CIDRS[3], None, ["net.y"])
    assert fill(IpamService(store, NODE), "net.c", 3) == ["10.65.0.13", "10.65.0.14", "10.65.0.15"]
    assert block_of(store, "10.65.0.13").affinity is None


def test_borrowed_addresses_are_given_back(store: Backend) -> None:
    """To the block of any node; an unclaimed one is deleted with its last address."""
    owned_by(store, "node2", *CIDRS[:3], holders=("net.x",) * 3)
    put_block(store, CIDRS[3], None, ["net.y"] * 3)
    ipam = IpamService(store, NODE)
    got = fill(ipam, "net.c", 4)
    for number in range(4):
        free(ipam, f"net.c{number}")
    assert {block.ordinals.used for block in blocks(store).values()} == {3}
    assert len(set(got)) == 4


def test_rivals_borrow_without_a_duplicate(store: Backend) -> None:
    """Its owner takes an address just before the borrowed one is written."""
    owned_by(store, "node2", *CIDRS)
    owner = IpamService(store, "node2")
    crossed = Interfering(store, 1, lambda: take(owner, "net.owner"))
    (got,) = take(IpamService(crossed, NODE), "net.c")
    assert got not in {str(address) for address in holdings(store)["net.owner"]}
    assert len(holdings(store)) == 2


def test_strict_affinity_forbids_to_borrow(store: Backend) -> None:
    """The refusal says so; a node with room of its own is served as ever."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    owned_by(store, "node2", *CIDRS[:3])
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


def test_strict_affinity_holds_for_addresses_asked_for(store: Backend) -> None:
    """In a block of another node, or in an unclaimed one."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    owned_by(store, "node2", CIDRS[0])
    put_block(store, CIDRS[1], None, ["net.x"])
    for address in ("10.65.0.1", "10.65.0.5"):
        with pytest.raises(CallerError, match="cannot be assigned on node 'node1'"):
            take(IpamService(store, NODE), "net.c", at=address)
    assert take(IpamService(store, NODE), "net.c", at="10.65.0.9") == ("10.65.0.9",)


# limits


def test_a_reached_limit_still_borrows(store: Backend) -> None:
    """If it may; otherwise the error names number and limit."""
    owned_by(store, "node2", CIDRS[0])
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
def test_the_smaller_limit_counts(store: Backend, configured: int, requested: int, limit: int) -> None:
    """Of the settings and the request; without either, a datastore of one node has no limit."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=configured)
    ipam = IpamService(store, NODE)
    for number in range(limit * 4):
        take(ipam, f"net.c{number}", max_blocks=requested)
    assert len(blocks(store)) == limit
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(ipam, "net.late", max_blocks=requested)


def test_twenty_blocks_are_the_limit_where_nodes_share(store: Backend) -> None:
    """Unless the settings differ. Blocks in pools that the request does not use are not counted."""
    put_pool(store, "large", "10.66.0.0/24", blockSize=30)
    owned_by(store, NODE, *(f"10.66.0.{number * 4}/30" for number in range(20)), holders=("net.x",) * 4)
    ipam = IpamService(Shared(store), NODE)
    with pytest.raises(PeerError, match="it has 20 blocks, and may have 20"):
        take(ipam, "net.c", pools={4: ("large",)})
    assert take(ipam, "net.c", pools={4: ("pool4",)})
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=21)
    assert take(ipam, "net.d", pools={4: ("large",)})


def test_a_raised_limit_is_heard_of_before_a_refusal(store: Backend) -> None:
    """The settings are read again, however old the news of them are."""

    class Deaf(Through):
        def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
            return (1,) * len(kinds)

    put_settings(store, strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=1)
    ipam = IpamService(Deaf(store), NODE)
    fill(ipam, "net.c", 4)
    with pytest.raises(PeerError, match="may have 1"):
        take(ipam, "net.late")
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=2)
    assert take(ipam, "net.late")


def test_nodes_claim_nothing_when_that_is_off(store: Backend) -> None:
    """They use the blocks that they have, and do not borrow."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=False)
    owned_by(store, NODE, CIDRS[1])
    owned_by(store, "node2", CIDRS[0])
    ipam = IpamService(store, NODE)
    assert fill(ipam, "net.c", 4) == ["10.65.0.4", "10.65.0.5", "10.65.0.6", "10.65.0.7"]
    before = document(store)
    for call in (partial(take, ipam, "net.late"), partial(ipam.require_capacity, (4,), {})):
        with pytest.raises(PeerError, match="it may not claim another"):
            call()
    assert document(store) == before


# blocks that others do not use


def test_an_empty_block_is_taken_from_its_owner(store: Backend) -> None:
    """Its affinity is marked, the block deleted, the affinity dropped; then it is claimed like any other."""
    owned_by(store, "node2", *CIDRS[:3], claimed_at="2026-11-20T18:03:21Z", holders=("net.x",))
    owned_by(store, "node2", CIDRS[3], claimed_at="2026-11-20T18:03:21Z")
    recording = Recording(store)
    (got,) = take(IpamService(recording, NODE), "net.c")
    assert block_of(store, got).cidr == Cidr(CIDRS[3])
    assert recording.written[:3] == [["update affinity pendingDeletion"], ["delete block"], ["delete affinity"]]
    assert ("node2", CIDRS[3]) not in affinities(store)
    require_whole_claims(store)


@pytest.mark.parametrize("claimed_at", [None, "2126-11-20T18:03:21Z"], ids=["unknown", "in future"])
def test_what_was_just_claimed_is_left_to_its_owner(store: Backend, claimed_at: str | None) -> None:
    """It is about to be used; an unknown time of claim, or one that a wrong clock has written, is long ago."""
    owned_by(store, "node2", *CIDRS[:3])
    owned_by(store, "node2", CIDRS[3], claimed_at=claimed_at)
    (got,) = take(IpamService(store, NODE), "net.c")
    assert block_of(store, got).cidr == Cidr(CIDRS[3])
    assert block_of(store, got).affinity == "host:node1"
    take(IpamService(store, "node3"), "net.d")  # borrows
    assert {host for host, _ in affinities(store)} == {NODE, "node2"}


def test_blocks_are_taken_also_when_affinity_is_strict(store: Backend) -> None:
    """And from a block without an affinity, and from an unclaimed one."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    for cidr in CIDRS[:3]:
        put_block(store, cidr, "host:node2")
    put_block(store, CIDRS[3], None)
    fill(IpamService(store, NODE), "net.c", 16)
    assert set(affinities(store)) == {(NODE, cidr) for cidr in CIDRS}


@pytest.mark.parametrize("number", range(1, 7))
def test_an_owner_who_comes_back_in_time_keeps_its_block(store: Backend, number: int) -> None:
    """It takes an address between any two writes: the loser goes elsewhere, and no address is assigned twice."""
    owned_by(store, "node2", *CIDRS, claimed_at=None)
    owner = IpamService(store, "node2")
    take(owner, "net.warm")
    free(owner, "net.warm")
    crossed = Interfering(store, number, lambda: take(owner, "net.owner"))
    take(IpamService(crossed, NODE), "net.c")
    take(owner, "net.again")
    assert {"net.c", "net.again"} <= holdings(store).keys()
    take(IpamService(store, "node2"), "net.cold")
    require_whole_claims(store)


def test_a_take_over_that_fails_leaves_no_doubt(store: Backend) -> None:
    """The owner, who has the block in use again, would have to look otherwise."""
    owned_by(store, "node2", *CIDRS, claimed_at=None)
    owner = IpamService(store, "node2")
    take(owner, "net.warm")
    free(owner, "net.warm")
    crossed = Interfering(store, 2, lambda: fill(owner, "net.owner", 16))
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(IpamService(crossed, NODE), "net.c")
    assert affinities(store) == {("node2", cidr): CONFIRMED for cidr in CIDRS}


@pytest.mark.parametrize("state", [PENDING, CONFIRMED, PENDING_DELETION])
def test_a_broken_off_take_over_is_finished_by_somebody(store: Backend, state: str) -> None:
    """For every state of its affinity when the claimant was killed."""
    owned_by(store, "node2", *CIDRS, claimed_at=None)
    put(store, AffinityKey("node2", Cidr(CIDRS[0])), Affinity(state))
    assert len(set(fill(IpamService(store, NODE), "net.c", 16))) == 16
    assert {host for host, _ in affinities(store)} == {NODE}


def test_the_former_owner_finds_another_block(store: Backend) -> None:
    """It remembers the block that was taken from it."""
    ipam = IpamService(store, "node2")
    taken = block_of(store, *take(ipam, "net.c")).cidr
    free(ipam, "net.c")
    wipe(store, AffinityQuery(), BlockQuery())
    owned_by(store, NODE, str(taken), holders=("net.x",))
    assert block_of(store, *take(ipam, "net.d")).cidr != taken


# blocks in pools that select the node no more


def test_empty_blocks_go_when_their_pool_selects_the_node_no_more(store: Backend) -> None:
    """Before an address is assigned elsewhere; blocks in use, in other pools, or in no enabled pool stay."""
    owned_by(store, NODE, CIDRS[0])
    owned_by(store, NODE, CIDRS[1], holders=("net.x",))
    put_pool(store, "disabled", "10.66.0.0/28", blockSize=30, disabled=True, nodeSelector="zone == 'b'")
    owned_by(store, NODE, "10.66.0.0/30", "10.67.0.0/30")
    put_pool(store, "other", "10.68.0.0/28", blockSize=30)
    put_pool(store, "pool4", POOL, blockSize=30, nodeSelector="zone == 'b'")
    (got,) = take(IpamService(store, NODE), "net.c")
    assert {cidr for _, cidr in affinities(store)} == {CIDRS[1], "10.66.0.0/30", "10.67.0.0/30", str(block_of(store, got).cidr)}


@pytest.mark.parametrize("release", ["by handle", "by address"])
@pytest.mark.parametrize("node", [NODE, "node2"])
def test_the_last_release_gives_a_misplaced_block_up(store: Backend, node: str, release: str) -> None:
    """For every releasing node and every owner of the block."""
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


def test_a_well_placed_block_stays_with_its_node(store: Backend) -> None:
    """It will be used again."""
    ipam = IpamService(store, NODE)
    (got,) = take(ipam, "net.c")
    free(ipam, "net.c")
    assert block_of(store, got).affinity == "host:node1"


def test_reserved_blocks_are_neither_claimed_nor_taken_nor_borrowed(store: Backend) -> None:
    """Those of which every address is reserved."""
    put_reservation(store, "res", CIDRS[0], "10.65.0.4/31", "10.65.0.6", "10.65.0.7/32")
    owned_by(store, "node2", CIDRS[1], CIDRS[2], claimed_at=None)
    got = fill(IpamService(store, NODE), "net.c", 8)
    assert {block_of(store, address).cidr for address in got} == {Cidr(CIDRS[2]), Cidr(CIDRS[3])}
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(IpamService(store, NODE), "net.late")
