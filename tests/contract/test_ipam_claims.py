"""How a node claims blocks: the order of the writes, claims that were broken off, blocks that belong to others."""

from collections.abc import Callable

import pytest

from harness.backend_wrappers import Interfering, NonAtomic, Recording
from harness.fault_injection import Faults, FaultyBackend, Kind
from harness.ipam import (
    NODE,
    affinities,
    block_of,
    blocks,
    document,
    free,
    holdings,
    just_now,
    put_affinity,
    put_block,
    put_node,
    put_pool,
    put_settings,
    require_whole_claims,
    take,
    wipe,
)
from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Delete, StoreError
from svc.ipam.claims import ClaimConflict, claim
from svc.ipam.service import IpamService
from svc.model.errors import PeerError
from svc.model.ipam import CONFIRMED, PENDING, PENDING_DELETION
from svc.model.keys import AffinityKey, AffinityQuery, BlockKey, BlockQuery, Host

POOL = "10.65.0.0/28"  # four blocks of four addresses
SIZE = 30
CLAIM = [["create affinity pending"], ["update affinity pending"], ["create block"], ["update affinity confirmed"]]
EVERY_FAULT = pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.REPLY_LOST, Kind.OUTAGE], ids=lambda kind: str(kind.value))
BOTH_WAYS = pytest.mark.only_over("embedded", "piecemeal")  # faults strike above a store: what counts is that one writes parts
BROKEN_AT = range(1, len(CLAIM) + 2)  # of a claim, or at the assignment that follows it


@pytest.fixture
def store(backend: Backend) -> Backend:
    """With one pool, and two nodes."""
    for node in (NODE, "node2"):
        put_node(backend, node)
    put_pool(backend, "pool4", POOL, blockSize=SIZE)
    return backend


def first_block(store: Backend) -> str:
    """The one that a new node claims first."""
    take(IpamService(store, NODE), "net.first")
    (cidr,) = blocks(store)
    free(IpamService(store, NODE), "net.first")
    wipe(store, BlockQuery(), AffinityQuery())
    return cidr


# the order of the writes


def test_a_new_block_takes_four_writes(store: Backend) -> None:
    """Affinity pending, pending again, block, confirmed; then address and handle in one."""
    recording = Recording(store)
    take(IpamService(recording, NODE), "net.c1")
    assert recording.written == [*CLAIM, ["create handle", "update block"]]


def test_a_further_address_takes_one_write(store: Backend) -> None:
    """Handle before block; a handle that exists is found out and updated."""
    recording = Recording(store)
    ipam = IpamService(recording, NODE)
    take(ipam, "net.c1")
    recording.written.clear()
    take(ipam, "net.c2")
    take(ipam, "net.c1")
    assert recording.written == [["create handle", "update block"], ["update handle", "update block"]]


def test_releases_write_the_block_before_the_handle(store: Backend) -> None:
    """A reader in between, or after a crash, finds a handle too many and never an address without one."""
    recording = Recording(store)
    ipam = IpamService(recording, NODE)
    take(ipam, "net.c1")
    take(ipam, "net.c1")
    recording.written.clear()
    free(ipam, "net.c1", keep=[next(str(a) for a in holdings(store)["net.c1"])])
    free(ipam, "net.c1")
    assert recording.written == [["update block", "update handle"], ["update block", "delete handle"]]


def test_a_claim_starts_from_the_affinity_that_is_there(store: Backend) -> None:
    """Without a block, an affinity of any state is marked pending before the block is created."""
    for state in (PENDING, CONFIRMED, PENDING_DELETION):
        wipe(store, BlockQuery(), AffinityQuery())
        put_affinity(store, "10.65.0.4/30", state)
        recording = Recording(store)
        assert take(IpamService(recording, NODE), f"net.{state}") == ("10.65.0.4",)
        assert recording.written == [*CLAIM[1:], ["create handle", "update block"]]
        free(IpamService(store, NODE), f"net.{state}")
        require_whole_claims(store)


@pytest.mark.parametrize("state", [PENDING, PENDING_DELETION])
def test_a_claim_in_doubt_is_confirmed_before_it_is_used(store: Backend, state: str) -> None:
    """The block is written in between: a writer that releases or created it, with what it read before, gets a conflict."""
    put_block(store, "10.65.0.4/30", "host:node1")
    put_affinity(store, "10.65.0.4/30", state)
    recording = Recording(store)
    assert take(IpamService(recording, NODE), "net.c1") == ("10.65.0.4",)
    assert recording.written[:3] == [["update affinity pending"], ["update block"], ["update affinity confirmed"]]
    assert blocks(store)["10.65.0.4/30"].sequence == 1002
    require_whole_claims(store)


# broken-off claims


@BOTH_WAYS
@EVERY_FAULT
@pytest.mark.parametrize("number", BROKEN_AT)
def test_whatever_write_fails_the_next_call_puts_it_right(store: Backend, kind: Kind, number: int) -> None:
    """No address is lost, none is given twice, and the node uses the block it had begun to claim."""
    faults = Faults()
    faulty = FaultyBackend(store, faults)
    faults.arm(kind, number, "write")
    _try_to_take(IpamService(faulty, NODE), "net.c1")
    assert faults.struck
    faults.heal()
    free(IpamService(faulty, NODE), "net.c1")  # what a failed ADD owes
    assert holdings(store) == {}
    got = [take(IpamService(store, NODE), f"net.c{n}")[0] for n in range(2, 6)]
    assert len(blocks(store)) == 1
    assert holdings(store).keys() == {f"net.c{n}" for n in range(2, 6)}
    assert len(set(got)) == 4
    require_whole_claims(store)


@BOTH_WAYS
@EVERY_FAULT
@pytest.mark.parametrize("number", BROKEN_AT)
def test_the_process_that_saw_the_failure_goes_on(store: Backend, kind: Kind, number: int) -> None:
    """Its cache may be older than the datastore, or newer; the compare-and-swap shows it."""
    faults = Faults()
    ipam = IpamService(FaultyBackend(store, faults), NODE)
    faults.arm(kind, number, "write")
    _try_to_take(ipam, "net.c1")
    faults.heal()
    free(ipam, "net.c1")
    assert len({take(ipam, f"net.c{n}") for n in range(2, 10)}) == 8
    assert len(holdings(store)) == 8
    require_whole_claims(store)


@BOTH_WAYS
@EVERY_FAULT
def test_failed_releases_can_be_repeated(store: Backend, kind: Kind) -> None:
    """By the same process and by another, until nothing is held."""
    faults = Faults()
    ipam = IpamService(FaultyBackend(store, faults), NODE)
    take(ipam, "net.c1")
    faults.arm(kind, 1, "write")
    try:
        free(ipam, "net.c1")
    except StoreError:
        faults.heal()
        free(ipam, "net.c1")
    free(IpamService(store, NODE), "net.c1")
    assert holdings(store) == {}
    require_whole_claims(store)


@BOTH_WAYS
@pytest.mark.parametrize("number", BROKEN_AT)
@pytest.mark.parametrize("at", ["", "10.65.0.6"])
def test_another_node_is_not_kept_from_a_block_that_was_not_made(store: Backend, number: int, at: str) -> None:
    """The first creator of the block has it; the other node's claim is deleted when it returns."""
    faults = Faults()
    faults.arm(Kind.OUTAGE, number, "write")
    _try_to_take(IpamService(FaultyBackend(store, faults), NODE), "net.c1")
    for turn in range(12):
        take(IpamService(store, "node2"), f"net.two{turn}")
    take(IpamService(store, NODE), "net.c2")
    assert block_of(store, str(next(iter(holdings(store)["net.c2"])))).affinity == "host:node1"
    require_whole_claims(store)


# blocks of others


def test_blocks_of_other_nodes_are_passed_over(store: Backend) -> None:
    """Even when they are empty, as long as there is room elsewhere."""
    for cidr in ("10.65.0.0/30", "10.65.0.4/30", "10.65.0.12/30"):
        put_block(store, cidr, "host:node2", claimed_at=just_now())
    assert take(IpamService(store, NODE), "net.c1") == ("10.65.0.8",)
    for number in range(3):
        take(IpamService(store, NODE), f"net.d{number}")
    assert set(affinities(store)) == {(NODE, "10.65.0.8/30")}
    assert {str(block.cidr) for block in blocks(store).values() if block.ordinals.used} == {"10.65.0.8/30"}


@pytest.mark.parametrize("owner", ["host:node2", None, "virtual:load-balancer"])
@pytest.mark.parametrize("state", [PENDING, CONFIRMED, PENDING_DELETION])
def test_an_affinity_does_not_make_a_block_ours(store: Backend, owner: str | None, state: str) -> None:
    """The block says whose it is: a claim that lost is dropped, and the node goes on to another block."""
    lost = first_block(store)
    put_block(store, lost, owner)
    put_affinity(store, lost, state)
    (got,) = take(IpamService(store, NODE), "net.c1")
    assert block_of(store, got).affinity == "host:node1"
    assert (NODE, lost) not in affinities(store)
    assert blocks(store)[lost].ordinals.used == 0


def test_a_block_that_another_node_makes_first_is_left_to_it(store: Backend) -> None:
    """Between our look at the pool and our writes; the next free block is taken instead."""
    lost = first_block(store)
    crossed = Interfering(store, 3, lambda: put_block(store, lost, "host:node2", ["net.theirs"]))
    (got,) = take(IpamService(crossed, NODE), "net.c1")
    assert Cidr(lost) != block_of(store, got).cidr
    assert blocks(store)[lost].affinity == "host:node2"
    assert set(affinities(store)) == {(NODE, str(block_of(store, got).cidr))}


def test_losing_a_claim_is_told(store: Backend) -> None:
    """And leaves nothing of ours behind."""
    put_block(store, "10.65.0.4/30", "host:node2")
    with pytest.raises(ClaimConflict):
        claim(store, Cidr("10.65.0.4/30"), Host(NODE))
    assert affinities(store) == {}


def test_a_block_that_our_node_has_made_and_filled_is_of_no_use(store: Backend) -> None:
    """By another process, between our look at the pool and our claim: the next free block is taken instead."""
    full = first_block(store)
    rival = IpamService(store, NODE)
    crossed = Interfering(store, 1, lambda: [take(rival, f"net.rival{n}") for n in range(4)])
    (got,) = take(IpamService(crossed, NODE), "net.c1")
    assert block_of(store, got).cidr != Cidr(full)
    assert len(holdings(store)) == 5
    require_whole_claims(store)


def test_a_claim_that_is_given_up_meanwhile_is_made_again(store: Backend) -> None:
    """Its affinity was changed just before it would have been confirmed."""
    mine = first_block(store)
    crossed = Interfering(store, 4, lambda: put_affinity(store, mine, PENDING_DELETION))
    take(IpamService(crossed, NODE), "net.c1")
    assert crossed.calls["write"] > 5
    require_whole_claims(store)


def test_two_processes_of_a_node_claim_the_same_block_once(store: Backend) -> None:
    """They look for a free block at the same place: the second finds the first one's block, and uses it."""
    rival = IpamService(store, NODE)
    for number in range(1, 6):
        wipe(store, BlockQuery(), AffinityQuery())
        crossed = Interfering(store, number, lambda number=number: take(rival, f"net.rival{number}"))  # type: ignore[misc]
        take(IpamService(crossed, NODE), f"net.c{number}")
        assert {*holdings(store)} == {f"net.rival{number}", f"net.c{number}"}
        assert len(blocks(store)) == 1
        require_whole_claims(store)
        for handle in holdings(store):
            free(rival, handle)


def test_a_block_whose_affinity_was_lost_is_claimed_again(store: Backend) -> None:
    """It names its owner: no other node will ever claim it."""
    lost = first_block(store)
    put_block(store, lost, "host:node1", ["net.c1"])
    ipam = IpamService(store, NODE)
    assert block_of(store, *take(ipam, "net.c2")).cidr == Cidr(lost)
    assert set(affinities(store).values()) == {CONFIRMED}
    assert len(blocks(store)) == 1


@pytest.mark.parametrize("deed", ["affinity", "block", "both", "given up", "given away"])
def test_blocks_taken_away_behind_our_back_are_given_up(store: Backend, deed: str) -> None:
    """Between two calls, while the block is remembered: the next address is in a block that is the node's."""
    ipam = IpamService(store, NODE)
    (got,) = take(ipam, "net.c1")
    free(ipam, "net.c1")
    cidr = block_of(store, got).cidr
    _DEEDS[deed](store, cidr)
    for number in range(4):
        (got,) = take(ipam, f"net.c{number}")
        assert block_of(store, got).affinity == "host:node1"
    assert len(holdings(store)) == 4


def _give_up(store: Backend, cidr: Cidr, owner: str | None) -> None:
    put_block(store, str(cidr), owner)
    store.write([Delete(AffinityKey(NODE, cidr))])


_DEEDS: dict[str, Callable[[Backend, Cidr], object]] = {
    "affinity": lambda store, cidr: store.write([Delete(AffinityKey(NODE, cidr))]),
    "block": lambda store, cidr: store.write([Delete(BlockKey(cidr))]),
    "both": lambda store, cidr: store.write([Delete(AffinityKey(NODE, cidr)), Delete(BlockKey(cidr))]),
    "given up": lambda store, cidr: _give_up(store, cidr, None),
    "given away": lambda store, cidr: _give_up(store, cidr, "host:node2"),
}


# room without a write


@pytest.mark.parametrize("state", [PENDING, CONFIRMED, PENDING_DELETION])
@pytest.mark.parametrize("owner", ["nobody made it", "host:node1", "host:node2"])
def test_asking_for_room_repairs_nothing(store: Backend, state: str, owner: str) -> None:
    """A claim in doubt is for the next ADD to put right."""
    if owner.startswith("host"):
        put_block(store, "10.65.0.4/30", owner)
    put_affinity(store, "10.65.0.4/30", state)
    before = document(store)
    IpamService(store, NODE).require_capacity((4,), {})
    assert document(store) == before


def test_room_in_the_blocks_of_others_does_not_count(store: Backend) -> None:
    """When affinity is strict; nor do affinities without a block of ours behind them."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    for number in range(4):
        put_block(store, f"10.65.0.{number * 4}/30", "host:node2", claimed_at=just_now())
    put_affinity(store, "10.65.0.4/30")
    with pytest.raises(PeerError, match="no free IPv4 address"):
        IpamService(store, NODE).require_capacity((4,), {})


# stores that write one key at a time


def test_lost_races_are_survived_where_writes_are_not_atomic(store: Backend) -> None:
    """The handle was written when the block turned out to be changed: what was done is taken back, or counted in."""
    crossed = Interfering(store, 6, lambda: take(IpamService(store, NODE), "net.rival"))
    take(IpamService(NonAtomic(crossed), NODE), "net.c1")
    assert set(holdings(store)) == {"net.rival", "net.c1"}


def _try_to_take(ipam: IpamService, handle: str) -> None:
    try:
        take(ipam, handle)
    except StoreError:
        return
