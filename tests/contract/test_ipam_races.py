"""Concurrent callers, and changes of the datastore by other writers."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from harness.backend_wrappers import Blockable, Interfering, Recording, Through, wait_until_queued
from harness.fault_injection import Faults, FaultyBackend, Kind
from harness.ipam import (
    EVERYTHING,
    IPAM_QUERIES,
    NODE,
    TIMEOUT_SECONDS,
    affinities,
    block_of,
    blocks,
    free,
    handles,
    holdings,
    in_threads,
    put_block,
    put_node,
    put_pool,
    remove,
    require_whole_claims,
    take,
    wipe,
)
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Entries, Entry, StoreError, UndecodableEntry
from svc.ipam.service import MAX_BATCH, IpamService
from svc.model.errors import CallerError, Code, PeerError
from svc.model.keys import AffinityQuery, BlockKey, BlockQuery, HandleKey, Key, Query, ResourceKey
from svc.retry import ATTEMPTS

POOL = "10.65.0.0/24"

OpenStore = Callable[[], Backend]
Call = Callable[[], Any]


@pytest.fixture
def store(backend: Backend) -> Backend:
    put_node(backend)
    put_node(backend, "node2")
    put_pool(backend, "pool4", POOL)
    return backend


def in_one_batch(
    store: Backend, make: Callable[[IpamService], Sequence[Call]], before_open: Callable[[], object] = lambda: None
) -> list[Any]:
    """Return the outcomes of calls in one batch. The batch forms because an earlier write is blocked."""
    gated = Blockable(store)
    ipam = IpamService(gated, NODE)
    calls = make(ipam)
    with ThreadPoolExecutor(len(calls) + 1) as pool:
        first = pool.submit(take, ipam, "net.first")
        assert gated.reached.wait(TIMEOUT_SECONDS)
        futures: list[Future[Any]] = []
        for call in calls:
            futures.append(pool.submit(call))
            wait_until_queued(ipam, len(futures))
        before_open()
        gated.open()
        wait([first, *futures], TIMEOUT_SECONDS)
    first.result()
    return [future.exception() or future.result() for future in futures]


def assignments(ipam: IpamService, *handles: str, **how: Any) -> list[Call]:
    return [lambda handle=handle: take(ipam, handle, **how) for handle in handles]  # type: ignore[misc]


# batches


def test_waiting_requests_are_written_together(store: Backend) -> None:
    """The block is written once, with an address for each caller."""
    recording = Recording(store)
    names = [f"net.c{n}" for n in range(MAX_BATCH)]
    outcomes = in_one_batch(recording, lambda ipam: assignments(ipam, *names))
    assert len({address for (address,) in outcomes}) == MAX_BATCH > 30
    assert recording.written[-1] == ["create handle"] * MAX_BATCH + ["update block"]
    assert set(holdings(store)) == {"net.first", *names}
    (block,) = blocks(store).values()
    assert len(set(block.ordinal_sequences.values())) == 2


def test_concurrent_callers_get_different_addresses(store: Backend) -> None:
    """Batches may have any size. The block is written at most once per request."""
    recording = Recording(store)
    ipam = IpamService(recording, NODE)
    outcomes = in_threads(call for n in range(32) for call in assignments(ipam, f"net.c{n}", versions=(4,)))
    assert len({address for (address,) in outcomes}) == 32
    assert sum(call.count("update block") for call in recording.written) <= 32
    assert len(holdings(store)) == 32


def test_batch_continues_in_new_blocks(store: Backend) -> None:
    """It has more requests than a block has free addresses, and each gets its address."""
    put_pool(store, "pool4", "10.65.0.0/27", blockSize=29)
    outcomes = in_one_batch(store, lambda ipam: assignments(ipam, *(f"net.c{n}" for n in range(31))))
    assert len({address for (address,) in outcomes}) == 31
    assert len(blocks(store)) == 4
    require_whole_claims(store)


def test_batch_can_assign_and_release_one_handle(store: Backend) -> None:
    """The requests apply in the order of their arrival, and earlier addresses of the handle are released too."""
    for order in ("assign, release", "release, assign"):
        take(IpamService(store, NODE), "net.c1")
        take(IpamService(store, NODE), "net.c1", at="10.65.0.200")

        def calls(ipam: IpamService, order: str = order) -> list[Call]:
            both = {"assign": lambda: take(ipam, "net.c1"), "release": lambda: free(ipam, "net.c1")}
            return [both[name] for name in order.split(", ")]

        in_one_batch(store, calls)
        assert len(holdings(store).get("net.c1", ())) == (order == "release, assign")
        for handle in holdings(store):
            free(IpamService(store, NODE), handle)
        assert handles(store) == {}


def test_existing_handles_do_not_exhaust_the_attempts(store: Backend) -> None:
    """Each is a conflict for a batch that assumes new handles. The batch reads all of them after the first conflict."""
    names = [f"net.c{n}" for n in range(ATTEMPTS + 20)]
    assert len(in_threads(assignments(IpamService(store, NODE), *names))) == len(names)
    recording = Recording(store)
    outcomes = in_one_batch(recording, lambda ipam: assignments(ipam, *names))
    assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(len(addresses) == 2 for handle, addresses in holdings(store).items() if handle != "net.first")


# failures in a batch


def test_refused_request_does_not_affect_its_batch(store: Backend) -> None:
    """Each refusal is a separate exception, because no two threads may raise the same object."""
    outcomes = in_one_batch(
        store,
        lambda ipam: [*assignments(ipam, "net.b1", "net.b2", pools={4: ("nosuch",)}), *assignments(ipam, "net.c1", "net.c2")],
    )
    assert [isinstance(outcome, CallerError) for outcome in outcomes] == [True, True, False, False]
    assert outcomes[0] is not outcomes[1]
    assert set(holdings(store)) == {"net.first", "net.c1", "net.c2"}


def test_unstorable_request_does_not_affect_its_batch(store: Backend) -> None:
    """Only the request with a handle that is not valid text fails."""
    outcomes = in_one_batch(store, lambda ipam: assignments(ipam, "net.c1", "net.\ud800", "net.c2"))
    assert [isinstance(outcome, tuple) for outcome in outcomes] == [True, False, True]
    assert set(holdings(store)) == {"net.first", "net.c1", "net.c2"}


def test_unreachable_datastore_is_called_once_per_batch(store: Backend) -> None:
    """Each call may take a full timeout, so separate calls for each request could take hours."""
    take(IpamService(store, NODE), "net.c0")
    faults = Faults()
    counting = Through(FaultyBackend(store, faults))

    def break_down() -> None:
        faults.arm(Kind.OUTAGE, 2, "get", "list", "write")  # the blocked write still succeeds
        counting.calls.update(get=0, list=0, write=0)

    outcomes = in_one_batch(counting, lambda ipam: [lambda: free(ipam, "net.c0")] * 16, break_down)
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    assert sum(counting.calls.values()) == 2
    assert len({id(outcome) for outcome in outcomes}) == 16


class Undecodable(Through):
    """A store whose values at some keys cannot be decoded."""

    keys: frozenset[Key] = frozenset()

    def get(self, key: Key) -> Entry:
        if key in self.keys:
            raise UndecodableEntry(f"no valid document at {key}")
        return super().get(key)

    def list(self, query: Query) -> Entries:
        return Entries(entry for entry in super().list(query) if entry.key not in self.keys)


def test_damaged_handle_fails_only_its_own_requests(store: Backend) -> None:
    """Its release and assignments to it fail. Other requests of the batch succeed."""
    take(IpamService(store, NODE), "net.bad")
    undecodable = Undecodable(store)
    undecodable.keys = frozenset({HandleKey("net.bad")})
    outcomes = in_one_batch(undecodable, lambda ipam: assignments(ipam, "net.bad", "net.c1"))
    assert [type(outcome) for outcome in outcomes] == [UndecodableEntry, tuple]
    with pytest.raises(UndecodableEntry):
        free(IpamService(undecodable, NODE), "net.bad")
    assert len(holdings(store)["net.bad"]) == 1


def test_damaged_block_does_not_stop_its_node(store: Backend) -> None:
    """The node assigns from other blocks. The affinity stays, because the block may be repaired."""
    (got,) = take(IpamService(store, NODE), "net.c1")
    lost = block_of(store, got).cidr
    undecodable = Undecodable(store)
    undecodable.keys = frozenset({BlockKey(lost)})
    ipam = IpamService(undecodable, NODE)
    for number in range(3):
        (other,) = take(ipam, f"net.d{number}")
        assert block_of(store, other).cidr != lost
    ipam.require_capacity((4,), {})
    assert len(blocks(store)) == 2
    require_whole_claims(store)


def test_damaged_block_does_not_stop_other_nodes(store: Backend) -> None:
    """It looks free to them until they try to claim it."""
    pair = (Cidr("10.65.0.0/30"), Cidr("10.65.0.4/30"))
    put_pool(store, "pool4", "10.65.0.0/29", blockSize=30)
    for cidr in pair:
        put_block(store, str(cidr), "host:node2", ["net.theirs"] * 4)
    for cidr in pair:
        undecodable = Undecodable(store)
        undecodable.keys = frozenset({BlockKey(cidr)})
        with pytest.raises(PeerError, match="no free IPv4 address"):
            take(IpamService(undecodable, NODE), "net.c1")
    assert handles(store) == {}
    assert affinities(store) == {}


# datastores that change between two calls


class LateEvents(Through):
    """A datastore whose events of pools and nodes arrive late, so that caches do not detect their age."""

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return (0,) * len(kinds)


@pytest.fixture(params=[True, False], ids=["late news", "prompt news"])
def ipam(store: Backend, request: pytest.FixtureRequest) -> IpamService:
    """Return an IPAM whose cache was filled before the datastore changes."""
    warm = IpamService(LateEvents(store) if request.param else store, NODE)
    take(warm, "net.warm")
    return warm


def test_refusal_reads_the_datastore_first(store: Backend, ipam: IpamService, open_store: OpenStore) -> None:
    """A pool that another process has just created can be named, selected, and requested by address."""
    with pytest.raises(CallerError, match="does not exist"):
        take(ipam, "net.c1", pools={4: ("new",)})
    with pytest.raises(PeerError, match="no IPv6 pool"):
        take(ipam, "net.c1", versions=(6,))
    other = open_store()
    put_pool(other, "new", "10.66.0.0/24")
    put_pool(other, "six", "fd65::/112")
    put_pool(other, "third", "10.67.0.0/24")
    assert take(ipam, "net.c1", pools={4: ("new",)})[0].startswith("10.66.")
    assert take(ipam, "net.c2", versions=(6,))[0].startswith("fd65::")
    assert take(ipam, "net.c3", at="10.67.0.1") == ("10.67.0.1",)


def test_exhaustion_error_reads_the_datastore_first(store: Backend, ipam: IpamService) -> None:
    """Another process of this node has released addresses, or another pool was created."""
    put_pool(store, "tiny", "10.66.0.0/30", blockSize=30)
    for number in range(4):
        take(ipam, f"net.c{number}", pools={4: ("tiny",)})
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(ipam, "net.late", pools={4: ("tiny",)})
    free(IpamService(store, NODE), "net.c2")
    take(ipam, "net.late", pools={4: ("tiny",)})


def test_newly_selected_node_gets_addresses(store: Backend, ipam: IpamService) -> None:
    """Its labels or the selector of the pool have changed."""
    put_pool(store, "pool4", POOL, nodeSelector="zone == 'a'")
    with pytest.raises(PeerError, match="no IPv4 pool is available"):
        take(IpamService(store, NODE), "net.c1")
    put_node(store, zone="a")
    assert take(ipam, "net.c1")


def test_node_that_is_no_longer_selected_is_refused(store: Backend) -> None:
    """This holds after the event of its changed labels."""
    put_node(store, zone="a")
    put_pool(store, "pool4", POOL, nodeSelector="zone == 'a'")
    ipam = IpamService(store, NODE)
    take(ipam, "net.c1")
    put_node(store, zone="b")
    with pytest.raises(PeerError, match="no IPv4 pool is available"):
        take(ipam, "net.c2")


def test_recreated_pool_with_another_cidr_is_used(store: Backend) -> None:
    """The previous blocks of the node are in no pool. They and their allocations stay."""
    ipam = IpamService(store, NODE)
    (old,) = take(ipam, "net.old")
    remove(store, ResourceKey("IPPool", "pool4"))
    with pytest.raises(PeerError, match="no IPv4 pool is available"):
        take(ipam, "net.c1")
    put_pool(store, "pool4", "10.66.0.0/24")
    assert take(ipam, "net.c1")[0].startswith("10.66.")
    assert {str(address) for address in holdings(store)["net.old"]} == {old}
    free(ipam, "net.old")
    assert set(holdings(store)) == {"net.c1"}


def test_disabled_pools_assign_no_addresses(store: Backend) -> None:
    """Their addresses can be released."""
    ipam = IpamService(store, NODE)
    take(ipam, "net.c1")
    put_pool(store, "pool4", POOL, disabled=True)
    with pytest.raises(PeerError, match="no IPv4 pool is available"):
        take(ipam, "net.c2")
    free(ipam, "net.c1")
    assert holdings(store) == {}


@pytest.mark.parametrize("queries", [(BlockQuery(),), (AffinityQuery(),), IPAM_QUERIES], ids=["blocks", "affinities", "all"])
def test_deleted_documents_are_created_again(store: Backend, ipam: IpamService, queries: tuple[Query, ...]) -> None:
    """After a deletion of any kind of document, calls work as in an empty datastore."""
    free(ipam, "net.warm")
    wipe(store, *queries)
    assert not ipam.holds("net.warm", [Address("10.65.0.0")])
    free(ipam, "net.warm")
    got = {take(ipam, f"net.c{n}")[0] for n in range(70)}
    assert len(got) == 70
    assert len(holdings(store)) == 70


def test_emptied_datastore_is_used_again(store: Backend, ipam: IpamService) -> None:
    """First pool and node are missing. Then they exist again, with another CIDR."""
    wipe(store, *EVERYTHING)
    with pytest.raises(PeerError, match="does not exist" if store.requires_node else "no IPv4 pool is available"):
        take(ipam, "net.c1")
    free(ipam, "net.warm")
    put_node(store)
    put_pool(store, "other", "10.66.0.0/24")
    assert take(ipam, "net.c1")[0].startswith("10.66.")
    assert set(holdings(store)) == {"net.c1"}
    require_whole_claims(store)


# conflicts


@pytest.mark.parametrize("number", range(1, 4))
def test_conflict_is_retried(store: Backend, number: int) -> None:
    """Another process of the node changes the same block before each write."""
    rival = IpamService(store, NODE)
    take(rival, "net.c1")
    interrupted = Interfering(store, number, lambda: take(rival, "net.rival"))
    ipam = IpamService(interrupted, NODE)
    take(ipam, "net.c2")
    free(ipam, "net.c1")
    take(ipam, "net.c3")
    assert set(holdings(store)) == {"net.c2", "net.c3", "net.rival"}


def test_permanent_conflict_fails(store: Backend) -> None:
    """After a number of attempts the call fails with its own error code, and nothing is assigned."""
    rival = IpamService(store, NODE)
    take(rival, "net.0")

    class AlwaysConflicting(Through):
        def write(self, writes: Sequence[Any], *, durable: bool = False) -> Sequence[Entry | None]:
            take(rival, "net.busy")
            free(rival, "net.busy")
            return super().write(writes, durable=durable)

    conflicting = AlwaysConflicting(store)
    with pytest.raises(PeerError, match="kept changing") as refusal:
        take(IpamService(conflicting, NODE), "net.c1")
    assert refusal.value.code == Code.CONCURRENCY
    assert conflicting.calls["write"] == ATTEMPTS * (
        1 if store.atomic else 2
    )  # a non-atomic store reverts the count of the handle each time
    assert "net.c1" not in holdings(store)
