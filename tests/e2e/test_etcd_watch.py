"""Watches and generations through broken connections, restarts and compactions."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.etcd import PATIENCE, Cluster, cluster
from harness.etcd_sessions import HANDLES, create, handle, session, update
from harness.ipam import settle
from harness.proxy import Proxy, proxy
from svc.datastore.api import Create, Delete, Event, StoreError, Watch
from svc.datastore.etcd.store import EtcdStore
from svc.model.keys import HandleKey, HandleQuery, ResourceKey, ResourceQuery
from svc.model.resource import Resource


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as running:
        yield running


@pytest.fixture
def way(server: Cluster) -> Iterator[Proxy]:
    with proxy(server.members[0].ports[0]) as running:
        yield running


@pytest.fixture
def writer(server: Cluster) -> Iterator[EtcdStore]:
    with session(server.endpoints) as store:
        yield store


@pytest.fixture
def store(way: Proxy) -> Iterator[EtcdStore]:
    """A session whose connection can be broken."""
    with session(f"http://{way.authority}") as opened:
        yield opened


@contextmanager
def told(watch: Watch) -> Iterator["queue.Queue[Event]"]:
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
        reader.join(PATIENCE)
        assert not reader.is_alive()


def pool(name: str) -> Resource:
    return Resource("IPPool", {"name": name}, {"cidr": "10.0.0.0/24"})


def pause_reading(way: Proxy) -> None:
    """From now on the session hears nothing, and does not get through."""
    way.discard_replies = True
    way.cut()


def go_on(way: Proxy) -> None:
    way.discard_replies = False
    way.cut()


def test_a_broken_watch_goes_on_where_it_was(store: EtcdStore, writer: EtcdStore, way: Proxy) -> None:
    """Every change is reported once, also those during the interruption."""
    with told(store.watch(HandleQuery())) as events:
        first = create(writer, "a")
        assert events.get(timeout=PATIENCE) == Event(first.key, first)
        pause_reading(way)
        second = update(writer, first, 2)
        writer.write([Delete(first.key)])
        third = create(writer, "b")
        go_on(way)
        expected = [Event(second.key, second), Event(first.key, None), Event(third.key, third)]
        assert [events.get(timeout=PATIENCE) for _ in range(3)] == expected
        last = create(writer, "last")
        assert events.get(timeout=PATIENCE) == Event(last.key, last)
        assert events.empty()


def test_a_compacted_watch_lists_again(store: EtcdStore, writer: EtcdStore, way: Proxy, server: Cluster) -> None:
    """And tells of the keys that are gone."""
    gone, kept = create(writer, "gone"), create(writer, "kept")
    with told(store.watch(HandleQuery())) as events:
        assert [events.get(timeout=PATIENCE).key for _ in range(2)] == [gone.key, kept.key]
        pause_reading(way)
        writer.write([Delete(gone.key)])
        new = create(writer, "new")
        server.compact(int(new.revision))
        go_on(way)
        expected = [Event(gone.key, None), Event(kept.key, kept), Event(new.key, new)]
        assert [events.get(timeout=PATIENCE) for _ in range(3)] == expected
        last = create(writer, "last")
        assert events.get(timeout=PATIENCE) == Event(last.key, last)


def test_a_watch_survives_a_restart(server: Cluster, writer: EtcdStore) -> None:
    """Of the server, by itself."""
    with session(server.endpoints) as store, told(store.watch(HandleQuery())) as events:
        first = create(writer, "a")
        assert events.get(timeout=PATIENCE) == Event(first.key, first)
        server.members[0].kill()
        server.restart(server.members[0])
        second = create(writer, "b")
        assert events.get(timeout=PATIENCE) == Event(second.key, second)


def test_a_watch_may_begin_without_a_server(server: Cluster, writer: EtcdStore) -> None:
    """It tells what it finds when there is one."""
    first = create(writer, "a")
    server.members[0].kill()
    with session(server.endpoints) as store, told(store.watch(HandleQuery())) as events:
        server.restart(server.members[0])
        assert events.get(timeout=PATIENCE) == Event(first.key, first)


def test_generations_never_stand_still_while_nobody_watches(store: EtcdStore, writer: EtcdStore, way: Proxy) -> None:
    """A cache filled while the connection was broken is not trusted, nor one from before; then they stand still again."""
    settle(store, "IPPool")
    before = store.generations(("IPPool",))
    pause_reading(way)
    numbers = {before}
    reached = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        numbers.add(store.generations(("IPPool",)))
        if len(numbers) > 3:
            break
        reached.wait(0.01)
    assert store.generations(("IPPool",)) != store.generations(("IPPool",))
    writer.write([Create(ResourceKey("IPPool", "p"), pool("p"))])
    go_on(way)
    settle(store, "IPPool")
    assert store.generations(("IPPool",)) not in numbers


def test_what_is_not_ours_is_left_out(server: Cluster, writer: EtcdStore, caplog: pytest.LogCaptureFixture) -> None:
    """By lists, gets and watches; what cannot be decoded leaves a line in the log."""
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
    with told(writer.watch(HandleQuery())) as events:
        assert events.get(timeout=PATIENCE) == Event(good.key, good)
        server.put(f"{HANDLES}good", "no JSON")
        assert events.get(timeout=PATIENCE) == Event(good.key, None)


def test_long_lists_are_read_in_pages(writer: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of one moment, each entry once."""
    monkeypatch.setattr("svc.datastore.etcd.store.PAGE", 7)
    written = writer.write([Create(HandleKey(f"h.{number:03}"), handle(number)) for number in range(50)])
    assert list(writer.list(HandleQuery())) == written
    assert list(writer.list(ResourceQuery("IPPool"))) == []


def test_closed_store_says_so(server: Cluster) -> None:
    """Closing twice is fine; using it afterwards is a StoreError, and its watches have ended."""
    with session(server.endpoints) as store:
        create(store, "h")
        watch = store.watch(HandleQuery())
        settle(store, "IPPool")
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
