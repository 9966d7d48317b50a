"""Writes whose answers get lost on the way back, or that never arrive: each is made once, or the error says what is known."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.etcd import PATIENCE, Cluster, cluster
from harness.etcd_sessions import HANDLES, Hurry, create, handle, hurry, session, update, value
from harness.proxy import Proxy, mute, proxy
from svc.datastore.api import (
    Backend,
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    NotFound,
    StoreError,
    Update,
    Write,
)
from svc.datastore.etcd.store import EtcdStore
from svc.model.keys import HandleKey, HandleQuery

__all__ = ["hurry"]

KEY = HandleKey("h")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def way(server: Cluster) -> Iterator[Proxy]:
    with proxy(server.members[0].ports[0]) as running:
        yield running


@pytest.fixture
def rival(server: Cluster) -> Iterator[EtcdStore]:
    """Another client, with a connection that works."""
    server.ctl("del", "--prefix", "/")
    with session(server.endpoints) as store:
        yield store


@pytest.fixture
def store(way: Proxy, rival: EtcdStore) -> Iterator[EtcdStore]:
    """A session over the proxy, warm."""
    with session(f"http://{way.authority}") as opened:
        opened.list(HandleQuery())
        yield opened


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as running:
        yield running


def revision(rival: EtcdStore, key: HandleKey = KEY) -> str:
    """Empty for a key that is not there."""
    with suppress(NotFound):
        return rival.get(key).revision
    return ""


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


class Lost:
    """A write that is carried out while its answer is held back; then things happen, and the connection breaks."""

    def __init__(self, way: Proxy, rival: EtcdStore, pool: ThreadPoolExecutor) -> None:
        self._way, self._rival, self._pool = way, rival, pool

    def __call__(self, store: EtcdStore, writes: list[Write], meanwhile: Callable[[], Any] = lambda: None) -> "Future[Any]":
        before = revision(self._rival)
        self._way.discard_replies = True
        written = self._pool.submit(store.write, writes)
        wait_for(lambda: revision(self._rival) != before)
        meanwhile()
        self._way.discard_replies = False
        self._way.cut()
        return written


@pytest.fixture
def lost(way: Proxy, rival: EtcdStore, pool: ThreadPoolExecutor) -> Lost:
    return Lost(way, rival, pool)


def test_a_create_is_recognised(store: EtcdStore, rival: EtcdStore, lost: Lost) -> None:
    """With the revision that it made."""
    written = lost(store, [Create(KEY, handle(1))])
    assert written.result(PATIENCE) == [rival.get(KEY)]


def test_an_update_is_recognised(store: EtcdStore, rival: EtcdStore, lost: Lost) -> None:
    entry = create(store, "h")
    assert lost(store, [Update(KEY, handle(2), entry.revision)]).result(PATIENCE) == [rival.get(KEY)]
    assert value(rival, KEY) == handle(2)


def test_an_update_is_recognised_under_later_ones(store: EtcdStore, rival: EtcdStore, lost: Lost) -> None:
    """Another client has built on it: it was applied all the same, and applying it again would count twice."""
    entry = create(store, "h")
    ours: list[Entry] = []

    def go_on() -> None:
        ours.append(rival.get(KEY))
        update(rival, update(rival, ours[0], 3), 4)

    assert lost(store, [Update(KEY, handle(2), entry.revision)], go_on).result(PATIENCE) == ours
    assert value(rival, KEY) == handle(4)


def test_an_update_is_recognised_after_a_deletion(store: EtcdStore, rival: EtcdStore, lost: Lost) -> None:
    entry = create(store, "h")
    written = lost(store, [Update(KEY, handle(2), entry.revision)], lambda: rival.write([Delete(KEY)]))
    assert written.result(PATIENCE)[0].value == handle(2)
    assert revision(rival) == ""


def test_a_create_is_recognised_under_later_updates(store: EtcdStore, rival: EtcdStore, lost: Lost) -> None:
    ours: list[Entry] = []

    def go_on() -> None:
        ours.append(rival.get(KEY))
        update(rival, ours[0], 3)

    assert lost(store, [Create(KEY, handle(1))], go_on).result(PATIENCE) == ours
    assert value(rival, KEY) == handle(3)


@pytest.mark.parametrize("pinned", [True, False], ids=["at a revision", "at any"])
def test_a_deletion_is_recognised(store: EtcdStore, rival: EtcdStore, lost: Lost, pinned: bool) -> None:
    entry = create(store, "h")
    assert lost(store, [Delete(KEY, entry.revision if pinned else None)]).result(PATIENCE) == [None]
    assert revision(rival) == ""


@pytest.mark.parametrize("pinned", [True, False], ids=["at a revision", "at any"])
def test_a_deletion_spares_what_is_new(store: EtcdStore, rival: EtcdStore, lost: Lost, pinned: bool) -> None:
    """It was applied; the same key that another client has created since is not touched."""
    entry = create(store, "h")
    delete = Delete(KEY, entry.revision if pinned else None)
    assert lost(store, [delete], lambda: create(rival, "h", 7)).result(PATIENCE) == [None]
    assert value(rival, KEY) == handle(7)


def test_a_group_is_recognised(store: EtcdStore, rival: EtcdStore, lost: Lost) -> None:
    """All kinds of writes, while another client has changed one of the keys since."""
    guard, gone = create(store, "guard"), create(store, "gone")
    entry = create(store, "h")
    writes: list[Write] = [
        Check(guard.key, guard.revision),
        Create(HandleKey("new"), handle(5)),
        Update(KEY, handle(2), entry.revision),
        Delete(gone.key, gone.revision),
    ]
    result = lost(store, writes, lambda: rival.write([Delete(HandleKey("new"))])).result(PATIENCE)
    assert result == [None, result[1], rival.get(KEY), None]
    assert [result[1].value, result[1].revision] == [handle(5), rival.get(KEY).revision]


def test_nothing_is_said_to_be_done_that_somebody_else_did(
    store: EtcdStore, rival: EtcdStore, way: Proxy, pool: ThreadPoolExecutor
) -> None:
    """The request never arrived, and the rival was faster."""
    entry = create(store, "h")
    way.discard_requests = True
    written = pool.submit(store.write, [Update(KEY, handle(2), entry.revision)])
    theirs = update(rival, entry, 9)
    way.discard_requests = False
    way.cut()
    with pytest.raises(Conflict) as caught:
        written.result(PATIENCE)
    assert caught.value.key == KEY
    assert rival.get(KEY) == theirs


def test_what_was_there_before_is_a_conflict(store: EtcdStore, rival: EtcdStore, way: Proxy, pool: ThreadPoolExecutor) -> None:
    """Although it looks exactly like what was to be written."""
    theirs = create(rival, "h")
    store.list(HandleQuery())
    way.discard_replies = True
    written = pool.submit(store.write, [Create(KEY, handle(1))])
    time.sleep(0.3)  # nothing shows that it has arrived
    way.discard_replies = False
    way.cut()
    with pytest.raises(Conflict):
        written.result(PATIENCE)
    assert rival.get(KEY) == theirs


def test_what_never_arrived_is_done_once(store: EtcdStore, rival: EtcdStore, way: Proxy, pool: ThreadPoolExecutor) -> None:
    """When the connection is there again, within the same call."""
    way.discard_requests = True
    written = pool.submit(store.write, [Create(KEY, handle(1))])
    time.sleep(0.3)
    assert not written.done()
    way.discard_requests = False
    way.cut()
    assert written.result(PATIENCE) == [rival.get(KEY)]


def test_a_compacted_history_is_admitted(store: EtcdStore, rival: EtcdStore, server: Cluster, lost: Lost) -> None:
    """It cannot be known any more, and the error says so."""
    entry = create(store, "h")

    def cover_up() -> None:
        last = update(rival, rival.get(KEY), 3)
        server.compact(int(last.revision))

    with pytest.raises(StoreError, match=r"not known.*compacted"):
        lost(store, [Update(KEY, handle(2), entry.revision)], cover_up).result(PATIENCE)


def test_a_write_that_stays_unanswered_says_so(store: EtcdStore, rival: EtcdStore, way: Proxy, hurry: Hurry) -> None:
    """Within its time; it may have been carried out, and here it was."""
    hurry(1.0, 0.4)
    way.discard_replies = True
    with pytest.raises(StoreError, match="whether it was carried out is not known"):
        store.write([Create(KEY, handle(1))])
    way.discard_replies = False
    way.cut()
    assert store.get(KEY) == rival.get(KEY)


def test_reads_are_repeated(store: EtcdStore, rival: EtcdStore, way: Proxy, pool: ThreadPoolExecutor) -> None:
    """They go through when the connection is there again."""
    create(rival, "h")
    way.discard_replies = True
    reads = [pool.submit(store.get, KEY), pool.submit(lambda: next(iter(store.list(HandleQuery()))))]
    time.sleep(0.3)
    assert not any(read.done() for read in reads)
    way.discard_replies = False
    way.cut()
    assert [read.result(PATIENCE) for read in reads] == [rival.get(KEY)] * 2


def test_a_mute_server_is_given_up(hurry: Hurry) -> None:
    """It takes connections and never answers: every call ends, in time, with one error that names it."""
    hurry(1.0, 0.4)
    with mute() as authority, session(f"http://{authority}") as store:
        calls: list[Callable[[], object]] = [
            lambda: store.get(KEY),
            lambda: store.list(HandleQuery()),
            lambda: create(store, "h"),
        ]
        for call in calls:
            with pytest.raises(StoreError, match=f"etcd at {authority} .*etcd_endpoints.* does not answer") as caught:
                call()
            assert caught.value.details
        assert store.generations(("IPPool",)) != store.generations(("IPPool",)) != store.generations(("IPPool",))
        watch = store.watch(HandleQuery())
        ended = threading.Thread(target=_drain, args=(watch,))
        ended.start()
        watch.close()
        ended.join(PATIENCE)
        assert not ended.is_alive()


@pytest.mark.parametrize(("host", "by_name"), [("127.0.0.1", False), ("localhost", True)])
def test_a_name_may_be_why_nobody_answers(hurry: Hurry, host: str, by_name: bool) -> None:
    """A name server that says nothing costs all of the time: then the name is as suspicious as the server."""
    hurry(0.5, 0.2)
    with mute() as authority, session(f"http://{host}:{authority.rpartition(':')[2]}") as store:
        with pytest.raises(StoreError, match="no answer in time") as caught:
            store.get(KEY)
    assert ("whether its host name resolves" in caught.value.details) == by_name


def test_a_mute_server_is_passed_over(server: Cluster, rival: EtcdStore, hurry: Hurry) -> None:
    """If there is another one, in any order of the servers."""
    hurry(10.0, 0.4)
    with mute() as authority:
        for number in range(6):
            with session(f"http://{authority},{server.endpoints}") as store:
                entry = create(store, f"h{number}")
                assert store.get(entry.key) == entry
    assert len(server.stored(HANDLES)) == 6


def _drain(watch: Any) -> None:
    with suppress(StoreError):
        list(watch)


def test_nobody_listens() -> None:
    """The error comes at once, with the setting and the fix."""
    backend: Backend
    with session("http://127.0.0.1:1") as backend:
        calls: list[Callable[[], object]] = [lambda: backend.get(KEY), lambda: create(backend, "h")]
        for call in calls:
            with pytest.raises(StoreError, match=r"127\.0\.0\.1:1 .*Connection refused") as caught:
                call()
            assert "start etcd" in caught.value.details
    with session("http://no-such-host.invalid:2379") as backend:
        with pytest.raises(StoreError, match=r"no-such-host\.invalid") as caught:
            backend.get(KEY)
        assert "correct the host name" in caught.value.details


def fill(store: Backend) -> None:
    for number in range(10_000):
        create(store, f"{number:0512}")


def test_a_full_server_is_told(tmp_path: Path) -> None:
    """With what to do about it, and at once."""
    with cluster(tmp_path, flags=["--quota-backend-bytes=65536"]) as server, session(server.endpoints) as store:
        with pytest.raises(StoreError, match="database space exceeded") as caught:
            fill(store)
        assert "alarm disarm" in caught.value.details
