"""Writes whose request or reply is lost. Each is applied once, or the error says that the outcome is not known."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.etcd import TIMEOUT_SECONDS, Cluster, cluster
from harness.etcd_sessions import HANDLES, ShortenTimeouts, create, handle, session, shorten_timeouts, update, value
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

__all__ = ["shorten_timeouts"]

pytestmark = pytest.mark.server

KEY = HandleKey("h")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def relay(server: Cluster) -> Iterator[Proxy]:
    with proxy(server.members[0].ports[0]) as running:
        yield running


@pytest.fixture
def rival(server: Cluster) -> Iterator[EtcdStore]:
    """Return a session of another client, whose connection does not break."""
    server.erase("/")
    with session(server.endpoints) as store:
        yield store


@pytest.fixture
def store(relay: Proxy, rival: EtcdStore) -> Iterator[EtcdStore]:
    """Return a session over the proxy that is already connected."""
    with session(f"http://{relay.authority}") as opened:
        opened.list(HandleQuery())
        yield opened


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as running:
        yield running


def revision(rival: EtcdStore, key: HandleKey = KEY) -> str:
    """Return the revision of a key, or an empty string if the key does not exist."""
    with suppress(NotFound):
        return rival.get(key).revision
    return ""


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


class ReplyLoss:
    """A write that is applied but whose reply is lost. Before the connection breaks, `then` is called."""

    def __init__(self, relay: Proxy, rival: EtcdStore, pool: ThreadPoolExecutor) -> None:
        self._relay, self._rival, self._pool = relay, rival, pool

    def __call__(self, store: EtcdStore, writes: list[Write], then: Callable[[], Any] = lambda: None) -> "Future[Any]":
        before = revision(self._rival)
        self._relay.discard_replies = True
        written = self._pool.submit(store.write, writes)
        wait_for(lambda: revision(self._rival) != before)
        then()
        self._relay.discard_replies = False
        self._relay.cut()
        return written


@pytest.fixture
def lose_reply(relay: Proxy, rival: EtcdStore, pool: ThreadPoolExecutor) -> ReplyLoss:
    return ReplyLoss(relay, rival, pool)


def test_applied_create_is_recognised(store: EtcdStore, rival: EtcdStore, lose_reply: ReplyLoss) -> None:
    """The result has the revision that the write made."""
    written = lose_reply(store, [Create(KEY, handle(1))])
    assert written.result(TIMEOUT_SECONDS) == [rival.get(KEY)]


def test_applied_update_is_recognised(store: EtcdStore, rival: EtcdStore, lose_reply: ReplyLoss) -> None:
    entry = create(store, "h")
    assert lose_reply(store, [Update(KEY, handle(2), entry.revision)]).result(TIMEOUT_SECONDS) == [rival.get(KEY)]
    assert value(rival, KEY) == handle(2)


def test_applied_update_is_recognised_after_later_updates(store: EtcdStore, rival: EtcdStore, lose_reply: ReplyLoss) -> None:
    """Another client has updated the key since. A second write would count twice."""
    entry = create(store, "h")
    written: list[Entry] = []

    def update_again() -> None:
        written.append(rival.get(KEY))
        update(rival, update(rival, written[0], 3), 4)

    assert lose_reply(store, [Update(KEY, handle(2), entry.revision)], update_again).result(TIMEOUT_SECONDS) == written
    assert value(rival, KEY) == handle(4)


def test_applied_update_is_recognised_after_a_deletion(store: EtcdStore, rival: EtcdStore, lose_reply: ReplyLoss) -> None:
    entry = create(store, "h")
    written = lose_reply(store, [Update(KEY, handle(2), entry.revision)], lambda: rival.write([Delete(KEY)]))
    assert written.result(TIMEOUT_SECONDS)[0].value == handle(2)
    assert revision(rival) == ""


def test_applied_create_is_recognised_after_later_updates(store: EtcdStore, rival: EtcdStore, lose_reply: ReplyLoss) -> None:
    written: list[Entry] = []

    def update_again() -> None:
        written.append(rival.get(KEY))
        update(rival, written[0], 3)

    assert lose_reply(store, [Create(KEY, handle(1))], update_again).result(TIMEOUT_SECONDS) == written
    assert value(rival, KEY) == handle(3)


@pytest.mark.parametrize("pinned", [True, False], ids=["at a revision", "at any"])
def test_applied_deletion_is_recognised(store: EtcdStore, rival: EtcdStore, lose_reply: ReplyLoss, pinned: bool) -> None:
    entry = create(store, "h")
    assert lose_reply(store, [Delete(KEY, entry.revision if pinned else None)]).result(TIMEOUT_SECONDS) == [None]
    assert revision(rival) == ""


@pytest.mark.parametrize("pinned", [True, False], ids=["at a revision", "at any"])
def test_applied_deletion_is_not_repeated_on_a_new_key(
    store: EtcdStore, rival: EtcdStore, lose_reply: ReplyLoss, pinned: bool
) -> None:
    """Another client has created the same key since."""
    entry = create(store, "h")
    delete = Delete(KEY, entry.revision if pinned else None)
    assert lose_reply(store, [delete], lambda: create(rival, "h", 7)).result(TIMEOUT_SECONDS) == [None]
    assert value(rival, KEY) == handle(7)


def test_applied_transaction_is_recognised(store: EtcdStore, rival: EtcdStore, lose_reply: ReplyLoss) -> None:
    """The transaction has all kinds of writes. Another client has deleted one of its keys since."""
    guard, deleted = create(store, "guard"), create(store, "gone")
    entry = create(store, "h")
    writes: list[Write] = [
        Check(guard.key, guard.revision),
        Create(HandleKey("new"), handle(5)),
        Update(KEY, handle(2), entry.revision),
        Delete(deleted.key, deleted.revision),
    ]
    result = lose_reply(store, writes, lambda: rival.write([Delete(HandleKey("new"))])).result(TIMEOUT_SECONDS)
    assert result == [None, result[1], rival.get(KEY), None]
    assert [result[1].value, result[1].revision] == [handle(5), rival.get(KEY).revision]


def test_lost_request_is_a_conflict_if_another_client_was_faster(
    store: EtcdStore, rival: EtcdStore, relay: Proxy, pool: ThreadPoolExecutor
) -> None:
    """The session must not report the write of the other client as its own."""
    entry = create(store, "h")
    relay.discard_requests = True
    written = pool.submit(store.write, [Update(KEY, handle(2), entry.revision)])
    rival_entry = update(rival, entry, 9)
    relay.discard_requests = False
    relay.cut()
    with pytest.raises(Conflict) as caught:
        written.result(TIMEOUT_SECONDS)
    assert caught.value.key == KEY
    assert rival.get(KEY) == rival_entry


def test_create_of_an_existing_equal_entry_is_a_conflict(
    store: EtcdStore, rival: EtcdStore, relay: Proxy, pool: ThreadPoolExecutor
) -> None:
    """The reply is lost, and the existing entry equals the one to be created."""
    rival_entry = create(rival, "h")
    store.list(HandleQuery())
    relay.discard_replies = True
    written = pool.submit(store.write, [Create(KEY, handle(1))])
    time.sleep(0.3)  # the request arrives, but changes nothing that the test could wait for
    relay.discard_replies = False
    relay.cut()
    with pytest.raises(Conflict):
        written.result(TIMEOUT_SECONDS)
    assert rival.get(KEY) == rival_entry


def test_lost_request_is_repeated_once(store: EtcdStore, rival: EtcdStore, relay: Proxy, pool: ThreadPoolExecutor) -> None:
    """The same call repeats it when the connection works again."""
    relay.discard_requests = True
    written = pool.submit(store.write, [Create(KEY, handle(1))])
    time.sleep(0.3)
    assert not written.done()
    relay.discard_requests = False
    relay.cut()
    assert written.result(TIMEOUT_SECONDS) == [rival.get(KEY)]


def test_error_says_that_the_history_is_compacted(
    store: EtcdStore, rival: EtcdStore, server: Cluster, lose_reply: ReplyLoss
) -> None:
    """After a compaction, the outcome of the write is not known."""
    entry = create(store, "h")

    def compact() -> None:
        last = update(rival, rival.get(KEY), 3)
        server.compact(int(last.revision))

    with pytest.raises(StoreError, match=r"not known.*compacted"):
        lose_reply(store, [Update(KEY, handle(2), entry.revision)], compact).result(TIMEOUT_SECONDS)


def test_error_says_that_the_outcome_of_a_write_is_not_known(
    store: EtcdStore, rival: EtcdStore, relay: Proxy, shorten_timeouts: ShortenTimeouts
) -> None:
    """The write fails at its deadline. In this test, the server has applied it."""
    shorten_timeouts(1.0, 0.4)
    relay.discard_replies = True
    with pytest.raises(StoreError, match="whether it was carried out is not known"):
        store.write([Create(KEY, handle(1))])
    relay.discard_replies = False
    relay.cut()
    assert store.get(KEY) == rival.get(KEY)


def test_reads_are_repeated(store: EtcdStore, rival: EtcdStore, relay: Proxy, pool: ThreadPoolExecutor) -> None:
    """The same calls return the entries when the connection works again."""
    create(rival, "h")
    relay.discard_replies = True
    reads = [pool.submit(store.get, KEY), pool.submit(lambda: next(iter(store.list(HandleQuery()))))]
    time.sleep(0.3)
    assert not any(read.done() for read in reads)
    relay.discard_replies = False
    relay.cut()
    assert [read.result(TIMEOUT_SECONDS) for read in reads] == [rival.get(KEY)] * 2


def test_every_call_to_a_silent_server_ends(shorten_timeouts: ShortenTimeouts) -> None:
    """The server accepts connections but does not answer. Every call ends at its deadline, and the error names the server."""
    shorten_timeouts(1.0, 0.4)
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
        ended.join(TIMEOUT_SECONDS)
        assert not ended.is_alive()


@pytest.mark.parametrize(("host", "by_name"), [("127.0.0.1", False), ("localhost", True)])
def test_timeout_error_mentions_name_resolution(shorten_timeouts: ShortenTimeouts, host: str, by_name: bool) -> None:
    """A silent name server can cause the timeout as well, but only if the endpoint has a host name."""
    shorten_timeouts(0.5, 0.2)
    with mute() as authority, session(f"http://{host}:{authority.rpartition(':')[2]}") as store:
        with pytest.raises(StoreError, match="no answer in time") as caught:
            store.get(KEY)
    assert ("whether its host name resolves" in caught.value.details) == by_name


def test_silent_server_is_skipped(server: Cluster, rival: EtcdStore, shorten_timeouts: ShortenTimeouts) -> None:
    """The call uses another server, in any order of the endpoints."""
    shorten_timeouts(10.0, 0.4)
    with mute() as authority:
        for number in range(6):
            with session(f"http://{authority},{server.endpoints}") as store:
                entry = create(store, f"h{number}")
                assert store.get(entry.key) == entry
    assert len(server.stored(HANDLES)) == 6


def _drain(watch: Any) -> None:
    with suppress(StoreError):
        list(watch)


def test_error_of_a_refused_connection_has_the_setting_and_the_fix() -> None:
    """The error comes at once. A host name that does not resolve has its own error."""
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


def test_error_names_the_fix_for_a_full_server(tmp_path: Path) -> None:
    """The call fails at once, and the error names the fix."""
    with cluster(tmp_path, flags=["--quota-backend-bytes=65536"]) as server, session(server.endpoints) as store:
        with pytest.raises(StoreError, match="database space exceeded") as caught:
            fill(store)
        assert "alarm disarm" in caught.value.details
