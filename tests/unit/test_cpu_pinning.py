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

ALL_CPUS = frozenset(os.sched_getaffinity(0))
TIMEOUT_SECONDS = 20.0

pytestmark = pytest.mark.skipif(len(ALL_CPUS) < 2, reason=ONE_PROCESSOR)


@pytest.fixture
def pinning(monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuPinning]:
    """Return a CpuPinning whose threads stay pinned until they are unpinned."""
    monkeypatch.setattr(cpu_pinning, "PIN_SECONDS", 3600.0)
    pinning = CpuPinning()
    yield pinning
    pinning.unpin()
    assert os.sched_getaffinity(0) == ALL_CPUS


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """Return the ids of running threads."""
    with some_threads() as numbers:
        yield numbers


@contextmanager
def some_threads() -> Iterator[list[int]]:
    ended = threading.Event()
    started = [threading.Thread(target=ended.wait, args=(TIMEOUT_SECONDS,)) for _ in range(5)]
    for thread in started:
        thread.start()
    try:
        yield [thread.native_id for thread in started if thread.native_id]
    finally:
        ended.set()
        for thread in started:
            thread.join()


def run_in_thread(call: Callable[[], None]) -> None:
    """Run a function in a new thread."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def affinities(threads: list[int]) -> set[frozenset[int]]:
    """Return the different affinities of these threads."""
    return {frozenset(os.sched_getaffinity(thread)) for thread in threads}


def are_pinned(threads: list[int]) -> bool:
    """Return whether all of them are pinned to the same CPU."""
    found = affinities(threads)
    return len(found) == 1 and len(found.pop()) == 1


def are_unpinned(threads: list[int]) -> bool:
    return affinities(threads) == {ALL_CPUS}


def test_concurrent_calls_are_pinned_to_one_cpu(pinning: CpuPinning, threads: list[int]) -> None:
    pinning.call_begins(concurrent=True)
    assert are_pinned(threads)


def test_single_call_is_not_pinned(pinning: CpuPinning, threads: list[int]) -> None:
    pinning.call_begins(concurrent=False)
    assert are_unpinned(threads)


def test_threads_are_pinned_to_the_cpu_of_the_caller(pinning: CpuPinning, threads: list[int]) -> None:
    """The caller runs there, so no thread waits for a CPU that another process occupies."""

    def call(number: int) -> None:
        os.sched_setaffinity(0, {number})
        pinning.call_begins(concurrent=True)

    for number in ALL_CPUS:
        run_in_thread(lambda number=number: call(number))  # type: ignore[misc]
        assert affinities(threads) == {frozenset({number})}
        pinning.unpin()


def test_threads_stay_pinned_for_the_period(pinning: CpuPinning, threads: list[int]) -> None:
    pinning.call_begins(concurrent=True)
    before = affinities(threads)
    for concurrent in (False, True):
        pinning.call_begins(concurrent=concurrent)
        assert affinities(threads) == before


@pytest.mark.parametrize("concurrent", [False, True])
def test_threads_are_unpinned_after_the_period(
    pinning: CpuPinning, threads: list[int], monkeypatch: pytest.MonkeyPatch, concurrent: bool
) -> None:
    """The next call pins them again, to the CPU that the scheduler has chosen."""
    pinning.call_begins(concurrent=True)
    monkeypatch.setattr(cpu_pinning, "PIN_SECONDS", 0.0)
    pinning.call_begins(concurrent=concurrent)
    assert are_unpinned(threads)
    pinning.call_begins(concurrent=True)
    assert are_pinned(threads)


def test_thread_that_started_while_pinned_is_unpinned_too(pinning: CpuPinning) -> None:
    found: list[list[int]] = []

    def start() -> None:
        """A pinned thread starts pinned threads."""
        pinning.call_begins(concurrent=True)
        with some_threads() as threads:
            found.append(threads)
            assert are_pinned(threads)
            pinning.unpin()
            assert are_unpinned(threads)

    run_in_thread(start)
    assert found


def test_unpinned_threads_get_the_affinity_of_the_main_thread(pinning: CpuPinning, threads: list[int]) -> None:
    only = {max(ALL_CPUS)}
    pinning.call_begins(concurrent=True)
    os.sched_setaffinity(0, only)  # changes the main thread, like a change of the whole process
    try:
        pinning.unpin()
        assert affinities(threads) == {frozenset(only)}
        pinning.call_begins(concurrent=True)
        assert affinities(threads) == {frozenset(only)}
    finally:
        os.sched_setaffinity(0, ALL_CPUS)


def test_ended_thread_is_skipped(pinning: CpuPinning, threads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    listed, ended_thread = os.listdir("/proc/self/task"), str((1 << 22) + 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda _: [ended_thread, *listed])
        pinning.call_begins(concurrent=True)
    assert are_pinned(threads)


def refused(*_: object) -> NoReturn:
    raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize("function", ["os.listdir", "builtins.open"])
def test_lack_of_descriptors_is_tolerated(
    pinning: CpuPinning, threads: list[int], monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(function, refused)
        pinning.call_begins(concurrent=True)
    assert are_unpinned(threads)
    pinning.call_begins(concurrent=True)
    assert are_pinned(threads)


def test_lack_of_descriptors_only_delays_unpinning(
    pinning: CpuPinning, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinning.call_begins(concurrent=True)
    monkeypatch.setattr(cpu_pinning, "PIN_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refused)
        pinning.call_begins(concurrent=True)
        pinning.unpin()
    pinning.call_begins(concurrent=True)
    assert are_unpinned(threads)


def test_executed_programs_are_not_pinned(pinning: CpuPinning, threads: list[int]) -> None:
    masks: list[frozenset[int]] = []

    def execute() -> None:
        pinning.call_begins(concurrent=True)
        masks.append(mask_of_a_program())
        pinning.unpin_thread()
        masks.append(mask_of_a_program())

    run_in_thread(execute)
    assert len(masks[0]) == 1
    assert masks[1] == ALL_CPUS
    assert are_pinned(threads)


def mask_of_a_program() -> frozenset[int]:
    """Execute a program, and return its affinity."""
    output = subprocess.run(["grep", "^Cpus_allowed:", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    mask = int(output.split()[1].replace(",", ""), 16)
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


def test_unpinning_a_thread_that_is_not_pinned_does_nothing(pinning: CpuPinning) -> None:
    def unpin() -> None:
        os.sched_setaffinity(0, {min(ALL_CPUS)})
        pinning.unpin_thread()
        assert os.sched_getaffinity(0) == {min(ALL_CPUS)}
        done.append(True)

    done: list[bool] = []
    run_in_thread(unpin)
    assert done
