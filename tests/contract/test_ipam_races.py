"""Many callers at once, and a datastore that changes behind the caller's back."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from harness.backend_wrappers import Blockable, Interfering, Recording, Through, wait_until_combined
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


def together(
    store: Backend, make: Callable[[IpamService], Sequence[Call]], meanwhile: Callable[[], object] = lambda: None
) -> list[Any]:
    """The outcomes of calls that were certainly carried out as one group: they wait behind a write that is held up."""
    gated = Blockable(store)
    ipam = IpamService(gated, NODE)
    calls = make(ipam)
    with ThreadPoolExecutor(len(calls) + 1) as pool:
        first = pool.submit(take, ipam, "net.first")
        assert gated.reached.wait(TIMEOUT_SECONDS)
        futures: list[Future[Any]] = []
        for call in calls:
            futures.append(pool.submit(call))
            wait_until_combined(ipam, len(futures))
        meanwhile()
        gated.open()
        wait([first, *futures], TIMEOUT_SECONDS)
    first.result()
    return [future.exception() or future.result() for future in futures]


def taking(ipam: IpamService, *handles: str, **how: Any) -> list[Call]:
    return [lambda handle=handle: take(ipam, handle, **how) for handle in handles]  # type: ignore[misc]


# one write for many


def test_waiting_requests_become_one_write(store: Backend) -> None:
    """As many callers as fit into one, one write of the block, an address for each."""
    recording = Recording(store)
    names = [f"net.c{n}" for n in range(MAX_BATCH)]
    outcomes = together(recording, lambda ipam: taking(ipam, *names))
    assert len({address for (address,) in outcomes}) == MAX_BATCH > 30
    assert recording.written[-1] == ["create handle"] * MAX_BATCH + ["update block"]
    assert set(holdings(store)) == {"net.first", *names}
    (block,) = blocks(store).values()
    assert len(set(block.ordinal_sequences.values())) == 2


def test_callers_without_any_order_get_different_addresses(store: Backend) -> None:
    """As they come, in groups of any size: never more writes of the block than requests, and no address twice."""
    recording = Recording(store)
    ipam = IpamService(recording, NODE)
    outcomes = in_threads(call for n in range(32) for call in taking(ipam, f"net.c{n}", versions=(4,)))
    assert len({address for (address,) in outcomes}) == 32
    assert sum(call.count("update block") for call in recording.written) <= 32
    assert len(holdings(store)) == 32


def test_a_group_spills_over_into_new_blocks(store: Backend) -> None:
    """More requests than a block has room for, none of them short."""
    put_pool(store, "pool4", "10.65.0.0/27", blockSize=29)
    outcomes = together(store, lambda ipam: taking(ipam, *(f"net.c{n}" for n in range(31))))
    assert len({address for (address,) in outcomes}) == 31
    assert len(blocks(store)) == 4
    require_whole_claims(store)


def test_one_handle_may_be_assigned_and_released_in_one_group(store: Backend) -> None:
    """In the order of their arrival; what the handle held before goes as well."""
    for order in ("assign, release", "release, assign"):
        take(IpamService(store, NODE), "net.c1")
        take(IpamService(store, NODE), "net.c1", at="10.65.0.200")

        def calls(ipam: IpamService, order: str = order) -> list[Call]:
            both = {"assign": lambda: take(ipam, "net.c1"), "release": lambda: free(ipam, "net.c1")}
            return [both[name] for name in order.split(", ")]

        together(store, calls)
        assert len(holdings(store).get("net.c1", ())) == (order == "release, assign")
        for handle in holdings(store):
            free(IpamService(store, NODE), handle)
        assert handles(store) == {}


def test_many_handles_that_exist_already_do_not_exhaust_the_attempts(store: Backend) -> None:
    """Each is a lost race for a caller that took it for new; they are learned of together."""
    names = [f"net.c{n}" for n in range(ATTEMPTS + 20)]
    assert len(in_threads(taking(IpamService(store, NODE), *names))) == len(names)
    recording = Recording(store)
    outcomes = together(recording, lambda ipam: taking(ipam, *names))
    assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(len(addresses) == 2 for handle, addresses in holdings(store).items() if handle != "net.first")


# failures in a group


def test_a_refused_request_leaves_its_group_alone(store: Backend) -> None:
    """Each refusal is of its own, so that no two threads raise the same object."""
    outcomes = together(
        store, lambda ipam: [*taking(ipam, "net.b1", "net.b2", pools={4: ("nosuch",)}), *taking(ipam, "net.c1", "net.c2")]
    )
    assert [type(outcome) for outcome in outcomes] == [CallerError, CallerError, tuple, tuple]
    assert outcomes[0] is not outcomes[1]
    assert set(holdings(store)) == {"net.first", "net.c1", "net.c2"}


def test_a_request_that_cannot_be_stored_leaves_its_group_alone(store: Backend) -> None:
    """A handle that is not valid text fails by itself."""
    outcomes = together(store, lambda ipam: taking(ipam, "net.c1", "net.\ud800", "net.c2"))
    assert [isinstance(outcome, tuple) for outcome in outcomes] == [True, False, True]
    assert set(holdings(store)) == {"net.first", "net.c1", "net.c2"}


def test_an_unreachable_datastore_is_asked_once_for_a_group(store: Backend) -> None:
    """Each call to it may take its full time-out: requests that were tried one by one would wait for hours."""
    take(IpamService(store, NODE), "net.c0")
    faults = Faults()
    counting = Through(FaultyBackend(store, faults))

    def break_down() -> None:
        faults.arm(Kind.OUTAGE, 2, "get", "list", "write")  # the write that is held up still gets through
        counting.calls.update(get=0, list=0, write=0)

    outcomes = together(counting, lambda ipam: [lambda: free(ipam, "net.c0")] * 16, break_down)
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    assert sum(counting.calls.values()) == 2
    assert len({id(outcome) for outcome in outcomes}) == 16


class Harmed(Through):
    """What is stored at some keys cannot be decoded."""

    keys: frozenset[Key] = frozenset()

    def get(self, key: Key) -> Entry:
        if key in self.keys:
            raise UndecodableEntry(f"no valid document at {key}")
        return super().get(key)

    def list(self, query: Query) -> Entries:
        return Entries(entry for entry in super().list(query) if entry.key not in self.keys)


def test_a_damaged_handle_is_its_owners_trouble_alone(store: Backend) -> None:
    """Its release fails, and so does an assignment to it; others in the group are served."""
    take(IpamService(store, NODE), "net.bad")
    harmed = Harmed(store)
    harmed.keys = frozenset({HandleKey("net.bad")})
    outcomes = together(harmed, lambda ipam: taking(ipam, "net.bad", "net.c1"))
    assert [type(outcome) for outcome in outcomes] == [UndecodableEntry, tuple]
    with pytest.raises(UndecodableEntry):
        free(IpamService(harmed, NODE), "net.bad")
    assert len(holdings(store)["net.bad"]) == 1


def test_a_damaged_block_does_not_stop_its_node(store: Backend) -> None:
    """Addresses come from other blocks, and its claim stays for when it is repaired."""
    (got,) = take(IpamService(store, NODE), "net.c1")
    lost = block_of(store, got).cidr
    harmed = Harmed(store)
    harmed.keys = frozenset({BlockKey(lost)})
    ipam = IpamService(harmed, NODE)
    for number in range(3):
        (other,) = take(ipam, f"net.d{number}")
        assert block_of(store, other).cidr != lost
    ipam.require_capacity((4,), {})
    assert len(blocks(store)) == 2
    require_whole_claims(store)


def test_a_damaged_block_does_not_stop_other_nodes(store: Backend) -> None:
    """It looks free to them, and turns out not to be."""
    pair = (Cidr("10.65.0.0/30"), Cidr("10.65.0.4/30"))
    put_pool(store, "pool4", "10.65.0.0/29", blockSize=30)
    for cidr in pair:
        put_block(store, str(cidr), "host:node2", ["net.theirs"] * 4)
    for cidr in pair:
        harmed = Harmed(store)
        harmed.keys = frozenset({BlockKey(cidr)})
        with pytest.raises(PeerError, match="no free IPv4 address"):
            take(IpamService(harmed, NODE), "net.c1")
    assert handles(store) == {}
    assert affinities(store) == {}


# datastores that change between two calls


class Lagging(Through):
    """A datastore in which news of pools and nodes arrives late: caches cannot know that they are old."""

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return (0,) * len(kinds)


@pytest.fixture(params=[True, False], ids=["late news", "prompt news"])
def ipam(store: Backend, request: pytest.FixtureRequest) -> IpamService:
    """Warm: it has served a call before the datastore changes."""
    warm = IpamService(Lagging(store) if request.param else store, NODE)
    take(warm, "net.warm")
    return warm


def test_refusals_are_never_given_from_memory(store: Backend, ipam: IpamService, open_store: OpenStore) -> None:
    """A pool that another process made a moment ago can be named, selected, and asked for an address."""
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


def test_exhaustion_is_never_told_from_memory(store: Backend, ipam: IpamService) -> None:
    """Another process of this node has released addresses in between, or another pool was made."""
    put_pool(store, "tiny", "10.66.0.0/30", blockSize=30)
    for number in range(4):
        take(ipam, f"net.c{number}", pools={4: ("tiny",)})
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(ipam, "net.late", pools={4: ("tiny",)})
    free(IpamService(store, NODE), "net.c2")
    take(ipam, "net.late", pools={4: ("tiny",)})


def test_a_node_that_is_selected_anew_is_served(store: Backend, ipam: IpamService) -> None:
    """Its labels have changed, or the pool's selector has."""
    put_pool(store, "pool4", POOL, nodeSelector="zone == 'a'")
    with pytest.raises(PeerError, match="no IPv4 pool is available"):
        take(IpamService(store, NODE), "net.c1")
    put_node(store, zone="a")
    assert take(ipam, "net.c1")


def test_a_node_that_is_selected_no_more_is_refused(store: Backend) -> None:
    """As soon as the news of its labels arrive."""
    put_node(store, zone="a")
    put_pool(store, "pool4", POOL, nodeSelector="zone == 'a'")
    ipam = IpamService(store, NODE)
    take(ipam, "net.c1")
    put_node(store, zone="b")
    with pytest.raises(PeerError, match="no IPv4 pool is available"):
        take(ipam, "net.c2")


def test_a_pool_made_anew_elsewhere_gives_its_new_addresses(store: Backend) -> None:
    """The node's old blocks are outside every pool: they are left alone, with what is held in them."""
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


def test_disabled_pools_give_no_more_addresses(store: Backend) -> None:
    """But take back those that they gave."""
    ipam = IpamService(store, NODE)
    take(ipam, "net.c1")
    put_pool(store, "pool4", POOL, disabled=True)
    with pytest.raises(PeerError, match="no IPv4 pool is available"):
        take(ipam, "net.c2")
    free(ipam, "net.c1")
    assert holdings(store) == {}


@pytest.mark.parametrize("queries", [(BlockQuery(),), (AffinityQuery(),), IPAM_QUERIES], ids=["blocks", "affinities", "all"])
def test_what_was_wiped_is_made_anew(store: Backend, ipam: IpamService, queries: tuple[Query, ...]) -> None:
    """Of any of it: the next calls assign, release and hold as in an empty datastore."""
    free(ipam, "net.warm")
    wipe(store, *queries)
    assert not ipam.holds("net.warm", [Address("10.65.0.0")])
    free(ipam, "net.warm")
    got = {take(ipam, f"net.c{n}")[0] for n in range(70)}
    assert len(got) == 70
    assert len(holdings(store)) == 70


def test_a_datastore_wiped_to_the_ground_serves_again(store: Backend, ipam: IpamService) -> None:
    """First there is neither pool nor node, then there is one again, in another place."""
    wipe(store, *EVERYTHING)
    with pytest.raises(PeerError, match="does not exist" if store.requires_node else "no IPv4 pool is available"):
        take(ipam, "net.c1")
    free(ipam, "net.warm")
    put_node(store)
    put_pool(store, "other", "10.66.0.0/24")
    assert take(ipam, "net.c1")[0].startswith("10.66.")
    assert set(holdings(store)) == {"net.c1"}
    require_whole_claims(store)


# rivals


@pytest.mark.parametrize("number", range(1, 4))
def test_a_lost_race_is_run_again(store: Backend, number: int) -> None:
    """Another process of the node changes the same block before each of our writes."""
    rival = IpamService(store, NODE)
    take(rival, "net.c1")
    crossed = Interfering(store, number, lambda: take(rival, "net.rival"))
    ipam = IpamService(crossed, NODE)
    take(ipam, "net.c2")
    free(ipam, "net.c1")
    take(ipam, "net.c3")
    assert set(holdings(store)) == {"net.c2", "net.c3", "net.rival"}


def test_a_race_that_is_always_lost_ends(store: Backend) -> None:
    """After a number of attempts, with a code of its own, and with nothing assigned."""
    rival = IpamService(store, NODE)
    take(rival, "net.0")

    class Cruel(Through):
        def write(self, writes: Sequence[Any], *, durable: bool = False) -> Sequence[Entry | None]:
            take(rival, "net.busy")
            free(rival, "net.busy")
            return super().write(writes, durable=durable)

    cruel = Cruel(store)
    with pytest.raises(PeerError, match="kept changing") as refusal:
        take(IpamService(cruel, NODE), "net.c1")
    assert refusal.value.code == Code.CONCURRENCY
    assert cruel.calls["write"] == ATTEMPTS * (1 if store.atomic else 2)  # or what was counted is taken back each time
    assert "net.c1" not in holdings(store)
