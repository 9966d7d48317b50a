"""Watches and generations during broken connections, restarts and compactions."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.etcd import TIMEOUT_SECONDS, Cluster, cluster
from harness.etcd_sessions import HANDLES, create, handle, session, update
from harness.ipam import put_block, put_node, put_pool, take, wait_for_stable_generations
from harness.proxy import Proxy, proxy
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Create, Delete, Event, StoreError, Watch
from svc.datastore.etcd import store as etcd_store
from svc.datastore.etcd.store import EtcdStore
from svc.ipam.service import IpamService
from svc.model.keys import BlockQuery, HandleKey, HandleQuery, Query, ResourceKey, ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as running:
        yield running


@pytest.fixture
def relay(server: Cluster) -> Iterator[Proxy]:
    with proxy(server.members[0].ports[0]) as running:
        yield running


@pytest.fixture
def writer(server: Cluster) -> Iterator[EtcdStore]:
    with session(server.endpoints) as store:
        yield store


@pytest.fixture
def store(relay: Proxy) -> Iterator[EtcdStore]:
    """Return a session whose connection the test can break."""
    with session(f"http://{relay.authority}") as opened:
        yield opened


@contextmanager
def events_of(watch: Watch) -> Iterator["queue.Queue[Event]"]:
    """Read a watch in a thread, and return the queue of its events."""
    events: queue.Queue[Event] = queue.Queue()

    def read() -> None:
        for event in watch:
            events.put(event)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield events
    finally:
        watch.close()
        reader.join(TIMEOUT_SECONDS)
        assert not reader.is_alive()


def pool(name: str) -> Resource:
    return Resource("IPPool", {"name": name}, {"cidr": "10.0.0.0/24"})


def disconnect(relay: Proxy) -> None:
    """Break the connection, and discard all replies until `reconnect`."""
    relay.discard_replies = True
    relay.cut()


def reconnect(relay: Proxy) -> None:
    relay.discard_replies = False
    relay.cut()


def test_watch_continues_after_its_connection_broke(store: EtcdStore, writer: EtcdStore, relay: Proxy) -> None:
    """The watch reports every change once, also those of the interruption."""
    with events_of(store.watch(HandleQuery())) as events:
        first = create(writer, "a")
        assert events.get(timeout=TIMEOUT_SECONDS) == Event(first.key, first)
        disconnect(relay)
        second = update(writer, first, 2)
        writer.write([Delete(first.key)])
        third = create(writer, "b")
        reconnect(relay)
        expected = [Event(second.key, second), Event(first.key, None), Event(third.key, third)]
        assert [events.get(timeout=TIMEOUT_SECONDS) for _ in range(3)] == expected
        last = create(writer, "last")
        assert events.get(timeout=TIMEOUT_SECONDS) == Event(last.key, last)
        assert events.empty()


def test_watch_lists_all_keys_after_a_compaction(store: EtcdStore, writer: EtcdStore, relay: Proxy, server: Cluster) -> None:
    """The watch reports deleted keys as well."""
    deleted, kept = create(writer, "gone"), create(writer, "kept")
    with events_of(store.watch(HandleQuery())) as events:
        assert [events.get(timeout=TIMEOUT_SECONDS).key for _ in range(2)] == [deleted.key, kept.key]
        disconnect(relay)
        writer.write([Delete(deleted.key)])
        new = create(writer, "new")
        server.compact(int(new.revision))
        reconnect(relay)
        expected = [Event(kept.key, kept), Event(new.key, new), Event(deleted.key, None)]
        assert [events.get(timeout=TIMEOUT_SECONDS) for _ in range(3)] == expected
        last = create(writer, "last")
        assert events.get(timeout=TIMEOUT_SECONDS) == Event(last.key, last)


def test_compacted_pages_restart_the_search_for_a_block(
    writer: EtcdStore, server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ADD claims the only free block, of the third page."""
    monkeypatch.setattr(etcd_store, "BLOCK_PAGE", 1)
    put_node(writer)
    put_pool(writer, "pool4", "10.65.0.0/28", blockSize=30)
    for cidr in ("10.65.0.0/30", "10.65.0.4/30", "10.65.0.12/30"):
        put_block(writer, cidr, "host:node2", ["net.far"])
    decode, compactions = writer._gather, list[str]()

    def compact_once(query: Query, *page: Any) -> None:
        if isinstance(query, BlockQuery) and not compactions:
            compactions.append(create(writer, "new").revision)
            server.compact(int(compactions[0]))
        decode(query, *page)

    monkeypatch.setattr(writer, "_gather", compact_once)
    (address,) = take(IpamService(writer, "node1"), "net.c1")
    assert (Address(address) in Cidr("10.65.0.8/30"), len(compactions)) == (True, 1)


def test_watch_continues_after_a_restart_of_the_server(server: Cluster, writer: EtcdStore) -> None:
    """The reader of the watch has to do nothing for this."""
    with session(server.endpoints) as store, events_of(store.watch(HandleQuery())) as events:
        first = create(writer, "a")
        assert events.get(timeout=TIMEOUT_SECONDS) == Event(first.key, first)
        server.members[0].kill()
        server.restart(server.members[0])
        second = create(writer, "b")
        assert events.get(timeout=TIMEOUT_SECONDS) == Event(second.key, second)


def test_watch_can_begin_without_a_server(server: Cluster, writer: EtcdStore) -> None:
    """When the server starts, the watch reports the existing keys."""
    first = create(writer, "a")
    server.members[0].kill()
    with session(server.endpoints) as store, events_of(store.watch(HandleQuery())) as events:
        server.restart(server.members[0])
        assert events.get(timeout=TIMEOUT_SECONDS) == Event(first.key, first)


def test_generations_change_on_every_call_without_a_watch(store: EtcdStore, writer: EtcdStore, relay: Proxy) -> None:
    """Caches from before or during the interruption become invalid. Afterwards, the generations are stable again."""
    wait_for_stable_generations(store, "IPPool")
    before = store.generations(("IPPool",))
    disconnect(relay)
    numbers = {before}
    reached = threading.Event()
    for _ in range(int(TIMEOUT_SECONDS / 0.01)):
        numbers.add(store.generations(("IPPool",)))
        if len(numbers) > 3:
            break
        reached.wait(0.01)
    assert store.generations(("IPPool",)) != store.generations(("IPPool",))
    writer.write([Create(ResourceKey("IPPool", "p"), pool("p"))])
    reconnect(relay)
    wait_for_stable_generations(store, "IPPool")
    assert store.generations(("IPPool",)) not in numbers


def test_undecodable_and_unknown_keys_are_left_out(
    server: Cluster, writer: EtcdStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Lists and watches omit them. The store logs keys that it cannot decode."""
    good = create(writer, "good")
    for key, text in (
        (f"{HANDLES}bad", "no JSON"),
        (HANDLES, "{}"),
        ("/svc/ipam/v2/host/node1", ""),
        ("/svc/ipam/v2/hand", "{}"),
    ):
        server.put(key, text)
    assert list(writer.list(HandleQuery())) == [good]
    assert "bad" in caplog.text
    with events_of(writer.watch(HandleQuery())) as events:
        assert events.get(timeout=TIMEOUT_SECONDS) == Event(good.key, good)
        server.put(f"{HANDLES}good", "no JSON")
        assert events.get(timeout=TIMEOUT_SECONDS) == Event(good.key, None)


def test_long_lists_are_read_in_pages(writer: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has every entry once."""
    monkeypatch.setattr("svc.datastore.etcd.store.PAGE", 7)
    written = writer.write([Create(HandleKey(f"h.{number:03}"), handle(number)) for number in range(50)])
    assert list(writer.list(HandleQuery())) == written
    assert list(writer.list(ResourceQuery("IPPool"))) == []


def test_pages_show_one_moment(server: Cluster, writer: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written after the first page is not in the others. Each page names the documents that cannot be decoded."""
    monkeypatch.setattr("svc.datastore.etcd.store.SMALL_PAGE", 7)
    written = writer.write([Create(HandleKey(f"h.{number:03}"), handle(number)) for number in range(20)])
    server.put(f"{HANDLES}h.bad", "no JSON")
    pages = writer.pages(HandleQuery())
    first = next(pages)
    create(writer, "h.999")
    found = [first, *pages]
    assert [entry for page in found for entry in page] == written
    assert [len(page) + len(page.skipped) for page in found] == [7, 7, 7]
    assert [path.rpartition("/")[2] for path in found[-1].skipped] == ["h.bad"]


def test_calls_of_a_closed_store_fail(server: Cluster) -> None:
    """They raise StoreError, and the watches of the store have ended. A second close has no effect."""
    with session(server.endpoints) as store:
        create(store, "h")
        watch = store.watch(HandleQuery())
        wait_for_stable_generations(store, "IPPool")
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.get(HandleKey("h")),
            lambda: store.list(HandleQuery()),
            lambda: create(store, "i"),
        ]
        for call in calls:
            with pytest.raises(StoreError, match="was closed") as caught:
                call()
            assert "open it again" in caught.value.details
        assert list(watch) == []
        assert store.generations(("IPPool",)) != store.generations(("IPPool",))
