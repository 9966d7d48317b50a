"""Admission queue: keys, lanes, limits and parked jobs."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from svc.agent.lanes import Lane
from svc.agent.queue import AdmissionQueue, Job

TIMEOUT_SECONDS = 20.0
WORKERS = 16


def job(lane: str = "ADD", key: str = "") -> Job:
    return Job(Lane(lane), key, lambda _: None)


def put_all(queue: AdmissionQueue, *jobs: Job) -> None:
    for each in jobs:
        queue.put(each)


def take(queue: AdmissionQueue, number: int) -> list[Job]:
    """Take this number of jobs, and return them; none of them is done yet."""
    jobs = [queue.take() for _ in range(number)]
    assert None not in jobs
    return [job for job in jobs if job is not None]


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WORKERS) as workers:
        yield workers


# rule 1: the jobs of a key run one at a time


def test_jobs_of_one_key_run_one_after_another() -> None:
    """They run in the order of their arrival, in any lane."""
    queue = AdmissionQueue()
    first, second, third = job("ADD", "c1"), job("DEL", "c1"), job("ADD", "c1")
    put_all(queue, first, second, third)
    for expected in (first, second, third):
        assert queue.take() is expected
        queue.done(expected)


def test_job_that_waits_for_its_key_uses_no_worker() -> None:
    """A later job with another key runs before it."""
    queue = AdmissionQueue()
    running, behind, other = job(key="c1"), job(key="c1"), job(key="c2")
    put_all(queue, running, behind, other)
    assert take(queue, 2) == [running, other]
    queue.done(running)
    assert queue.take() is behind


def test_jobs_without_a_key_run_in_parallel() -> None:
    queue = AdmissionQueue()
    jobs = [job() for _ in range(5)]
    put_all(queue, *jobs)
    assert take(queue, 5) == jobs


def test_key_is_removed_with_its_last_job() -> None:
    """A later job of the key does not have to wait."""
    queue = AdmissionQueue()
    first = job(key="c1")
    queue.put(first)
    queue.done(take(queue, 1)[0])
    second = job(key="c1")
    queue.put(second)
    assert queue.take() is second
    queue.done(second)
    assert len(queue) == 0


# rule 2: lanes take turns


def test_lanes_take_turns() -> None:
    """A burst of one verb does not delay a single call of another verb."""
    queue = AdmissionQueue()
    adds, delete, status = [job("ADD") for _ in range(4)], job("DEL"), job("other")
    put_all(queue, *adds, delete, status)
    assert take(queue, 6) == [adds[0], delete, status, *adds[1:]]


def test_two_bursts_are_served_alternately() -> None:
    """Each lane is first in, first out."""
    queue = AdmissionQueue()
    adds, deletes = [job("ADD") for _ in range(5)], [job("DEL") for _ in range(5)]
    put_all(queue, *adds, *deletes)
    assert take(queue, 10) == [each for pair in zip(adds, deletes, strict=True) for each in pair]


def test_emptied_lane_returns_at_the_end_of_the_turns() -> None:
    queue = AdmissionQueue()
    add, delete, later = job("ADD"), job("DEL"), job("ADD")
    put_all(queue, add, delete)
    assert queue.take() is add
    queue.put(later)
    assert take(queue, 2) == [delete, later]


# rule 4: the queue is unbounded


def test_queue_is_unbounded() -> None:
    queue = AdmissionQueue()
    put_all(queue, *(job(key=str(number % 100)) for number in range(50_000)))
    assert len(queue) == 50_000
    put_all(queue, job("DEL"))
    assert len(queue) == 50_001


def test_length_counts_waiting_jobs() -> None:
    """It includes jobs that wait for their key, and excludes running jobs."""
    queue = AdmissionQueue()
    put_all(queue, job(key="c1"), job(key="c1"), job(key="c2"))
    assert len(queue) == 3
    (running, _) = take(queue, 2)
    assert len(queue) == 1
    queue.done(running)
    assert len(queue) == 1


# rule 3: a lane has a limit of parallel jobs


def test_full_lane_does_not_delay_other_lanes() -> None:
    queue = AdmissionQueue()
    adds, delete = [job("ADD-local", f"c{n}") for n in range(9)], job("DEL", "c9")
    put_all(queue, *adds, delete)
    assert take(queue, 9) == [adds[0], delete, *adds[1:8]]
    assert not queue.has_more()
    assert queue.take() is None
    queue.done(adds[1])
    assert queue.has_more()
    assert queue.take() is adds[8]


# taking jobs


def test_empty_queue_has_no_job() -> None:
    assert AdmissionQueue().take() is None


def test_job_that_waits_for_its_key_cannot_be_taken() -> None:
    """It can be taken when the job before it is done."""
    queue = AdmissionQueue()
    first, behind = job(key="c1"), job(key="c1")
    put_all(queue, first, behind)
    assert queue.take() is first
    assert queue.take() is None
    queue.done(first)
    assert queue.take() is behind
    queue.done(behind)
    assert queue.take() is None


def test_waiting_time_counts_from_the_arrival() -> None:
    """It is in milliseconds."""
    old = Job(Lane("ADD"), "", lambda _: None, arrived=time.perf_counter() - 1.5)
    assert 1500 <= old.waited() < 60_000


def test_parallel_workers_follow_the_rules(workers: ThreadPoolExecutor) -> None:
    """The jobs of a key run in order, one at a time, and each job runs once."""
    queue = AdmissionQueue()
    lock = threading.Lock()
    running: set[str] = set()
    done: dict[str, list[int]] = defaultdict(list)
    violations: list[str] = []

    def make(key: str, number: int) -> Job:
        def run(_: Job) -> None:
            with lock:
                if key in running:
                    violations.append(f"two jobs of {key} at once")
                running.add(key)
            time.sleep(0)
            with lock:
                done[key].append(number)
                running.discard(key)

        return Job(Lane(("ADD", "DEL", "other")[number % 3]), key, run)

    def work() -> None:
        while (each := queue.take()) is not None:
            each.run(each)
            queue.done(each)

    for number in range(100):
        for key in "abcdefghij":
            queue.put(make(key, number))
    ends = [workers.submit(work) for _ in range(WORKERS)]
    for end in ends:
        end.result(TIMEOUT_SECONDS)
    assert violations == []
    assert done == {key: list(range(100)) for key in "abcdefghij"}


# rule 5: parked jobs


def test_parked_job_frees_its_lane_but_not_its_key() -> None:
    queue = AdmissionQueue()
    others = [job("ADD-local", f"b{n}") for n in range(7)]
    put_all(queue, *others)
    take(queue, 7)
    waiting, other, behind = job("ADD-local", "c1"), job("ADD-local", "c2"), job("CHECK", "c1")
    put_all(queue, waiting, other, behind)
    assert take(queue, 1) == [waiting]
    assert queue.take() is None
    queue.park(waiting, lambda: None)
    assert take(queue, 1) == [other]
    queue.resume(waiting)
    assert queue.take() is None, "a job was taken from a full lane"
    queue.done(other)
    assert take(queue, 1) == [waiting]
    queue.done(waiting)
    assert take(queue, 1) == [behind]


@pytest.mark.parametrize(("lane", "cancels"), [("DEL", True), ("ADD", False), ("debt", False)])
@pytest.mark.parametrize("early", [True, False])
def test_only_del_cancels_a_parked_job(lane: str, cancels: bool, early: bool) -> None:
    """The DEL may arrive before the job is parked, or afterwards."""
    queue, cancelled = AdmissionQueue(), list[int]()
    waiting, behind = job("ADD", "c1"), job(lane, "c1")
    queue.put(waiting)
    take(queue, 1)
    if early:
        queue.put(behind)
    queue.park(waiting, lambda: cancelled.append(1))
    if not early:
        queue.put(behind)
    assert cancelled == [1] * cancels
    assert queue.take() is None


def test_del_of_another_key_cancels_no_job() -> None:
    queue, cancelled = AdmissionQueue(), list[int]()
    queue.put(waiting := job("ADD", "c1"))
    take(queue, 1)
    queue.park(waiting, lambda: cancelled.append(1))
    put_all(queue, job("DEL", "c2"), job("DEL"))
    assert cancelled == []


def test_del_does_not_cancel_a_resumed_job() -> None:
    queue, cancelled = AdmissionQueue(), list[int]()
    queue.put(waiting := job("ADD", "c1"))
    take(queue, 1)
    queue.park(waiting, lambda: cancelled.append(1))
    queue.resume(waiting)
    queue.put(job("DEL", "c1"))
    assert cancelled == []
