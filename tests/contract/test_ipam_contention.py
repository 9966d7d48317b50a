"""Address management under load: concurrent assignments, large pools, many pools and many blocks."""

import random
import threading
from collections.abc import Callable

import pytest

from harness.backend_wrappers import Blockable, Through, wait_until_queued
from harness.ipam import (
    NODE,
    TIMEOUT_SECONDS,
    blocks,
    free,
    handles,
    holdings,
    in_threads,
    put_block,
    put_node,
    put_pool,
    put_settings,
    require_whole_claims,
    take,
    wait_for_stable_generations,
    write_all,
)
from svc._core.cidr import Address, Cidr
from svc.datastore.api import MAX_WRITES, Backend, Create
from svc.ipam.service import IpamService
from svc.model.errors import PeerError
from svc.model.keys import IPAM_CONFIG, ResourceKey
from svc.model.resource import Resource

OPERATIONS = 1600  # a tenth of these if each takes several requests to a server
THREADS = 4  # of each of four address managers
AT_MOST = 5  # handles that one thread has at a time

OpenStore = Callable[[], Backend]


class Ledger:
    """The handle of each assigned address, according to the replies. An address must not be in two entries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.holders: dict[Address, str] = {}

    def enter(self, address: Address, handle: str) -> None:
        with self._lock:
            assert self.holders.setdefault(address, handle) == handle, f"{address} was given to {handle} as well"

    def remove(self, handle: str) -> None:
        """Remove the addresses of a handle before their release, because another caller may get them at once."""
        with self._lock:
            self.holders = {address: holder for address, holder in self.holders.items() if holder != handle}


def assign_and_release(ipam: IpamService, ledger: Ledger, name: str, operations: int) -> None:
    """Assign and release at random. The handles that are left at the end stay assigned."""
    dice = random.Random(name)
    handles_of_thread: list[str] = []
    for number in range(operations):
        if len(handles_of_thread) == AT_MOST or (handles_of_thread and dice.random() < 0.5):
            handle = handles_of_thread.pop(dice.randrange(len(handles_of_thread)))
            ledger.remove(handle)
            free(ipam, handle)
            continue
        handle = f"{name}.{number}"
        for text in take(ipam, handle, versions=dice.choice([(4,), (6,), (4, 6)])):
            ledger.enter(Address(text), handle)
        handles_of_thread.append(handle)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [(NODE, NODE, NODE, NODE), (NODE, NODE, "node2", "node3")], ids=["one node", "three nodes"])
def test_no_address_is_assigned_twice_or_lost(open_store: OpenStore, nodes: tuple[str, ...]) -> None:
    """Two sessions have two address managers each, with four threads each. Blocks are small, and each family has one pool."""
    sessions = [open_store(), open_store()]
    for node in nodes:
        put_node(sessions[0], node)
    put_pool(sessions[0], "pool4", "10.65.0.0/24", blockSize=29)
    put_pool(sessions[0], "pool6", "fd65::/120", blockSize=125)
    managers = [IpamService(sessions[number % 2], node) for number, node in enumerate(nodes)]
    ledger = Ledger()
    operations = OPERATIONS if sessions[0].atomic else OPERATIONS // 10
    share = operations // (len(managers) * THREADS)
    outcomes = in_threads(
        lambda ipam=ipam, name=f"net.m{n}t{thread}": assign_and_release(ipam, ledger, name, share)  # type: ignore[misc]
        for n, ipam in enumerate(managers)
        for thread in range(THREADS)
    )
    assert outcomes == [None] * len(outcomes)
    held = {address: handle for handle, addresses in holdings(sessions[0]).items() for address in addresses}
    assert held == ledger.holders
    require_whole_claims(sessions[0])
    for handle in set(held.values()):
        free(managers[0], handle)
    assert holdings(sessions[1]) == {}


def test_concurrent_callers_get_all_of_the_last_addresses(open_store: OpenStore) -> None:
    """Each other caller gets the error that no address is free, and no call is left incomplete."""
    store = open_store()
    put_node(store)
    put_pool(store, "pool4", "10.65.0.0/28", blockSize=30)
    put_pool(store, "pool6", "fd65::/124", blockSize=126)
    managers = [IpamService(open_store(), NODE) for _ in range(2)]
    outcomes = in_threads(
        lambda ipam=ipam, n=n, index=index: take(ipam, f"net.m{index}c{n}", versions=(4, 6))  # type: ignore[misc]
        for n in range(12)
        for index, ipam in enumerate(managers)
    )
    served = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
    assert len({*served}) == 16
    refused = {str(outcome).split(":")[0] for outcome in outcomes if not isinstance(outcome, tuple)}
    assert refused <= {"no free IPv4 address for node 'node1'", "no free IPv6 address for node 'node1'"}
    assert sum(len(addresses) for addresses in holdings(store).values()) == 32


WHATEVER_THE_STORE = pytest.mark.only_over(
    "embedded", "etcdv3"
)  # the setup takes hundreds of writes, which are slow one by one


# Cost: these tests count calls of the datastore, because each is a round trip to a remote one.


def test_a_restarted_node_reads_its_blocks_once(backend: Backend) -> None:
    """Later assignments do not read its full blocks again."""
    put_node(backend)
    put_pool(backend, "pool4", "10.65.0.0/16", blockSize=30)
    put_settings(backend, max_blocks_per_host=40)
    before = IpamService(backend, NODE)
    for number in range(120):
        take(before, f"net.old{number}")
    counting = Through(backend)
    wait_for_stable_generations(backend, "IPPool", "Node", "IPReservation", IPAM_CONFIG)
    ipam = IpamService(counting, NODE)
    take(ipam, "net.c0")
    assert counting.calls["get"] <= 30 + 4
    counting.calls.update(get=0, list=0, write=0)
    take(ipam, "net.c1")
    take(ipam, "net.c2")
    assert counting.calls == {"get": 0, "list": 0, "write": 2}


@WHATEVER_THE_STORE
def test_exhausted_pools_are_listed_at_most_twice(backend: Backend) -> None:
    """The pools are read from the cache, and once more before the refusal. The error stays short for any number of pools."""
    put_node(backend)
    names = [f"p{number:03}" for number in range(200)]
    ranges = [f"10.65.{number}.0/30" for number in range(200)]
    write_all(backend, [_pool(name, cidr) for name, cidr in zip(names, ranges, strict=True)])
    for cidr in ranges:
        put_block(backend, cidr, "host:node2", ["net.theirs"] * 4)
    wait_for_stable_generations(backend, "IPPool", "Node", "IPReservation", IPAM_CONFIG)
    counting = Through(backend)
    ipam = IpamService(counting, NODE)
    with pytest.raises(PeerError, match="no free IPv4 address") as refusal:
        take(ipam, "net.c1")
    assert counting.calls["list"] <= 2 * 4  # pools, reservations, affinities, blocks
    assert len(refusal.value.details) < 4000
    assert "and 180 more" in refusal.value.details


@WHATEVER_THE_STORE
def test_a_node_finds_its_pool_among_a_thousand(backend: Backend) -> None:
    """Its selector selects the node. The next address needs no further read."""
    put_node(backend, rack="777")
    pools = [_pool(f"p{n}", f"10.{n // 250}.{n % 250}.0/24", 26, nodeSelector=f"rack == '{n}'") for n in range(1000)]
    write_all(backend, pools)
    wait_for_stable_generations(backend, "IPPool", "Node", "IPReservation", IPAM_CONFIG)
    counting = Through(backend)
    ipam = IpamService(counting, NODE)
    assert Address(take(ipam, "net.c1")[0]) in Cidr("10.3.27.0/24")
    counting.calls.update(get=0, list=0, write=0)
    take(ipam, "net.c2")
    assert counting.calls == {"get": 0, "list": 0, "write": 1}


def test_batches_are_limited_to_the_size_of_a_write(backend: Backend) -> None:
    """Any number of requests may wait. No write is larger than every store must accept."""
    put_node(backend)
    put_pool(backend, "pool4", "10.65.0.0/20")
    put_pool(backend, "pool6", "fd65::/116")
    gated = Blockable(backend)
    ipam = IpamService(gated, NODE)
    names = [f"net.c{number}" for number in range(MAX_WRITES)]

    def lead() -> None:
        wait_until_queued(ipam, len(names))
        gated.open()

    in_threads([lambda: take(ipam, "net.first", versions=(4, 6)), lead, *(_late(gated, ipam, name) for name in names)])
    assert set(holdings(backend)) == {"net.first", *names}
    in_threads([lambda name=name: free(ipam, name) for name in names])  # type: ignore[misc]
    assert set(holdings(backend)) == {"net.first"}


def _late(gated: Blockable, ipam: IpamService, name: str) -> Callable[[], tuple[str, ...]]:
    """Return a request that arrives during the first one."""

    def call() -> tuple[str, ...]:
        assert gated.reached.wait(TIMEOUT_SECONDS)
        return take(ipam, name, versions=(4, 6))

    return call


@WHATEVER_THE_STORE
@pytest.mark.parametrize(("cidr", "version"), [("10.0.0.0/8", 4), ("fd00::/20", 6), ("2000::/3", 6), ("0.0.0.0/0", 4)])
def test_large_pools_are_not_enumerated(backend: Backend, cidr: str, version: int) -> None:
    """They have too many blocks for that. Each node starts its search at its own position."""
    put_pool(backend, "large", cidr)
    for number in range(20):
        put_node(backend, f"node{number}")
        take(IpamService(backend, f"node{number}"), f"net.c{number}", versions=(version,))
    assert len(blocks(backend)) == len(handles(backend)) == 20
    space = Cidr(cidr)
    places = sorted(space.ordinal(Cidr(block).first) * 100 // space.size for block in blocks(backend))
    assert version == 6 or places[-1] - places[0] > 50  # percent
    IpamService(backend, "node1").require_capacity((version,), {})


def _pool(name: str, cidr: str, size: int = 30, **spec: str) -> Create:
    document = {"cidr": cidr, "blockSize": size, **spec}
    return Create(ResourceKey("IPPool", name), Resource("IPPool", {"name": name, "uid": name}, document))
