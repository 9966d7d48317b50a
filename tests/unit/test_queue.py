"""The admission queue: its three rules, and how it ends."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from svc.agent.lanes import Lane
from svc.agent.queue import AdmissionQueue, Job

TIMEOUT_SECONDS = 20.0  # seconds
WORKERS = 16


def job(lane: str = "ADD", key: str = "") -> Job:
    return Job(Lane(lane), key, lambda _: None)


def put_all(queue: AdmissionQueue, *jobs: Job) -> None:
    for each in jobs:
        queue.put(each)


def taken(queue: AdmissionQueue, number: int) -> list[Job]:
    """So many jobs, none of which is done."""
    jobs = [queue.take() for _ in range(number)]
    assert None not in jobs
    return [job for job in jobs if job is not None]


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WORKERS) as workers:
        yield workers


# rule 1: one key, one job at a time


def test_jobs_of_one_key_run_one_after_another() -> None:
    """In the order of their arrival, for all lanes."""
    queue = AdmissionQueue()
    first, second, third = job("ADD", "c1"), job("DEL", "c1"), job("ADD", "c1")
    put_all(queue, first, second, third)
    for expected in (first, second, third):
        assert queue.take() is expected
        queue.done(expected)


def test_job_behind_another_of_its_key_occupies_no_worker() -> None:
    """A later job is served in between."""
    queue = AdmissionQueue()
    running, behind, other = job(key="c1"), job(key="c1"), job(key="c2")
    put_all(queue, running, behind, other)
    assert taken(queue, 2) == [running, other]
    queue.done(running)
    assert queue.take() is behind


def test_jobs_without_a_key_exclude_nobody() -> None:
    queue = AdmissionQueue()
    jobs = [job() for _ in range(5)]
    put_all(queue, *jobs)
    assert taken(queue, 5) == jobs


def test_key_is_forgotten_with_its_last_job() -> None:
    """A later job of the key is the first of its key again."""
    queue = AdmissionQueue()
    first = job(key="c1")
    queue.put(first)
    queue.done(taken(queue, 1)[0])
    second = job(key="c1")
    queue.put(second)
    assert queue.take() is second
    queue.done(second)
    assert len(queue) == 0


# rule 2: lanes take turns


def test_lanes_take_turns() -> None:
    """A burst of one verb lets a single call of another pass."""
    queue = AdmissionQueue()
    adds, delete, status = [job("ADD") for _ in range(4)], job("DEL"), job("other")
    put_all(queue, *adds, delete, status)
    assert taken(queue, 6) == [adds[0], delete, status, *adds[1:]]


def test_two_bursts_are_served_alternately() -> None:
    """Within each the first come is served first."""
    queue = AdmissionQueue()
    adds, deletes = [job("ADD") for _ in range(5)], [job("DEL") for _ in range(5)]
    put_all(queue, *adds, *deletes)
    assert taken(queue, 10) == [each for pair in zip(adds, deletes, strict=True) for each in pair]


def test_emptied_lane_comes_back_at_the_end_of_the_turns() -> None:
    queue = AdmissionQueue()
    add, delete, later = job("ADD"), job("DEL"), job("ADD")
    put_all(queue, add, delete)
    assert queue.take() is add
    queue.put(later)
    assert taken(queue, 2) == [delete, later]


# rule 3: nothing is refused


def test_nothing_is_refused_for_want_of_room() -> None:
    queue = AdmissionQueue()
    put_all(queue, *(job(key=str(number % 100)) for number in range(50_000)))
    assert len(queue) == 50_000
    put_all(queue, job("DEL"))
    assert len(queue) == 50_001


def test_length_counts_what_waits() -> None:
    """Those behind their key too, those at work not."""
    queue = AdmissionQueue()
    put_all(queue, job(key="c1"), job(key="c1"), job(key="c2"))
    assert len(queue) == 3
    (running, _) = taken(queue, 2)
    assert len(queue) == 1
    queue.done(running)
    assert len(queue) == 1


# rule 3: so many of a lane at once


def test_full_lane_waits_and_others_pass() -> None:
    queue = AdmissionQueue()
    adds, delete = [job("ADD-local", f"c{n}") for n in range(9)], job("DEL", "c9")
    put_all(queue, *adds, delete)
    assert taken(queue, 9) == [adds[0], delete, *adds[1:8]]
    assert not queue.has_more()
    assert queue.take() is None
    queue.done(adds[1])
    assert queue.has_more()
    assert queue.take() is adds[8]


# taking


def test_nothing_is_taken_from_an_empty_queue() -> None:
    assert AdmissionQueue().take() is None


def test_job_behind_one_at_work_cannot_be_taken() -> None:
    """The worker that finishes the one in front takes it."""
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
    """In milliseconds."""
    old = Job(Lane("ADD"), "", lambda _: None, arrived=time.perf_counter() - 1.5)
    assert 1500 <= old.waited() < 60_000


def test_many_workers_keep_the_rules(workers: ThreadPoolExecutor) -> None:
    """Of every key one job at a time and in order, and each job once."""
    queue = AdmissionQueue()
    lock = threading.Lock()
    at_work: set[str] = set()
    done: dict[str, list[int]] = defaultdict(list)
    mistakes: list[str] = []

    def make(key: str, number: int) -> Job:
        def run(_: Job) -> None:
            with lock:
                if key in at_work:
                    mistakes.append(f"two jobs of {key} at once")
                at_work.add(key)
            time.sleep(0)
            with lock:
                done[key].append(number)
                at_work.discard(key)

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
    assert mistakes == []
    assert done == {key: list(range(100)) for key in "abcdefghij"}


# rule 5: pauses


def test_parked_job_leaves_its_place_in_the_lane_but_not_its_key() -> None:
    queue = AdmissionQueue()
    others = [job("ADD-local", f"b{n}") for n in range(7)]
    put_all(queue, *others)
    taken(queue, 7)
    waiting, other, behind = job("ADD-local", "c1"), job("ADD-local", "c2"), job("CHECK", "c1")
    put_all(queue, waiting, other, behind)
    assert taken(queue, 1) == [waiting]
    assert queue.take() is None
    queue.park(waiting, lambda: None)
    assert taken(queue, 1) == [other]
    queue.resume(waiting)
    assert queue.take() is None, "the lane is full again"
    queue.done(other)
    assert taken(queue, 1) == [waiting]
    queue.done(waiting)
    assert taken(queue, 1) == [behind]


@pytest.mark.parametrize(("lane", "hurries"), [("DEL", True), ("ADD", False), ("debt", False)])
@pytest.mark.parametrize("early", [True, False])
def test_only_a_delete_hurries_what_is_parked(lane: str, hurries: bool, early: bool) -> None:
    """Whether it came before the pause or comes in it."""
    queue, hurried = AdmissionQueue(), list[int]()
    waiting, behind = job("ADD", "c1"), job(lane, "c1")
    queue.put(waiting)
    taken(queue, 1)
    if early:
        queue.put(behind)
    queue.park(waiting, lambda: hurried.append(1))
    if not early:
        queue.put(behind)
    assert hurried == [1] * hurries
    assert queue.take() is None


def test_delete_of_another_key_hurries_nobody() -> None:
    queue, hurried = AdmissionQueue(), list[int]()
    queue.put(waiting := job("ADD", "c1"))
    taken(queue, 1)
    queue.park(waiting, lambda: hurried.append(1))
    put_all(queue, job("DEL", "c2"), job("DEL"))
    assert hurried == []


def test_resumed_job_is_hurried_no_more() -> None:
    queue, hurried = AdmissionQueue(), list[int]()
    queue.put(waiting := job("ADD", "c1"))
    taken(queue, 1)
    queue.park(waiting, lambda: hurried.append(1))
    queue.resume(waiting)
    queue.put(job("DEL", "c1"))
    assert hurried == []
