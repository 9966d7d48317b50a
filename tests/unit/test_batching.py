"""Batches: requests that wait at the same time are processed together, in order, by the thread of one caller."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from svc import deadline
from svc.batching import Batcher, NotBegun, _Ticket
from svc.datastore.api import OutcomeUnknown

THREADS = 16
SERVER = "the server"
TIMEOUT_SECONDS = 20.0


class Doubler:
    """The work behind a Batcher: it doubles numbers, refuses negative ones, and records the batches.

    Each batch waits for one of `permits`.
    """

    def __init__(self, limit: int = 256, batcher: type[Batcher[int, int]] = Batcher) -> None:
        self.batcher: Batcher[int, int] = batcher(self._work, lambda: SERVER, limit=limit)
        self.batches: list[list[int]] = []
        self.leaders: list[int] = []
        self.failure: BaseException | None = None
        self.results: list[int] | None = None
        self.permits = threading.Semaphore(0)

    def _work(self, requests: Sequence[int]) -> Sequence[int | BaseException]:
        self.batches.append(list(requests))
        self.leaders.append(threading.get_ident())
        assert self.permits.acquire(timeout=TIMEOUT_SECONDS)
        if self.failure is not None:
            raise self.failure
        if self.results is not None:
            return self.results
        return [ValueError(f"{number} is negative") if number < 0 else 2 * number for number in requests]

    def waiting(self) -> int:
        return len(self.batcher._waiting)


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as callers:
        yield callers


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.001)


def started(doubler: Doubler, callers: ThreadPoolExecutor, numbers: Sequence[int]) -> list["Future[int]"]:
    """Submit the numbers. The first is in progress, and the others wait in this order."""
    futures = [callers.submit(doubler.batcher.run, numbers[0])]
    wait_for(lambda: len(doubler.batches) == 1)
    for count, number in enumerate(numbers[1:], 1):
        futures.append(callers.submit(doubler.batcher.run, number))
        wait_for(lambda count=count: doubler.waiting() == count)  # type: ignore[misc]
    return futures


def test_single_request_is_processed_at_once() -> None:
    """Its own thread processes it, without another caller."""
    doubler = Doubler()
    doubler.permits.release(2)
    assert (doubler.batcher.run(21), doubler.batcher.run(1)) == (42, 2)
    assert doubler.batches == [[21], [1]]
    assert set(doubler.leaders) == {threading.get_ident()}


def test_waiting_requests_are_processed_together_in_order(callers: ThreadPoolExecutor) -> None:
    doubler = Doubler()
    futures = started(doubler, callers, range(1, 10))
    doubler.permits.release(2)
    assert [future.result(TIMEOUT_SECONDS) for future in futures] == list(range(2, 20, 2))
    assert doubler.batches == [[1], list(range(2, 10))]


def test_batch_has_at_most_the_limit(callers: ThreadPoolExecutor) -> None:
    """The other requests form the next batches."""
    doubler = Doubler(limit=3)
    futures = started(doubler, callers, range(8))
    doubler.permits.release(4)
    assert [future.result(TIMEOUT_SECONDS) for future in futures] == list(range(0, 16, 2))
    assert doubler.batches == [[0], [1, 2, 3], [4, 5, 6], [7]]


def test_refusal_is_raised_only_in_its_caller(callers: ThreadPoolExecutor) -> None:
    doubler = Doubler()
    first, second, refused, last = started(doubler, callers, [1, 2, -3, 4])
    doubler.permits.release(2)
    with pytest.raises(ValueError, match="-3 is negative"):
        refused.result(TIMEOUT_SECONDS)
    assert [future.result(TIMEOUT_SECONDS) for future in (first, second, last)] == [2, 4, 8]


@pytest.mark.parametrize("failure", [RuntimeError("broken"), KeyboardInterrupt("broken")], ids=["error", "interrupt"])
def test_exception_of_the_work_is_raised_in_all_callers(callers: ThreadPoolExecutor, failure: BaseException) -> None:
    """It is not raised in the callers of the next batch."""
    doubler = Doubler()
    futures = started(doubler, callers, [1, 2, 3])
    doubler.permits.release()
    assert futures[0].result(TIMEOUT_SECONDS) == 2
    wait_for(lambda: len(doubler.batches) == 2)
    later = callers.submit(doubler.batcher.run, 4)
    wait_for(lambda: doubler.waiting() == 1)
    doubler.failure = failure
    doubler.permits.release()
    raised = [future.exception(TIMEOUT_SECONDS) for future in futures[1:]]
    assert list(map(repr, raised)) == [repr(failure)] * 2
    assert raised[0] is not raised[1]  # otherwise the threads would share its traceback
    doubler.failure = None
    doubler.permits.release()
    assert later.result(TIMEOUT_SECONDS) == 8


def test_leader_processes_only_its_own_batch(callers: ThreadPoolExecutor) -> None:
    """It returns when its batch is done. Another leader processes the later requests."""
    doubler = Doubler()
    first, second = started(doubler, callers, [1, 2])
    doubler.permits.release()
    assert first.result(TIMEOUT_SECONDS) == 2
    wait_for(lambda: len(doubler.batches) == 2)
    assert not second.done()
    third = callers.submit(doubler.batcher.run, 3)
    wait_for(lambda: doubler.waiting() == 1)
    doubler.permits.release()
    assert second.result(TIMEOUT_SECONDS) == 4
    doubler.permits.release()
    assert third.result(TIMEOUT_SECONDS) == 6
    assert doubler.batches == [[1], [2], [3]]


def test_leader_is_the_first_of_its_batch(callers: ThreadPoolExecutor) -> None:
    leaders: list[str] = []
    permits = threading.Semaphore(0)

    def work(names: Sequence[str]) -> Sequence[str]:
        leaders.append(threading.current_thread().name)
        assert permits.acquire(timeout=TIMEOUT_SECONDS)
        return list(names)

    batcher: Batcher[str, str] = Batcher(work, lambda: SERVER)
    threads = [threading.Thread(target=batcher.run, args=(name,), name=name) for name in ("a", "b", "c")]
    threads[0].start()
    wait_for(lambda: leaders == ["a"])
    for count, thread in enumerate(threads[1:], 1):
        thread.start()
        wait_for(lambda count=count: len(batcher._waiting) == count)  # type: ignore[misc]
    permits.release(2)
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert leaders == ["a", "b"]


def test_batches_do_not_run_in_parallel(callers: ThreadPoolExecutor) -> None:
    """Sixteen threads send 200 requests each, and each request gets its own result."""
    running = threading.Lock()
    batches: list[int] = []

    def work(numbers: Sequence[int]) -> Sequence[int]:
        assert running.acquire(blocking=False), "two batches run at the same time"
        batches.append(len(numbers))
        time.sleep(0)
        running.release()
        return [-number for number in numbers]

    batcher: Batcher[int, int] = Batcher(work, lambda: SERVER, limit=5)
    barrier = threading.Barrier(THREADS)

    def send(caller: int) -> bool:
        barrier.wait(TIMEOUT_SECONDS)
        return all(batcher.run(number) == -number for number in range(caller * 1000, caller * 1000 + 200))

    futures = [callers.submit(send, caller) for caller in range(THREADS)]
    assert all(future.result(TIMEOUT_SECONDS) for future in futures)
    assert sum(batches) == THREADS * 200
    assert 1 < max(batches) <= 5
    assert batcher._waiting == []


@pytest.mark.parametrize("results", [[], [1, 2, 3, 4]], ids=["too-few", "too-many"])
def test_wrong_number_of_results_fails_all_requests(callers: ThreadPoolExecutor, results: list[int]) -> None:
    """Such work has a bug, which must not leave a caller waiting."""
    doubler = Doubler()
    first, *others = started(doubler, callers, [1, 2, 3])
    doubler.permits.release()
    first.result(TIMEOUT_SECONDS)
    wait_for(lambda: len(doubler.batches) == 2)
    doubler.results = results
    doubler.permits.release()
    for future in others:
        assert isinstance(future.exception(TIMEOUT_SECONDS), ValueError)


# deadlines


def run_within(doubler: Doubler, seconds: float, number: int) -> int:
    with deadline.limit(seconds):
        return doubler.batcher.run(number)


def test_request_is_withdrawn_if_its_deadline_passes_before_its_batch(callers: ThreadPoolExecutor) -> None:
    """It is not processed, but the later requests are."""
    doubler = Doubler()
    started(doubler, callers, [1])
    late = callers.submit(run_within, doubler, 0.05, 2)
    wait_for(lambda: doubler.waiting() == 1)
    later = callers.submit(doubler.batcher.run, 3)
    failure = late.exception(TIMEOUT_SECONDS)
    assert isinstance(failure, NotBegun)
    assert failure.msg.startswith(f"{SERVER} does not answer")
    doubler.permits.release(2)
    assert later.result(TIMEOUT_SECONDS) == 6
    assert doubler.batches == [[1], [3]]


def test_outcome_is_unknown_if_the_deadline_passes_during_the_batch(callers: ThreadPoolExecutor) -> None:
    """The batch continues for the other requests."""
    doubler = Doubler()
    first, later = started(doubler, callers, [1, 2])
    late = callers.submit(run_within, doubler, 0.2, 3)
    wait_for(lambda: doubler.waiting() == 2)
    doubler.permits.release()
    first.result(TIMEOUT_SECONDS)
    failure = late.exception(TIMEOUT_SECONDS)
    assert isinstance(failure, OutcomeUnknown)
    assert failure.msg.startswith(f"{SERVER} does not answer")
    doubler.permits.release()
    assert later.result(TIMEOUT_SECONDS) == 4
    assert doubler.batches == [[1], [2, 3]]


def test_request_after_its_deadline_is_not_begun() -> None:
    doubler = Doubler()
    with pytest.raises(NotBegun):
        run_within(doubler, 0.0, 1)
    assert doubler.batches == []


def test_caller_with_the_latest_deadline_leads(callers: ThreadPoolExecutor) -> None:
    """Otherwise the deadline of one caller would end the requests of all."""
    remaining: list[float] = []
    permits = threading.Semaphore(0)

    def work(numbers: Sequence[int]) -> Sequence[int]:
        remaining.append(deadline.remaining(99.0))
        assert permits.acquire(timeout=TIMEOUT_SECONDS)
        return list(numbers)

    def send(seconds: float) -> int:
        with deadline.limit(seconds):
            return batcher.run(1)

    batcher: Batcher[int, int] = Batcher(work, lambda: SERVER)
    futures = [callers.submit(send, 50.0)]
    wait_for(lambda: len(remaining) == 1)
    for count, seconds in enumerate((10.0, 60.0, 20.0), 1):
        futures.append(callers.submit(send, seconds))
        wait_for(lambda count=count: len(batcher._waiting) == count)  # type: ignore[misc]
    permits.release(2)
    assert [future.result(TIMEOUT_SECONDS) for future in futures] == [1] * 4
    assert len(remaining) == 2
    assert remaining[1] > 50.0


class SlowToLead(Batcher[int, int]):
    """A Batcher whose first leader begins only when `arrived` is set."""

    arrived: threading.Event

    def _lead(self, leader: "_Ticket[int, int]") -> bool:
        assert self.arrived.wait(TIMEOUT_SECONDS)
        return super()._lead(leader)


def test_caller_with_more_time_replaces_a_leader_that_has_no_batch(callers: ThreadPoolExecutor) -> None:
    """Two requests with more time arrive after the first caller became the leader and before it takes its batch."""
    doubler = Doubler(batcher=SlowToLead)
    SlowToLead.arrived = threading.Event()
    doubler.permits.release(2)

    def call(seconds: float, number: int) -> tuple[int, int]:
        return threading.get_ident(), run_within(doubler, seconds, number)

    first = callers.submit(call, 10.0, 1)
    wait_for(lambda: doubler.waiting() == 1)
    others = [callers.submit(call, 60.0, 2) for _ in range(2)]
    wait_for(lambda: doubler.waiting() == 3)
    SlowToLead.arrived.set()
    by_thread = dict(future.result(TIMEOUT_SECONDS) for future in others)
    assert first.result(TIMEOUT_SECONDS)[1] == 2
    assert set(by_thread.values()) == {4}
    assert doubler.batches[0][0] == 1
    assert doubler.leaders[0] in by_thread
