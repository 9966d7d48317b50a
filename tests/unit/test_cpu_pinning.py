"""Worker threads share one CPU while calls run concurrently, for a limited time."""

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from harness.skips import ONE_PROCESSOR
from svc import cpu_pinning
from svc.cpu_pinning import CpuPinning

EVERYWHERE = frozenset(os.sched_getaffinity(0))
PATIENCE = 20.0  # seconds

pytestmark = pytest.mark.skipif(len(EVERYWHERE) < 2, reason=ONE_PROCESSOR)


@pytest.fixture
def pinning(monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuPinning]:
    """Threads that stay pinned until the test ends it."""
    monkeypatch.setattr(cpu_pinning, "PIN_SECONDS", 3600.0)
    pinning = CpuPinning()
    yield pinning
    pinning.unpin()
    assert os.sched_getaffinity(0) == EVERYWHERE


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """Return the ids of running threads."""
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
    """Run it on a thread of its own."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def processors(threads: list[int]) -> set[frozenset[int]]:
    """Return the different affinities of these threads."""
    return {frozenset(os.sched_getaffinity(thread)) for thread in threads}


def kept(threads: list[int]) -> bool:
    """Return whether all of them are pinned to the same CPU."""
    found = processors(threads)
    return len(found) == 1 and len(found.pop()) == 1


def free(threads: list[int]) -> bool:
    return processors(threads) == {EVERYWHERE}


def test_concurrent_calls_are_pinned_to_one_cpu(pinning: CpuPinning, threads: list[int]) -> None:
    pinning.call_begins(concurrent=True)
    assert kept(threads)


def test_a_single_call_is_not_pinned(pinning: CpuPinning, threads: list[int]) -> None:
    pinning.call_begins(concurrent=False)
    assert free(threads)


def test_threads_are_pinned_to_the_cpu_of_the_caller(pinning: CpuPinning, threads: list[int]) -> None:
    """The caller runs there, so no thread waits for a CPU that another process occupies."""

    def call(number: int) -> None:
        os.sched_setaffinity(0, {number})
        pinning.call_begins(concurrent=True)

    for number in EVERYWHERE:
        aside(lambda number=number: call(number))  # type: ignore[misc]
        assert processors(threads) == {frozenset({number})}
        pinning.unpin()


def test_threads_stay_pinned_for_the_period(pinning: CpuPinning, threads: list[int]) -> None:
    pinning.call_begins(concurrent=True)
    before = processors(threads)
    for concurrent in (False, True):
        pinning.call_begins(concurrent=concurrent)
        assert processors(threads) == before


@pytest.mark.parametrize("concurrent", [False, True])
def test_threads_are_unpinned_after_the_period(
    pinning: CpuPinning, threads: list[int], monkeypatch: pytest.MonkeyPatch, concurrent: bool
) -> None:
    """They are pinned again later, to the CPU that the scheduler has chosen by then."""
    pinning.call_begins(concurrent=True)
    monkeypatch.setattr(cpu_pinning, "PIN_SECONDS", 0.0)
    pinning.call_begins(concurrent=concurrent)
    assert free(threads)
    pinning.call_begins(concurrent=True)
    assert kept(threads)


def test_a_thread_that_started_while_pinned_is_unpinned_too(pinning: CpuPinning) -> None:
    found: list[list[int]] = []

    def start() -> None:
        """A pinned thread starts pinned threads."""
        pinning.call_begins(concurrent=True)
        with some_threads() as threads:
            found.append(threads)
            assert kept(threads)
            pinning.unpin()
            assert free(threads)

    aside(start)
    assert found


def test_unpinned_threads_get_the_affinity_of_the_main_thread(pinning: CpuPinning, threads: list[int]) -> None:
    only = {max(EVERYWHERE)}
    pinning.call_begins(concurrent=True)
    os.sched_setaffinity(0, only)  # the main thread's, as a change for the whole process does
    try:
        pinning.unpin()
        assert processors(threads) == {frozenset(only)}
        pinning.call_begins(concurrent=True)
        assert processors(threads) == {frozenset(only)}
    finally:
        os.sched_setaffinity(0, EVERYWHERE)


def test_an_ended_thread_is_skipped(pinning: CpuPinning, threads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    listed, gone = os.listdir("/proc/self/task"), str((1 << 22) + 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda _: [gone, *listed])
        pinning.call_begins(concurrent=True)
    assert kept(threads)


def refused(*_: object) -> NoReturn:
    raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize("want", ["os.listdir", "builtins.open"])
def test_a_lack_of_descriptors_is_tolerated(
    pinning: CpuPinning, threads: list[int], monkeypatch: pytest.MonkeyPatch, want: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(want, refused)
        pinning.call_begins(concurrent=True)
    assert free(threads)
    pinning.call_begins(concurrent=True)
    assert kept(threads)


def test_a_lack_of_descriptors_only_delays_unpinning(
    pinning: CpuPinning, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinning.call_begins(concurrent=True)
    monkeypatch.setattr(cpu_pinning, "PIN_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refused)
        pinning.call_begins(concurrent=True)
        pinning.unpin()
    pinning.call_begins(concurrent=True)
    assert free(threads)


def test_executed_programs_are_not_pinned(pinning: CpuPinning, threads: list[int]) -> None:
    seen: list[frozenset[int]] = []

    def execute() -> None:
        pinning.call_begins(concurrent=True)
        seen.append(mask_of_a_program())
        pinning.unpin_thread()
        seen.append(mask_of_a_program())

    aside(execute)
    assert len(seen[0]) == 1
    assert seen[1] == EVERYWHERE
    assert kept(threads)


def mask_of_a_program() -> frozenset[int]:
    """Return the affinity of a program that is executed now."""
    said = subprocess.run(["grep", "^Cpus_allowed:", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    mask = int(said.split()[1].replace(",", ""), 16)
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


def test_unpinning_a_thread_that_is_not_pinned_does_nothing(pinning: CpuPinning) -> None:
    def leave() -> None:
        os.sched_setaffinity(0, {min(EVERYWHERE)})
        pinning.unpin_thread()
        assert os.sched_getaffinity(0) == {min(EVERYWHERE)}
        done.append(True)

    done: list[bool] = []
    aside(leave)
    assert done
