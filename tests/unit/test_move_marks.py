"""The marks of a move, on an embedded store: who may lock, wait, leave and unlock."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from svc.admin.ipam_check.observation import Place
from svc.admin.resources import CLUSTER, READY, set_ready
from svc.datastore.api import Create, StoreError
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import CallerError
from svc.model.resource import Resource
from svc.move import marks
from svc.move.marks import ARRIVED, ARRIVING, LEAVING, LEFT, Mark
from svc.names import DEFAULT


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Place]:
    with closing(EmbeddedStore(tmp_path / "source.db")) as store:
        yield Place(store, DEFAULT)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Place]:
    with closing(EmbeddedStore(tmp_path / "target.db")) as store:
        yield Place(store, DEFAULT)


@pytest.fixture(autouse=True)
def ready(source: Place, target: Place) -> None:
    """Initialise both. A new store may be so already."""
    for place in (source, target):
        if place.backend.find(CLUSTER) is None:
            place.backend.write([Create(CLUSTER, Resource(CLUSTER.kind, {"name": CLUSTER.name}, {}))])
        set_ready(place.backend, ready=True)


def put(place: Place, mark: Mark | None, *, is_ready: bool) -> None:
    marks.change(place, lambda info: info and marks.with_mark(DEFAULT, info, mark, {READY: is_ready}))


def mark_of(place: Place) -> Mark | None:
    return marks.mark_of(DEFAULT, marks.present(place))


def waits(source: Place, run: str = "run") -> list[float]:
    """Return the seconds of each wait. None of them takes any time."""
    found: list[float] = []

    def wait(seconds: float) -> None:
        found.append(seconds)
        time.sleep(seconds / 20)

    marks.wait_for_calls(source, run, wait)
    return found


def test_a_lock_names_the_run_and_the_target(source: Place, target: Place) -> None:
    marks.lock(source, target, "run")
    mark = mark_of(source)
    assert mark is not None
    assert replace(mark, since=0) == Mark("run", LEAVING, target.backend.place, boot=boot())
    assert 0 <= mark.since - uptime() < 5
    marks.lock(source, target, "run")
    assert mark_of(source) == mark
    info = marks.present(source)
    assert info is not None
    assert marks.is_locked(info)


@pytest.mark.parametrize("state", [LEAVING, LEFT])
def test_source_that_another_program_has_unlocked_is_locked_again(source: Place, target: Place, state: str) -> None:
    """It has kept the mark. The calls in flight are waited for once more."""
    put(source, Mark("run", state, "t", before="first", since=1), is_ready=True)
    marks.lock(source, target, "run")
    mark, info = mark_of(source), marks.present(source)
    assert mark is not None
    assert (mark.state, mark.before) == (LEAVING, "first")
    assert (mark.since > 1, mark.boot) == (True, boot())
    assert info is not None
    assert marks.is_locked(info)


def test_a_lock_of_a_filled_datastore_remembers_its_run(source: Place, target: Place) -> None:
    put(source, Mark("first", ARRIVED, "elsewhere"), is_ready=True)
    marks.lock(source, target, "second")
    mark = mark_of(source)
    assert mark is not None
    assert mark.before == "first"


def uptime() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_wait_goes_on_after_a_kill(source: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts until the calls have ended that had begun before the lock."""
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.2)
    put(source, Mark("run", LEAVING, "t", since=uptime() - 10, boot=boot()), is_ready=False)
    assert waits(source) == []
    begin = time.monotonic()
    put(source, Mark("run", LEAVING, "t", since=uptime() + 1, boot=boot()), is_ready=False)
    assert waits(source)
    assert 0.15 < time.monotonic() - begin < 5
    put(source, Mark("run", LEFT, "t", since=uptime() + 1, boot=boot()), is_ready=False)
    assert waits(source) == []


def test_another_machine_waits_for_the_whole_time(source: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock may be ahead, and its boot later."""
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.2)
    begin = time.monotonic()
    put(source, Mark("run", LEAVING, "t", since=1, boot="another"), is_ready=False)
    assert waits(source)
    assert 0.15 < time.monotonic() - begin < 5


@pytest.mark.parametrize("mark", [None, Mark("other", LEAVING, "t"), Mark("run", ARRIVED, "t")])
def test_a_lost_lock_ends_the_wait(source: Place, mark: Mark | None) -> None:
    put(source, mark, is_ready=False)
    with pytest.raises(StoreError, match="is not locked by run 'run'"):
        waits(source)


def test_only_the_own_target_is_unlocked(source: Place, target: Place) -> None:
    marks.lock(source, target, "run")
    marks.leave(source, "run")
    marks.leave(source, "run")
    with pytest.raises(StoreError, match="is not marked by run 'run'"):
        marks.arrive(source, target, "run")
    put(target, Mark("run", ARRIVING, "s"), is_ready=False)
    marks.arrive(source, target, "run")
    marks.arrive(source, target, "run")
    assert marks.has_arrived(target, "run")
    assert mark_of(target) == Mark("run", ARRIVED, source.backend.place)


def test_source_that_is_unlocked_during_the_write_is_not_left(
    source: Place, target: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is compared with each attempt of the write, not only before."""
    marks.lock(source, target, "run")
    find = source.backend.find
    reads: list[object] = []

    def unlocked_then(key: Any) -> Any:
        if not reads:
            reads.append(key)
            entry = find(key)
            set_ready(source.backend, ready=True)
            return entry
        return find(key)

    monkeypatch.setattr(source.backend, "find", unlocked_then)
    with pytest.raises(StoreError, match="is not locked by run 'run'"):
        marks.leave(source, "run")


@pytest.mark.parametrize(
    ("filled", "emptied", "expected"),
    [
        (Mark("1", ARRIVED, ""), Mark("1", LEFT, ""), True),
        (Mark("2", LEAVING, "", "1"), Mark("1", LEFT, ""), True),
        (Mark("2", ARRIVED, ""), Mark("1", LEFT, ""), False),
        (Mark("2", LEAVING, ""), Mark("1", LEFT, ""), False),
        (Mark("1", ARRIVED, ""), Mark("1", LEAVING, ""), False),
        (Mark("1", ARRIVED, ""), None, False),
        (None, Mark("1", LEFT, ""), False),
    ],
)
def test_a_predecessor_is_known_by_its_run(
    source: Place, target: Place, filled: Mark | None, emptied: Mark | None, expected: bool
) -> None:
    put(source, filled, is_ready=True)
    put(target, emptied, is_ready=False)
    assert marks.is_predecessor(marks.present(source), target) is expected
    put(target, emptied, is_ready=True)  # another program has used it since
    assert not marks.is_predecessor(marks.present(source), target)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"since": "soon"}', '{"run": "x", "state": "odd"}'])
def test_a_mark_that_cannot_be_read_is_that_of_another_run(source: Place, target: Place, text: str) -> None:
    info = marks.present(source)
    assert info is not None
    metadata = info.metadata | {"annotations": {marks.annotation(DEFAULT): text}}
    marks.change(source, lambda _: replace(info, metadata=metadata, spec=info.spec | {READY: False}))
    mark = mark_of(source)
    assert mark is not None
    assert mark.state == ""
    with pytest.raises(CallerError, match="is locked by"):
        marks.lock(source, target, "run")
    with pytest.raises(CallerError, match="a mark that cannot be read"):
        marks.permit_unlock(source, although_moved=False)


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        (Mark("1", LEAVING, "there"), "is being moved to there"),
        (Mark("1", LEFT, "there"), "has moved to there: an address would be assigned twice"),
        (Mark("1", ARRIVING, "here"), "the import from here"),
    ],
)
def test_a_datastore_that_moves_is_not_unlocked(source: Place, mark: Mark, expected: str) -> None:
    put(source, mark, is_ready=False)
    for refusing in (partial(marks.permit_unlock, although_moved=False), marks.permit_export):
        with pytest.raises(CallerError, match=expected):
            refusing(source)
    marks.permit_unlock(source, although_moved=True)
    assert mark_of(source) is None


@pytest.mark.parametrize("mark", [None, Mark("1", ARRIVED, "there")])
def test_any_other_datastore_is_unlocked(source: Place, mark: Mark | None) -> None:
    put(source, mark, is_ready=False)
    marks.permit_unlock(source, although_moved=False)
    marks.permit_export(source)
    assert mark_of(source) == mark


@pytest.mark.parametrize("mark", [None, Mark("1", ARRIVED, "there")])
def test_lock_after_a_move_is_not_that_of_its_run(source: Place, target: Place, mark: Mark | None) -> None:
    put(source, mark, is_ready=False)
    with pytest.raises(CallerError, match="is locked by another program or a person"):
        marks.lock(source, target, "2")
