"""Claims of blocks: the order of the writes, interrupted claims, and blocks of other nodes."""

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
BOTH_WAYS = pytest.mark.only_over(
    "embedded", "piecemeal"
)  # the faults occur above the store; it matters only whether its writes are atomic
INTERRUPTED_AT = range(1, len(CLAIM) + 2)  # of a claim, or at the assignment that follows it


@pytest.fixture
def store(backend: Backend) -> Backend:
    """Return a store with one pool and two nodes."""
    for node in (NODE, "node2"):
        put_node(backend, node)
    put_pool(backend, "pool4", POOL, blockSize=SIZE)
    return backend


def first_block(store: Backend) -> str:
    """Return the block that a new node claims first."""
    take(IpamService(store, NODE), "net.first")
    (cidr,) = blocks(store)
    free(IpamService(store, NODE), "net.first")
    wipe(store, BlockQuery(), AffinityQuery())
    return cidr


# the order of the writes


def test_claim_of_a_new_block_takes_four_writes(store: Backend) -> None:
    """They write the affinity as pending twice, the block, and the confirmed affinity.

    One more writes the address and the handle.
    """
    recording = Recording(store)
    take(IpamService(recording, NODE), "net.c1")
    assert recording.written == [*CLAIM, ["create handle", "update block"]]


def test_further_address_takes_one_write(store: Backend) -> None:
    """The handle is written before the block. An existing handle is read and updated."""
    recording = Recording(store)
    ipam = IpamService(recording, NODE)
    take(ipam, "net.c1")
    recording.written.clear()
    take(ipam, "net.c2")
    take(ipam, "net.c1")
    assert recording.written == [["create handle", "update block"], ["update handle", "update block"]]


def test_releases_write_the_block_before_the_handle(store: Backend) -> None:
    """A reader in between, or after a crash, finds a surplus handle but never an address without a handle."""
    recording = Recording(store)
    ipam = IpamService(recording, NODE)
    take(ipam, "net.c1")
    take(ipam, "net.c1")
    recording.written.clear()
    free(ipam, "net.c1", keep=[next(str(a) for a in holdings(store)["net.c1"])])
    free(ipam, "net.c1")
    assert recording.written == [["update block", "update handle"], ["update block", "delete handle"]]


def test_claim_reuses_an_existing_affinity(store: Backend) -> None:
    """An affinity without a block, in any state, is marked pending before the block is created."""
    for state in (PENDING, CONFIRMED, PENDING_DELETION):
        wipe(store, BlockQuery(), AffinityQuery())
        put_affinity(store, "10.65.0.4/30", state)
        recording = Recording(store)
        assert take(IpamService(recording, NODE), f"net.{state}") == ("10.65.0.4",)
        assert recording.written == [*CLAIM[1:], ["create handle", "update block"]]
        free(IpamService(store, NODE), f"net.{state}")
        require_whole_claims(store)


@pytest.mark.parametrize("state", [PENDING, PENDING_DELETION])
def test_unconfirmed_affinity_is_confirmed_before_use(store: Backend, state: str) -> None:
    """The block is written first. A writer that released or created it from an earlier read gets a conflict."""
    put_block(store, "10.65.0.4/30", "host:node1")
    put_affinity(store, "10.65.0.4/30", state)
    recording = Recording(store)
    assert take(IpamService(recording, NODE), "net.c1") == ("10.65.0.4",)
    assert recording.written[:3] == [["update affinity pending"], ["update block"], ["update affinity confirmed"]]
    assert blocks(store)["10.65.0.4/30"].sequence == 1002
    require_whole_claims(store)


# interrupted claims


@BOTH_WAYS
@EVERY_FAULT
@pytest.mark.parametrize("number", INTERRUPTED_AT)
def test_next_call_repairs_any_failed_write(store: Backend, kind: Kind, number: int) -> None:
    """No address is lost or assigned twice, and the node uses the block that it had begun to claim."""
    faults = Faults()
    faulty = FaultyBackend(store, faults)
    faults.arm(kind, number, "write")
    _try_to_take(IpamService(faulty, NODE), "net.c1")
    assert faults.struck
    faults.heal()
    free(IpamService(faulty, NODE), "net.c1")  # the rollback of a failed ADD
    assert holdings(store) == {}
    got = [take(IpamService(store, NODE), f"net.c{n}")[0] for n in range(2, 6)]
    assert len(blocks(store)) == 1
    assert holdings(store).keys() == {f"net.c{n}" for n in range(2, 6)}
    assert len(set(got)) == 4
    require_whole_claims(store)


@BOTH_WAYS
@EVERY_FAULT
@pytest.mark.parametrize("number", INTERRUPTED_AT)
def test_process_continues_after_a_failed_write(store: Backend, kind: Kind, number: int) -> None:
    """Its cache may be older or newer than the datastore. A compare-and-swap detects that."""
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
    """The same process and another one repeat the release until nothing is allocated."""
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
@pytest.mark.parametrize("number", INTERRUPTED_AT)
@pytest.mark.parametrize("at", ["", "10.65.0.6"])
def test_other_node_can_claim_a_block_that_was_not_created(store: Backend, number: int, at: str) -> None:
    """The first creator of the block owns it. The affinity of the other node is deleted at its next call."""
    faults = Faults()
    faults.arm(Kind.OUTAGE, number, "write")
    _try_to_take(IpamService(FaultyBackend(store, faults), NODE), "net.c1")
    for turn in range(12):
        take(IpamService(store, "node2"), f"net.two{turn}")
    take(IpamService(store, NODE), "net.c2")
    assert block_of(store, str(next(iter(holdings(store)["net.c2"])))).affinity == "host:node1"
    require_whole_claims(store)


# blocks of other nodes


def test_blocks_of_other_nodes_are_skipped(store: Backend) -> None:
    """This includes empty blocks, as long as other addresses are free."""
    for cidr in ("10.65.0.0/30", "10.65.0.4/30", "10.65.0.12/30"):
        put_block(store, cidr, "host:node2", claimed_at=just_now())
    assert take(IpamService(store, NODE), "net.c1") == ("10.65.0.8",)
    for number in range(3):
        take(IpamService(store, NODE), f"net.d{number}")
    assert set(affinities(store)) == {(NODE, "10.65.0.8/30")}
    assert {str(block.cidr) for block in blocks(store).values() if block.ordinals.used} == {"10.65.0.8/30"}


@pytest.mark.parametrize("owner", ["host:node2", None, "virtual:load-balancer"])
@pytest.mark.parametrize("state", [PENDING, CONFIRMED, PENDING_DELETION])
def test_block_decides_which_affinity_is_valid(store: Backend, owner: str | None, state: str) -> None:
    """A node whose affinity contradicts the block deletes it and uses another block."""
    lost = first_block(store)
    put_block(store, lost, owner)
    put_affinity(store, lost, state)
    (got,) = take(IpamService(store, NODE), "net.c1")
    assert block_of(store, got).affinity == "host:node1"
    assert (NODE, lost) not in affinities(store)
    assert blocks(store)[lost].ordinals.used == 0


def test_block_that_another_node_creates_first_is_skipped(store: Backend) -> None:
    """It is created between the read of the pool and the writes. The node claims the next free block."""
    lost = first_block(store)
    interrupted = Interfering(store, 3, lambda: put_block(store, lost, "host:node2", ["net.theirs"]))
    (got,) = take(IpamService(interrupted, NODE), "net.c1")
    assert Cidr(lost) != block_of(store, got).cidr
    assert blocks(store)[lost].affinity == "host:node2"
    assert set(affinities(store)) == {(NODE, str(block_of(store, got).cidr))}


def test_lost_claim_raises_claim_conflict(store: Backend) -> None:
    """The lost claim leaves no affinity."""
    put_block(store, "10.65.0.4/30", "host:node2")
    with pytest.raises(ClaimConflict):
        claim(store, Cidr("10.65.0.4/30"), Host(NODE))
    assert affinities(store) == {}


def test_full_block_of_another_process_of_the_node_is_skipped(store: Backend) -> None:
    """That process creates and fills it between the read of the pool and the claim. The next free block is claimed."""
    full = first_block(store)
    rival = IpamService(store, NODE)
    interrupted = Interfering(store, 1, lambda: [take(rival, f"net.rival{n}") for n in range(4)])
    (got,) = take(IpamService(interrupted, NODE), "net.c1")
    assert block_of(store, got).cidr != Cidr(full)
    assert len(holdings(store)) == 5
    require_whole_claims(store)


def test_claim_is_repeated_if_its_affinity_was_released(store: Backend) -> None:
    """The affinity changes just before it would be confirmed."""
    claimed = first_block(store)
    interrupted = Interfering(store, 4, lambda: put_affinity(store, claimed, PENDING_DELETION))
    take(IpamService(interrupted, NODE), "net.c1")
    assert interrupted.calls["write"] > 5
    require_whole_claims(store)


def test_two_processes_of_a_node_claim_one_block(store: Backend) -> None:
    """Both search from the same position. The second process uses the block of the first."""
    rival = IpamService(store, NODE)
    for number in range(1, 6):
        wipe(store, BlockQuery(), AffinityQuery())
        interrupted = Interfering(store, number, lambda number=number: take(rival, f"net.rival{number}"))  # type: ignore[misc]
        take(IpamService(interrupted, NODE), f"net.c{number}")
        assert {*holdings(store)} == {f"net.rival{number}", f"net.c{number}"}
        assert len(blocks(store)) == 1
        require_whole_claims(store)
        for handle in holdings(store):
            free(rival, handle)


def test_node_claims_its_block_again_without_the_affinity(store: Backend) -> None:
    """The block names its owner, so no other node claims it."""
    lost = first_block(store)
    put_block(store, lost, "host:node1", ["net.c1"])
    ipam = IpamService(store, NODE)
    assert block_of(store, *take(ipam, "net.c2")).cidr == Cidr(lost)
    assert set(affinities(store).values()) == {CONFIRMED}
    assert len(blocks(store)) == 1


@pytest.mark.parametrize("deed", ["affinity", "block", "both", "given up", "given away"])
def test_node_stops_using_a_block_that_it_lost(store: Backend, deed: str) -> None:
    """The block is still in its cache. The next address is in a block of the node."""
    ipam = IpamService(store, NODE)
    (got,) = take(ipam, "net.c1")
    free(ipam, "net.c1")
    cidr = block_of(store, got).cidr
    _DEEDS[deed](store, cidr)
    for number in range(4):
        (got,) = take(ipam, f"net.c{number}")
        assert block_of(store, got).affinity == "host:node1"
    assert len(holdings(store)) == 4


def _release_affinity(store: Backend, cidr: Cidr, owner: str | None) -> None:
    put_block(store, str(cidr), owner)
    store.write([Delete(AffinityKey(NODE, cidr))])


_DEEDS: dict[str, Callable[[Backend, Cidr], object]] = {
    "affinity": lambda store, cidr: store.write([Delete(AffinityKey(NODE, cidr))]),
    "block": lambda store, cidr: store.write([Delete(BlockKey(cidr))]),
    "both": lambda store, cidr: store.write([Delete(AffinityKey(NODE, cidr)), Delete(BlockKey(cidr))]),
    "given up": lambda store, cidr: _release_affinity(store, cidr, None),
    "given away": lambda store, cidr: _release_affinity(store, cidr, "host:node2"),
}


# capacity checks


@pytest.mark.parametrize("state", [PENDING, CONFIRMED, PENDING_DELETION])
@pytest.mark.parametrize("owner", ["unclaimed", "host:node1", "host:node2"])
def test_capacity_check_does_not_repair_affinities(store: Backend, state: str, owner: str) -> None:
    """The next ADD repairs an unconfirmed affinity."""
    if owner.startswith("host"):
        put_block(store, "10.65.0.4/30", owner)
    put_affinity(store, "10.65.0.4/30", state)
    before = document(store)
    IpamService(store, NODE).require_capacity((4,), {})
    assert document(store) == before


def test_capacity_check_ignores_blocks_of_others_under_strict_affinity(store: Backend) -> None:
    """It also ignores affinities without a block of the node."""
    put_settings(store, strict_affinity=True, auto_allocate_blocks=True)
    for number in range(4):
        put_block(store, f"10.65.0.{number * 4}/30", "host:node2", claimed_at=just_now())
    put_affinity(store, "10.65.0.4/30")
    with pytest.raises(PeerError, match="no free IPv4 address"):
        IpamService(store, NODE).require_capacity((4,), {})


# stores that write one key at a time


def test_conflict_in_a_partial_write_is_repaired(store: Backend) -> None:
    """The handle is already written when the write of the block fails. Its count is reverted or reused."""
    interrupted = Interfering(store, 6, lambda: take(IpamService(store, NODE), "net.rival"))
    take(IpamService(NonAtomic(interrupted), NODE), "net.c1")
    assert set(holdings(store)) == {"net.rival", "net.c1"}


def _try_to_take(ipam: IpamService, handle: str) -> None:
    try:
        take(ipam, handle)
    except StoreError:
        return
