"""The embedded store, in addition to the contract: its file, its durability, and slow watchers."""

import gc
import os
import re
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.embedded_fixtures import path, store
from svc.datastore import change_feed
from svc.datastore.api import Conflict, Create, Delete, Entry, Event, NotFound, StoreError, Update
from svc.datastore.embedded import EmbeddedStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, HandleQuery, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import Names

__all__ = ["path", "store"]

COUNTED = "10.0.0.0/26"
CLUSTER = ResourceKey("ClusterInformation", "default")


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def write_one(store: EmbeddedStore, name: str = "h") -> Entry:
    (entry,) = store.write([Create(HandleKey(name), Handle({COUNTED: 1}))])
    assert entry is not None
    return entry


def test_new_store_is_ready(store: EmbeddedStore) -> None:
    """It has an identity from the start."""
    value = store.get(CLUSTER).value
    assert isinstance(value, Resource)
    assert re.fullmatch("[0-9a-f]{32}", value.spec["clusterGUID"])
    assert value.spec["datastoreReady"] is True
    assert list(value.metadata) == ["name", "uid", "creationTimestamp"]
    assert store.generations(("ClusterInformation",)) == (1,)


def test_files_are_private(path: Path, store: EmbeddedStore) -> None:
    """This includes the files of SQLite, with any umask."""
    write_one(store)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_content_survives_reopening(path: Path) -> None:
    """After the last session one file remains."""
    with closing(EmbeddedStore(path)) as first:
        identity, written = first.get(CLUSTER), write_one(first)
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]
    with closing(EmbeddedStore(path)) as second:
        assert second.get(CLUSTER) == identity
        assert second.get(written.key) == written


def test_names_profiles_do_not_share_entries(path: Path, store: EmbeddedStore) -> None:
    """A session with other names does not list the entries."""
    write_one(store)
    with closing(EmbeddedStore(path, Names(key_root="/other"))) as other:
        assert list(other.list(HandleQuery())) == []


def test_durable_writes_are_synced(store: EmbeddedStore) -> None:
    """The connection syncs only for this commit."""
    statements: list[str] = []
    store._writer.set_trace_callback(statements.append)
    store.write([Create(HandleKey("a"), Handle({}))], durable=True)
    assert statements[:2] == ["PRAGMA synchronous = FULL", "BEGIN IMMEDIATE"]
    assert statements[-2:] == ["COMMIT", "PRAGMA synchronous = NORMAL"]
    statements.clear()
    with pytest.raises(Conflict):
        store.write([Create(HandleKey("a"), Handle({}))], durable=True)
    assert statements[-2:] == ["ROLLBACK", "PRAGMA synchronous = NORMAL"]


def test_generation_is_exact_across_sessions(path: Path, store: EmbeddedStore) -> None:
    """It changes before the write of another session returns, and only for the kind that was written."""
    with closing(EmbeddedStore(path)) as other:
        before = store.generations(("IPPool",)), store.generations(("Node",))
        other.write([Create(ResourceKey("IPPool", "p"), Resource("IPPool", {"name": "p"}))])
        assert store.generations(("IPPool",)) != before[0]
        assert store.generations(("Node",)) == before[1]


def test_invalid_documents_are_not_listed(path: Path, store: EmbeddedStore, caplog: pytest.LogCaptureFixture) -> None:
    """The log has a line for each of them. The error of get has the fix."""
    written = write_one(store)
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("INSERT INTO entries VALUES ('/svc/ipam/v2/handle/bad', 'not JSON', 1)")
        raw.execute("INSERT INTO entries VALUES ('/svc/ipam/v2/handle/', '{}', 1)")
    assert list(store.list(HandleQuery())) == [written]
    assert "bad" in caplog.text
    with pytest.raises(StoreError, match="no valid document at HandleKey") as caught:
        store.get(HandleKey("bad"))
    assert "delete the key" in caught.value.details


def test_using_a_closed_store_is_an_error(path: Path) -> None:
    """Closing it twice is allowed."""
    store = EmbeddedStore(path)
    watch = store.watch(HandleQuery())
    store.close()
    store.close()
    attempts: list[Callable[[], object]] = [
        lambda: store.get(CLUSTER),
        lambda: store.list(HandleQuery()),
        lambda: store.generations(("Node",)),
        lambda: write_one(store),
        lambda: store.write([Delete(CLUSTER)], durable=True),
    ]
    for attempt in attempts:
        with pytest.raises(StoreError, match="closed database") as caught:
            attempt()
        assert "open it again" in caught.value.details
    assert list(watch) == []


def test_descriptors_are_closed(path: Path) -> None:
    """This holds for closed sessions, and for sessions that could not be opened."""
    EmbeddedStore(path).close()
    bad = path.with_name("bad.db")
    bad.write_bytes(b"bad" * 1000)
    before = descriptors()
    for _ in range(5):
        with closing(EmbeddedStore(path)) as store:
            write_one(store)
            store.write([Delete(HandleKey("h"))])
            next(store.watch(ResourceQuery("ClusterInformation")))
        with pytest.raises(StoreError):
            EmbeddedStore(bad)
    assert descriptors() == before


def test_slow_watcher_gets_the_state_again(store: EmbeddedStore) -> None:
    """Its queue is bounded. It then receives the current entries, and the deletions after them."""
    removed, kept = write_one(store, "gone"), write_one(store, "kept")
    with closing(store.watch(HandleQuery())) as watch:
        assert [next(watch), next(watch)] == [Event(removed.key, removed), Event(kept.key, kept)]
        store.write([Delete(removed.key)])
        for number in range(change_feed.LIMIT):
            write_one(store, f"new.{number}")
        assert len(watch._changes) <= change_feed.LIMIT
        listed = store.list(HandleQuery())
        assert [next(watch) for _ in range(change_feed.LIMIT + 2)] == [
            *(Event(entry.key, entry) for entry in listed),
            Event(removed.key, None),
        ]
        last = write_one(store, "last")
        assert next(watch) == Event(last.key, last)


def test_watch_lists_again_after_an_error(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No change is lost if listing fails."""
    watch = store.watch(HandleQuery())
    with monkeypatch.context() as broken:
        broken.setattr(store._codec, "prefix", lambda query: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(watch)
    written = write_one(store)
    assert next(watch) == Event(written.key, written)


def test_unreferenced_watches_are_removed(store: EmbeddedStore) -> None:
    """The caller need not close them."""
    watch = store.watch(HandleQuery())
    assert len(store._watches._watches) == 1
    del watch
    gc.collect()
    assert len(store._watches._watches) == 0


def test_interrupted_transaction_is_rolled_back(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any exception during the transaction."""
    entry = write_one(store)

    def interrupt(change: object, number: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(store, "_apply", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.write([Update(entry.key, Handle({}), entry.revision)])
    assert store.get(entry.key) == entry
    store.write([Delete(entry.key, entry.revision)])
    with pytest.raises(NotFound):
        store.get(entry.key)
