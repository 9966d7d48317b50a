"""Watches and generations, by which caches detect changes, in every datastore."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from contract.samples import TIMEOUT_SECONDS, create, handle, pool, without_server_fields
from svc.datastore.api import (
    Backend,
    Delete,
    Event,
    StoreError,
    Update,
    Watch,
)
from svc.model.keys import (
    HandleKey,
    HandleQuery,
    ResourceKey,
    ResourceQuery,
)
from svc.model.resource import Resource

OpenStore = Callable[[], Backend]


@contextmanager
def events(watch: Watch) -> Iterator["queue.Queue[Event | None]"]:
    """Yield the events of a watch, which another thread reads, and None when the iteration ends."""
    told: queue.Queue[Event | None] = queue.Queue()

    def read() -> None:
        for event in watch:
            told.put(event)
        told.put(None)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield told
    finally:
        watch.close()
        reader.join(TIMEOUT_SECONDS)
        assert not reader.is_alive(), "close() did not end the watch"


def next_event(told: "queue.Queue[Event | None]") -> Event:
    event = told.get(timeout=TIMEOUT_SECONDS)
    assert event is not None, "the watch ended"
    return event


def eventually(condition: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true in time, because the events of a remote store may be late."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.01)
    return True


def test_generation_changes_with_its_kind(backend: Backend) -> None:
    """A create, an update and a delete of a resource each change it."""
    seen = [backend.generations(("IPPool",))]

    def changed() -> bool:
        return backend.generations(("IPPool",)) != seen[-1]

    entry = create(backend, ResourceKey("IPPool", "a"), pool("a"))
    assert eventually(changed)
    seen.append(backend.generations(("IPPool",)))
    backend.write([Update(entry.key, pool("a", "10.1.0.0/24"), entry.revision)])
    assert eventually(changed)
    seen.append(backend.generations(("IPPool",)))
    backend.write([Delete(entry.key)])
    assert eventually(changed)


def test_generation_stays_while_nothing_changes(backend: Backend) -> None:
    """Reads, and writes of other keys than resources, leave a cache valid."""
    create(backend, ResourceKey("IPPool", "a"), pool("a"))
    assert eventually(lambda: backend.generations(("IPPool",)) == backend.generations(("IPPool",)))
    before = backend.generations(("IPPool",))
    create(backend, HandleKey("h"), handle(1))
    backend.list(ResourceQuery("IPPool"))
    assert backend.generations(("IPPool",)) == before


def test_writes_of_other_sessions_change_the_generation(open_store: OpenStore) -> None:
    mine, theirs = open_store(), open_store()
    before = mine.generations(("Node",))
    create(theirs, ResourceKey("Node", "n"), Resource("Node", {"name": "n"}))
    assert eventually(lambda: mine.generations(("Node",)) != before)


def test_watch_returns_existing_entries_then_changes(backend: Backend) -> None:
    """Changes have the order of the writes. The event of a deletion has no entry."""
    present = [create(backend, ResourceKey("IPPool", name), pool(name)) for name in ("a", "b")]
    with events(backend.watch(ResourceQuery("IPPool"))) as told:
        assert [next_event(told), next_event(told)] == [Event(entry.key, entry) for entry in present]
        created = create(backend, ResourceKey("IPPool", "c"), pool("c"))
        assert next_event(told) == Event(created.key, created)
        (updated,) = backend.write([Update(created.key, pool("c", "10.1.0.0/24"), created.revision)])
        assert next_event(told) == Event(created.key, updated)
        backend.write([Delete(created.key)])
        assert next_event(told) == Event(created.key, None)


def test_watch_tells_when_it_has_listed_everything(backend: Backend) -> None:
    """The reader has all present entries then, also if there are none."""
    create(backend, ResourceKey("IPPool", "a"), pool("a"))
    for kind, expected in (("IPPool", 1), ("IPReservation", 0)):
        got: list[Event] = []
        listed: queue.Queue[int] = queue.Queue()
        watch = backend.watch(ResourceQuery(kind), lambda got=got, listed=listed: listed.put(len(got)))  # type: ignore[misc]
        reader = threading.Thread(target=_read_into, args=(watch, got))
        reader.start()
        try:
            assert listed.get(timeout=TIMEOUT_SECONDS) == expected
        finally:
            watch.close()
            reader.join(TIMEOUT_SECONDS)


def _read_into(watch: Watch, got: list[Event]) -> None:
    for event in watch:
        got.append(event)  # noqa: PERF402 one by one, as a reader gets them


def test_watch_returns_only_matching_changes(backend: Backend) -> None:
    """It skips other kinds, other prefixes and failed writes."""
    with events(backend.watch(ResourceQuery("IPPool", prefix="a"))) as told:
        create(backend, ResourceKey("IPPool", "b"), pool("b"))
        create(backend, ResourceKey("Node", "a"), Resource("Node", {"name": "a"}))
        with pytest.raises(StoreError):
            backend.write([Delete(ResourceKey("IPPool", "a"))])
        wanted = create(backend, ResourceKey("IPPool", "a"), pool("a"))
        assert next_event(told) == Event(wanted.key, wanted)


def test_watch_misses_no_change_during_its_start(backend: Backend) -> None:
    """A writer runs before, during and after the start. The last event has the final value, and revisions never decrease."""
    key = ResourceKey("IPPool", "a")
    entry = create(backend, key, pool("a", "0"))
    started = threading.Event()

    def write() -> None:
        revision = entry.revision
        for number in range(1, 200):
            (written,) = backend.write([Update(key, pool("a", str(number)), revision)])
            assert written is not None
            revision = written.revision
            if number == 20:
                started.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert started.wait(TIMEOUT_SECONDS)
    with events(backend.watch(ResourceQuery("IPPool"))) as told:
        numbers = [0]
        while numbers[-1] != 199:
            seen = next_event(told).entry
            assert seen is not None
            assert isinstance(seen.value, Resource)
            numbers.append(int(seen.value.spec["cidr"]))
    writer.join()
    assert numbers == sorted(set(numbers))


def test_watchers_do_not_share_values(backend: Backend) -> None:
    """If one reader changes its entry, the others do not see the change."""
    with closing(backend.watch(ResourceQuery("IPPool"))) as first, closing(backend.watch(ResourceQuery("IPPool"))) as second:
        create(backend, ResourceKey("IPPool", "a"), pool("a"))
        seen = next(first).entry
        assert seen is not None
        assert isinstance(seen.value, Resource)
        seen.value.spec.clear()
        again = next(second).entry
        assert again is not None
        assert without_server_fields(again.value) == without_server_fields(pool("a"))


def test_close_ends_a_waiting_watch(backend: Backend) -> None:
    """Another thread may call it, and it can be called twice."""
    watch = backend.watch(ResourceQuery("IPPool"))
    with events(watch) as told:
        entry = create(backend, ResourceKey("IPPool", "a"), pool("a"))
        assert next_event(told) == Event(entry.key, entry)
        watch.close()
        assert told.get(timeout=TIMEOUT_SECONDS) is None
    watch.close()
    assert list(watch) == []


def test_closing_the_store_ends_its_watches(open_store: OpenStore) -> None:
    """A waiting reader gets the end of the iteration."""
    backend = open_store()
    with events(backend.watch(HandleQuery())) as told:
        entry = create(backend, HandleKey("h"), handle(1))
        assert next_event(told) == Event(entry.key, entry)
        backend.close()
        assert told.get(timeout=TIMEOUT_SECONDS) is None
    backend.close()
