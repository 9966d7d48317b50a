"""Copies of the datastore whose watches fail, and what stays of nodes and pools that vanish. The store is one in memory."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from svc._core.bitmap import Ordinals
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Entry, Event, StoreError
from svc.ipam import settings
from svc.model.ipam import Affinity, Block, IpamConfig
from svc.model.keys import AffinityKey, AffinityQuery, BlockKey, BlockQuery, Key, Query, ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.routes import copies as copying
from svc.routes import follower, last_known
from svc.routes import owners as owning
from svc.routes.copies import Copies
from svc.routes.inputs import NodeFacts, node_facts

SECONDS = 10.0
BLOCK = Cidr("10.0.0.64/26")
POOL = {"cidr": "10.0.0.0/16", "vxlanMode": "Always"}
TUNNEL = {"ipv4VXLANTunnelAddr": "10.0.0.1"}


class MemoryWatch:
    """A watch that reports what the test puts."""

    def __init__(self, present: list[Event], listed: Callable[[], None] | None) -> None:
        self.events: list[Event | Exception | None] = list(present)
        self.interrupted_since: float | None = None
        self.failure = ""
        self._listed = listed
        self._rest = len(present)
        self._changed = threading.Condition()

    def __iter__(self) -> "MemoryWatch":
        return self

    def __next__(self) -> Event:
        if not self._rest and self._listed:
            self._listed()
        self._rest -= 1
        with self._changed:
            self._changed.wait_for(lambda: self.events, SECONDS)
            found = self.events.pop(0)
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise StopIteration
        return found

    def put(self, event: Event | Exception | None) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify()

    def close(self) -> None:
        self.put(None)


class MemoryStore:
    """The entries, and the open watch of each query. `refusal` is raised by the next watches."""

    atomic = True

    def __init__(self) -> None:
        self.entries: dict[Key, Any] = {}
        self.watches: dict[str, MemoryWatch] = {}
        self.refusal: Exception | None = None
        self.opened = 0
        self.found: dict[Key, Entry] = {}
        self.failure: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> MemoryWatch:
        self.opened += 1
        if self.refusal is not None:
            raise self.refusal
        present = [Event(key, Entry(key, value, "1")) for key, value in self.entries.items() if _kind(key) == _kind_of(query)]
        found = self.watches[_kind_of(query)] = MemoryWatch(present, listed)
        return found

    def put(self, key: Key, value: Any) -> None:
        self.entries[key] = value
        self.watches[_kind(key)].put(Event(key, Entry(key, value, "1")))

    def remove(self, key: Key) -> None:
        del self.entries[key]
        self.watches[_kind(key)].put(Event(key, None))

    def generations(self, _: object) -> tuple[int, ...]:
        return (1,)

    def find(self, key: Key) -> Entry | None:
        assert threading.current_thread() is not threading.main_thread()
        if not isinstance(key, BlockKey):
            return None
        self.may_answer.wait(SECONDS)
        if self.failure is not None:
            raise self.failure
        return self.found.get(key)

    def dispute(self) -> None:
        for name in ("n1", "n2"):
            self.put(AffinityKey(name, BLOCK), Affinity())

    def node(self, name: str, address: str | None, *ranges: str, **spec: Any) -> None:
        given = [] if address is None else [{"address": address, "type": "InternalIP"}]
        status = {"podCIDRs": list(ranges)}
        self.put(ResourceKey("Node", name), Resource("Node", {"name": name}, {"addresses": given, **spec}, status=status))

    def pool(self, **spec: Any) -> None:
        self.put(ResourceKey("IPPool", "pool"), Resource("IPPool", {"name": "pool"}, spec))


def _kind(key: Key) -> str:
    if isinstance(key, BlockKey):
        return "block"
    return key.kind if isinstance(key, ResourceKey) else "affinity"


def _kind_of(query: Query) -> str:
    if isinstance(query, AffinityQuery):
        return "affinity"
    return "block" if isinstance(query, BlockQuery) else str(query.kind)  # type: ignore[attr-defined]


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_MIN_BACKOFF", 0.01)
    monkeypatch.setattr(follower, "_MAX_BACKOFF", 0.02)
    monkeypatch.setattr(copying, "SETTINGS_SECONDS", 0.01)


@contextmanager
def copied(
    store: MemoryStore, *, complete: bool = True, changed: Callable[[], None] = lambda: None, **options: Any
) -> Iterator[Copies]:
    copies = Copies(store, DEFAULT, changed, **options)  # type: ignore[arg-type]
    copies.start()
    copies.read_blocks()
    try:
        assert not complete or eventually(lambda: copies.is_complete)
        yield copies
    finally:
        copies.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("copies-")]


def node(copies: Copies, name: str = "n1") -> NodeFacts | None:
    return copies.inputs().nodes.get(name)


def test_an_unexpected_error_of_a_watch_is_reported_and_retried() -> None:
    store = MemoryStore()
    with copied(store) as copies:
        opened = store.opened
        store.watches["Node"].put(RuntimeError("broken"))
        assert eventually(lambda: store.opened > opened)
        assert eventually(lambda: copies.interrupted_since is None)
        store.node("n1", "192.168.0.1")
        assert eventually(lambda: node(copies) is not None)


def test_a_watch_that_stays_broken_is_named() -> None:
    """Nothing is deleted: what it has missed is not known."""
    store = MemoryStore()
    with copied(store) as copies:
        store.refusal = RuntimeError("broken")
        store.watches["Node"].put(RuntimeError("broken"))
        assert eventually(lambda: any("an error of svc, RuntimeError: broken" in text for text in copies.problems()))
        assert copies.interrupted_since is not None
        store.refusal = None
        assert eventually(lambda: copies.interrupted_since is None)
        assert list(copies.problems()) == []


def test_waiting_has_its_reason() -> None:
    store = MemoryStore()
    store.refusal = StoreError("no right to watch", details="grant it")
    with copied(store, complete=False) as copies:
        assert eventually(lambda: sum("no right to watch" in text for text in copies.problems()) == 4)
        assert not copies.can_plan
        store.refusal = None
        assert eventually(lambda: copies.is_complete)
        assert list(copies.problems()) == []


def test_an_object_that_cannot_be_read_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays as it was. Without an earlier copy, nothing may be deleted."""
    store = MemoryStore()

    def failing(resource: Resource, *others: Any) -> NodeFacts:
        if resource.spec.get("broken"):
            raise RecursionError("too deep")
        return node_facts(resource, *others)

    monkeypatch.setattr(copying, "node_facts", failing)
    store.entries[ResourceKey("Node", "n0")] = Resource("Node", {"name": "n0"}, {"broken": True})
    with copied(store) as copies:
        assert copies.is_lacking
        store.node("n1", "192.168.0.1")
        assert eventually(lambda: node(copies) is not None)
        store.node("n1", "192.168.0.1", broken=True)
        assert eventually(lambda: len(copies.unreadable) == 2)
        assert node(copies) == NodeFacts("n1", {4: Address("192.168.0.1")})
        assert any("Node 'n0' is left out: too deep" in text for text in copies.problems())
        store.node("n0", "192.168.0.2")
        store.node("n1", "192.168.0.1")
        assert eventually(lambda: not copies.unreadable and not copies.is_lacking)


def test_a_deleted_node_stays_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with copied(store, own="own") as copies:
        store.node("n1", "192.168.0.1", **TUNNEL)
        store.node("own", "192.168.0.9")
        store.put(AffinityKey("n1", BLOCK), Affinity())
        assert eventually(lambda: (len(copies.inputs().nodes), len(copies.inputs().claims)) == (2, 1))
        before = node(copies)
        for name in ("n1", "own"):
            store.remove(ResourceKey("Node", name))
        assert eventually(lambda: list(copies.inputs().nodes) == ["n1"])  # the node itself knows its own addresses
        assert node(copies) == before
        assert any("does not exist any more: its routes stay for 10 more minutes" in text for text in copies.problems())
        store.remove(AffinityKey("n1", BLOCK))
        assert eventually(lambda: list(copies.problems()) == [])  # it has no routes
        store.put(AffinityKey("n1", BLOCK), Affinity())
        store.node("n1", None)
        assert eventually(lambda: any("has lost an address" in text for text in copies.problems()))
        assert node(copies) == before
        store.node("n1", "192.168.0.7")  # back, with another address, and before its tunnel is announced again
        assert eventually(lambda: (found := node(copies)) is not None and found.addresses == {4: Address("192.168.0.7")})
        assert before is not None
        assert node(copies).tunnels == before.tunnels  # type: ignore[union-attr]
        monkeypatch.setattr(last_known, "GRACE_SECONDS", 0.0)
        assert node(copies).tunnels == {}  # type: ignore[union-attr]
        assert list(copies.problems()) == []


def test_a_node_that_changes_loses_nothing() -> None:
    store = MemoryStore()
    with copied(store) as copies:
        store.node("n1", "192.168.0.1", **TUNNEL)
        store.node("n1", "192.168.0.2", ipv4VXLANTunnelAddr="10.0.0.9")
        assert eventually(lambda: (found := node(copies)) is not None and found.addresses == {4: Address("192.168.0.2")})
        assert list(copies.problems()) == []


def test_an_address_that_another_node_has_got_is_no_way_to_the_deleted_one() -> None:
    store = MemoryStore()
    with copied(store) as copies:
        store.node("n1", "192.168.0.1")
        store.remove(ResourceKey("Node", "n1"))
        store.node("n2", "192.168.0.1")
        assert eventually(lambda: node(copies, "n2") is not None)
        assert node(copies) == NodeFacts("n1")


def test_a_deleted_node_with_a_range_is_named() -> None:
    store = MemoryStore()
    with copied(store, use_pod_cidr=True) as copies:
        for name, ranges in (("n1", ["10.0.1.0/24"]), ("n2", [])):
            store.node(name, "192.168.0.1", *ranges)
            store.remove(ResourceKey("Node", name))
        store.node("n3", "192.168.0.3")
        assert eventually(lambda: node(copies, "n3") is not None)
        assert [text.split(" does ")[0] for text in copies.problems()] == ["node 'n1'"]


def test_what_another_node_has_got_is_not_of_the_deleted_one() -> None:
    """A range or the address of a tunnel with two nodes would give neither of them a way."""
    store = MemoryStore()
    with copied(store) as copies:
        store.node("n1", "192.168.0.1", "10.0.1.0/24", "fd00:1::/64", **TUNNEL)
        store.remove(ResourceKey("Node", "n1"))
        store.node("n2", "192.168.0.2", "10.0.1.0/24", **TUNNEL)
        assert eventually(lambda: node(copies, "n2") is not None)
        assert node(copies) == NodeFacts("n1", {4: Address("192.168.0.1")}, ranges=(Cidr("fd00:1::/64"),))
        found = node(copies, "n2")
        assert found is not None
        assert (found.ranges, len(found.tunnels)) == ((Cidr("10.0.1.0/24"),), 1)


def test_blocks_are_watched_while_one_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is deleted before it is corrected, and only the watch tells that it is."""
    store, key = MemoryStore(), BlockKey(BLOCK)
    store.entries[key] = object()
    monkeypatch.setattr(settings, "read_settings", lambda _: IpamConfig(strict_affinity=True))
    with copied(store) as copies:
        assert eventually(lambda: copies.is_lacking)
        time.sleep(0.1)
        assert copies.watches_blocks
        store.put(key, Block(BLOCK, "host:n1", Ordinals(6), 1))
        assert eventually(lambda: not copies.watches_blocks)
        assert not copies.is_lacking


def test_a_deleted_pool_stays_while_nodes_have_blocks_of_it() -> None:
    store = MemoryStore()
    with copied(store) as copies:
        store.pool(**POOL)
        store.put(AffinityKey("n1", BLOCK), Affinity())
        assert eventually(lambda: bool(copies.inputs().pools and copies.inputs().claims))
        before = copies.inputs().pools
        store.remove(ResourceKey("IPPool", "pool"))
        assert eventually(lambda: not copies.has_pools)
        assert copies.inputs().pools == before
        assert any("pool 'pool' does not exist any more" in text for text in copies.problems())
        store.remove(AffinityKey("n1", BLOCK))
        assert eventually(lambda: not copies.inputs().pools)
        assert list(copies.problems()) == []


def test_a_present_pool_goes_before_a_deleted_one() -> None:
    store = MemoryStore()
    with copied(store) as copies:
        store.pool(**POOL)
        store.put(AffinityKey("n1", BLOCK), Affinity())
        assert eventually(lambda: bool(copies.inputs().pools and copies.inputs().claims))
        store.remove(ResourceKey("IPPool", "pool"))
        wider = Resource("IPPool", {"name": "wider"}, {"cidr": "10.0.0.0/8"})
        store.put(ResourceKey("IPPool", "wider"), wider)
        assert eventually(lambda: [pool.name for pool in copies.inputs().pools] == ["wider"])


def test_an_unreadable_pool_keeps_its_tunnel() -> None:
    store = MemoryStore()
    with copied(store) as copies:
        store.pool(**POOL)
        assert eventually(lambda: bool(copies.inputs().pools))
        before = copies.inputs().pools
        store.pool(cidr="x")
        assert eventually(lambda: bool(copies.unreadable))
        assert (copies.inputs().pools, copies.is_lacking) == (before, False)
    with copied(store) as copies:
        assert copies.is_lacking


def test_blocks_are_read_when_they_are_asked_for() -> None:
    """They are the largest part, and the routes of blocks follow from the affinities."""
    store = MemoryStore()
    copies = Copies(store, DEFAULT, lambda: None)  # type: ignore[arg-type]
    copies.start()
    try:
        assert eventually(lambda: copies.can_plan)
        assert (copies.is_complete, list(copies.problems())) == (False, ["blocks are not read completely yet"])
        assert "block" not in store.watches
        copies.read_blocks()
        assert eventually(lambda: copies.is_complete)
    finally:
        copies.close()


def owners(copies: Copies) -> dict[Cidr, str]:
    return dict(copies.inputs().owners)


def has_two_claims(copies: Copies) -> bool:
    return len(copies.inputs().claims.get(BLOCK, ())) == 2


def test_a_read_of_an_owner_that_hangs_delays_nothing() -> None:
    """Until it ends, the node that had the block alone stays its owner."""
    store, changes = MemoryStore(), list[int]()
    store.found[BlockKey(BLOCK)] = Entry(BlockKey(BLOCK), Block(BLOCK, "host:n2", Ordinals(6), 1), "1")
    store.may_answer.clear()
    with copied(store, changed=lambda: changes.append(1)) as copies:
        store.dispute()
        assert eventually(lambda: has_two_claims(copies))
        began = time.monotonic()
        assert [owners(copies) for _ in range(100)] == [{BLOCK: "n1"}] * 100
        assert time.monotonic() - began < 1
        before = len(changes)
        store.may_answer.set()
        assert eventually(lambda: owners(copies) == {BLOCK: "n2"})
        assert len(changes) == before + 1


def test_an_owner_that_cannot_be_read_stays_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MIN_BACKOFF", "_MAX_BACKOFF"):
        monkeypatch.setattr(owning, name, 0.02)
    store = MemoryStore()
    store.failure = StoreError("broken", details="repair it")
    with copied(store) as copies:
        store.dispute()
        assert eventually(lambda: has_two_claims(copies))
        assert eventually(
            lambda: any("10.0.0.64/26, which several nodes claim, cannot be" in text for text in copies.problems())
        )
        assert owners(copies) == {BLOCK: "n1"}
        store.failure = None  # the block names no node
        assert eventually(lambda: owners(copies) == {BLOCK: ""})
        assert list(copies.problems()) == []


def test_an_owner_is_forgotten_when_the_dispute_is_over() -> None:
    """The next one begins with the node that has the block then."""
    store = MemoryStore()
    store.found[BlockKey(BLOCK)] = Entry(BlockKey(BLOCK), Block(BLOCK, "host:n1", Ordinals(6), 1), "1")
    with copied(store) as copies:
        store.dispute()
        assert eventually(lambda: has_two_claims(copies) and owners(copies) == {BLOCK: "n1"})
        store.remove(AffinityKey("n1", BLOCK))
        assert eventually(lambda: not has_two_claims(copies))
        assert owners(copies) == {}
        store.may_answer.clear()
        store.put(AffinityKey("n3", BLOCK), Affinity())
        assert eventually(lambda: has_two_claims(copies))
        assert owners(copies) == {BLOCK: "n2"}
        store.may_answer.set()
        assert eventually(lambda: owners(copies) == {BLOCK: "n1"})


def test_an_owner_that_changes_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owning, "AGAIN_SECONDS", 0.02)
    store = MemoryStore()
    with copied(store) as copies:
        store.dispute()
        assert eventually(lambda: has_two_claims(copies) and owners(copies) == {BLOCK: ""})
        store.found[BlockKey(BLOCK)] = Entry(BlockKey(BLOCK), Block(BLOCK, "host:n2", Ordinals(6), 1), "1")
        assert eventually(lambda: owners(copies) == {BLOCK: "n2"})


def test_the_order_of_a_listing_gives_no_owner() -> None:
    store = MemoryStore()
    for name in ("n1", "n2"):
        store.entries[AffinityKey(name, BLOCK)] = Affinity()
    store.may_answer.clear()
    with copied(store) as copies:
        assert has_two_claims(copies)
        assert owners(copies) == {}
        store.may_answer.set()
