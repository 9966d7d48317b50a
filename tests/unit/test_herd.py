"""A crowd of threads is kept on one processor, and only for a while."""

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from harness.skips import ONE_PROCESSOR
from svc import herd
from svc.herd import Herd

EVERYWHERE = frozenset(os.sched_getaffinity(0))
PATIENCE = 20.0  # seconds

pytestmark = pytest.mark.skipif(len(EVERYWHERE) < 2, reason=ONE_PROCESSOR)


@pytest.fixture
def cattle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Herd]:
    """A herd that stays together until the test says otherwise."""
    monkeypatch.setattr(herd, "STRETCH", 3600.0)
    cattle = Herd()
    yield cattle
    cattle.scatter()
    assert os.sched_getaffinity(0) == EVERYWHERE


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """The numbers of some threads that are there."""
    with some_threads() as numbers:
        yield numbers


@contextmanager
def some_threads() -> Iterator[list[int]]:
    over = threading.Event()
    started = [threading.Thread(target=over.wait, args=(PATIENCE,)) for _ in range(5)]
    for thread in started:
        thread.start()
    try:
        yield [thread.native_id for thread in started if thread.native_id]
    finally:
        over.set()
        for thread in started:
            thread.join()


def aside(call: Callable[[], None]) -> None:
    """On a thread of its own."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def processors(threads: list[int]) -> set[frozenset[int]]:
    """Where these may run, each kind once."""
    return {frozenset(os.sched_getaffinity(thread)) for thread in threads}


def kept(threads: list[int]) -> bool:
    """Whether all of them are on the same one."""
    found = processors(threads)
    return len(found) == 1 and len(found.pop()) == 1


def free(threads: list[int]) -> bool:
    return processors(threads) == {EVERYWHERE}


def test_crowd_is_on_one_processor(cattle: Herd, threads: list[int]) -> None:
    cattle.call_begins(crowd=True)
    assert kept(threads)


def test_one_call_alone_may_run_anywhere(cattle: Herd, threads: list[int]) -> None:
    cattle.call_begins(crowd=False)
    assert free(threads)


def test_crowd_gathers_where_it_is_called(cattle: Herd, threads: list[int]) -> None:
    """Whoever calls it is running there: nobody waits for a processor that somebody else has."""

    def call(number: int) -> None:
        os.sched_setaffinity(0, {number})
        cattle.call_begins(crowd=True)

    for number in EVERYWHERE:
        aside(lambda number=number: call(number))  # type: ignore[misc]
        assert processors(threads) == {frozenset({number})}
        cattle.scatter()


def test_it_stays_for_the_stretch(cattle: Herd, threads: list[int]) -> None:
    cattle.call_begins(crowd=True)
    before = processors(threads)
    for crowd in (False, True):
        cattle.call_begins(crowd=crowd)
        assert processors(threads) == before


@pytest.mark.parametrize("crowd", [False, True])
def test_it_is_let_loose_after_the_stretch(
    cattle: Herd, threads: list[int], monkeypatch: pytest.MonkeyPatch, crowd: bool
) -> None:
    """Before it gathers again: the system may have a better place for it by then."""
    cattle.call_begins(crowd=True)
    monkeypatch.setattr(herd, "STRETCH", 0.0)
    cattle.call_begins(crowd=crowd)
    assert free(threads)
    cattle.call_begins(crowd=True)
    assert kept(threads)


def test_thread_that_came_meanwhile_is_let_loose_as_well(cattle: Herd) -> None:
    found: list[list[int]] = []

    def start() -> None:
        """Who is kept himself starts such as are kept."""
        cattle.call_begins(crowd=True)
        with some_threads() as threads:
            found.append(threads)
            assert kept(threads)
            cattle.scatter()
            assert free(threads)

    aside(start)
    assert found


def test_where_all_may_run_is_what_the_administrator_says_meanwhile(cattle: Herd, threads: list[int]) -> None:
    only = {max(EVERYWHERE)}
    cattle.call_begins(crowd=True)
    os.sched_setaffinity(0, only)  # the main thread's, as a change for the whole process does
    try:
        cattle.scatter()
        assert processors(threads) == {frozenset(only)}
        cattle.call_begins(crowd=True)
        assert processors(threads) == {frozenset(only)}
    finally:
        os.sched_setaffinity(0, EVERYWHERE)


def test_thread_that_has_ended_is_no_failure(cattle: Herd, threads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    listed, gone = os.listdir("/proc/self/task"), str((1 << 22) + 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda _: [gone, *listed])
        cattle.call_begins(crowd=True)
    assert kept(threads)


def refused(*_: object) -> NoReturn:
    raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize("want", ["os.listdir", "builtins.open"])
def test_want_of_descriptors_passes(cattle: Herd, threads: list[int], monkeypatch: pytest.MonkeyPatch, want: str) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(want, refused)
        cattle.call_begins(crowd=True)
    assert free(threads)
    cattle.call_begins(crowd=True)
    assert kept(threads)


def test_want_of_descriptors_keeps_nobody_together_for_ever(
    cattle: Herd, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cattle.call_begins(crowd=True)
    monkeypatch.setattr(herd, "STRETCH", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refused)
        cattle.call_begins(crowd=True)
        cattle.scatter()
    cattle.call_begins(crowd=True)
    assert free(threads)


def test_what_is_executed_may_run_anywhere(cattle: Herd, threads: list[int]) -> None:
    seen: list[frozenset[int]] = []

    def execute() -> None:
        cattle.call_begins(crowd=True)
        seen.append(mask_of_a_program())
        cattle.leave()
        seen.append(mask_of_a_program())

    aside(execute)
    assert len(seen[0]) == 1
    assert seen[1] == EVERYWHERE
    assert kept(threads)


def mask_of_a_program() -> frozenset[int]:
    """Where one that is executed now may run."""
    said = subprocess.run(["grep", "^Cpus_allowed:", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    mask = int(said.split()[1].replace(",", ""), 16)
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


def test_nobody_leaves_a_herd_that_was_never_gathered(cattle: Herd) -> None:
    def leave() -> None:
        os.sched_setaffinity(0, {min(EVERYWHERE)})
        cattle.leave()
        assert os.sched_getaffinity(0) == {min(EVERYWHERE)}
        done.append(True)

    done: list[bool] = []
    aside(leave)
    assert done
