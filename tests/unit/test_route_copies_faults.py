"""Copies of the datastore whose watches fail, and what stays of nodes and pools that vanish. The store is one in memory."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Entry, Event, StoreError
from svc.model.ipam import Affinity
from svc.model.keys import AffinityKey, AffinityQuery, BlockQuery, Key, Query, ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.routes import copies as copying
from svc.routes import follower, last_known
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

    def find(self, _: Key) -> None:
        return None

    def node(self, name: str, address: str | None, **spec: Any) -> None:
        given = [] if address is None else [{"address": address, "type": "InternalIP"}]
        self.put(ResourceKey("Node", name), Resource("Node", {"name": name}, {"addresses": given, **spec}))

    def pool(self, **spec: Any) -> None:
        self.put(ResourceKey("IPPool", "pool"), Resource("IPPool", {"name": "pool"}, spec))


def _kind(key: Key) -> str:
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
def copied(store: MemoryStore, *, complete: bool = True, **options: Any) -> Iterator[Copies]:
    copies = Copies(store, DEFAULT, lambda: None, **options)  # type: ignore[arg-type]
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
        assert eventually(lambda: len(copies.inputs().nodes) == 2)
        before = node(copies)
        for name in ("n1", "own"):
            store.remove(ResourceKey("Node", name))
        assert eventually(lambda: list(copies.inputs().nodes) == ["n1"])  # the node itself knows its own addresses
        assert node(copies) == before
        assert any("does not exist any more: its routes stay for 10 more minutes" in text for text in copies.problems())
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
