"""A crowd of threads is kept on one processor, and only for a while."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from harness.skips import ONE_PROCESSOR
from svc import herd
from svc.herd import Herd

EVERYWHERE = os.sched_getaffinity(0)
PATIENCE = 20.0  # seconds

pytestmark = pytest.mark.skipif(len(EVERYWHERE) < 2, reason=ONE_PROCESSOR)


@pytest.fixture
def cattle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Herd]:
    """A herd that stays together until the test says otherwise."""
    monkeypatch.setattr(herd, "STRETCH", 3600.0)
    cattle = Herd()
    yield cattle
    cattle.scatter()
    assert processors() == {frozenset(EVERYWHERE)}


@contextmanager
def some_threads(count: int = 5) -> Iterator[list[int]]:
    """Their numbers."""
    over, numbers = threading.Event(), []

    def run() -> None:
        numbers.append(threading.get_native_id())
        over.wait(PATIENCE)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield numbers
    finally:
        over.set()
        for thread in threads:
            thread.join()


def aside(call: Callable[[], None]) -> None:
    """On a thread of its own."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def processors() -> set[frozenset[int]]:
    """Where the threads of this process may run, each kind once."""
    return {frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}


def elsewhere() -> frozenset[int]:
    """Where a program that is executed now may run."""
    listed = subprocess.run(["grep", "^Cpus_allowed:", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    mask = int(listed.split()[1].replace(",", ""), 16)
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


def test_crowd_is_on_one_processor(cattle: Herd) -> None:
    with some_threads():
        cattle.call_begins(crowd=True)
        (together,) = processors()
        assert len(together) == 1
        assert together < EVERYWHERE


def test_one_call_alone_may_run_anywhere(cattle: Herd) -> None:
    with some_threads():
        cattle.call_begins(crowd=False)
        assert processors() == {frozenset(EVERYWHERE)}


def test_crowd_gathers_where_it_is_called(cattle: Herd) -> None:
    """Whoever calls it is running there: nobody waits for a processor that somebody else has."""
    for number in EVERYWHERE:
        found: list[set[frozenset[int]]] = []

        def call(number: int = number, found: list[set[frozenset[int]]] = found) -> None:
            os.sched_setaffinity(0, {number})
            cattle.call_begins(crowd=True)
            found.append(processors())

        aside(call)
        assert found == [{frozenset({number})}]
        cattle.scatter()


def test_it_stays_for_the_stretch(cattle: Herd) -> None:
    with some_threads():
        cattle.call_begins(crowd=True)
        before = processors()
        for crowd in (False, True):
            cattle.call_begins(crowd=crowd)
            assert processors() == before


@pytest.mark.parametrize("crowd", [False, True])
def test_it_is_let_loose_after_the_stretch(cattle: Herd, monkeypatch: pytest.MonkeyPatch, crowd: bool) -> None:
    """Before it gathers again: the system may have a better place for it by then."""
    with some_threads():
        cattle.call_begins(crowd=True)
        monkeypatch.setattr(herd, "STRETCH", 0.0)
        cattle.call_begins(crowd=crowd)
        assert processors() == {frozenset(EVERYWHERE)}
        cattle.call_begins(crowd=True)
        assert {len(some) for some in processors()} == {1}


def test_threads_that_came_meanwhile_are_let_loose_as_well(cattle: Herd) -> None:
    cattle.call_begins(crowd=True)
    with some_threads():
        assert {len(some) for some in processors()} == {1}
        cattle.scatter()
        assert processors() == {frozenset(EVERYWHERE)}


def test_straggler_does_not_say_where_the_others_may_run(cattle: Herd) -> None:
    """One that was started while the herd was let loose may still be kept: it may be the next to gather it."""

    def call() -> None:
        os.sched_setaffinity(0, {min(EVERYWHERE)})
        cattle.call_begins(crowd=True)
        cattle.scatter()

    aside(call)
    assert processors() == {frozenset(EVERYWHERE)}


def test_narrow_pasture_is_kept(cattle: Herd) -> None:
    """As whoever runs the agent has said."""
    only = {max(EVERYWHERE)}
    os.sched_setaffinity(0, only)
    try:
        cattle.call_begins(crowd=True)
        cattle.scatter()
        assert os.sched_getaffinity(0) == only
    finally:
        os.sched_setaffinity(0, EVERYWHERE)


def test_thread_that_has_ended_is_no_failure(cattle: Herd, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, gone = os.listdir("/proc/self/task"), str((1 << 22) + 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda _: [gone, *listed])
        cattle.call_begins(crowd=True)
    assert len(os.sched_getaffinity(0)) == 1


def test_what_is_executed_may_run_anywhere(cattle: Herd) -> None:
    with some_threads() as others:
        cattle.call_begins(crowd=True)
        assert len(elsewhere()) == 1
        cattle.leave()
        assert elsewhere() == EVERYWHERE
        assert {len(os.sched_getaffinity(number)) for number in others} == {1}


def test_nobody_leaves_a_herd_that_was_never_gathered(cattle: Herd) -> None:
    cattle.leave()
    assert os.sched_getaffinity(0) == EVERYWHERE
