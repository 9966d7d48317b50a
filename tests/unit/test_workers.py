"""The agent's threads: one always listens, also while all calls wait; idle threads end."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from harness.polling import wait_until
from harness.skips import ONE_PROCESSOR
from svc.agent import workers
from svc.agent.workers import WorkerPool

TIMEOUT_SECONDS = 20.0  # seconds

Job = Callable[[], None]


class Work:
    """A worker pool and its jobs."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Job | None] = queue.Queue()
        self.over = threading.Event()
        self.workers = WorkerPool(self._turn)

    def _turn(self) -> Job | None:
        while not self.over.is_set():
            try:
                return self.jobs.get(timeout=0.01)
            except queue.Empty:
                continue
        try:
            return self.jobs.get_nowait()
        except queue.Empty:
            return None

    def end(self) -> int:
        self.over.set()
        return self.workers.stop(time.monotonic() + TIMEOUT_SECONDS)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    monkeypatch.setattr(workers, "IDLE_WORKERS", 2)
    monkeypatch.setattr(workers, "MAX_WORKERS", 10)
    work = Work()
    work.workers.start()
    yield work
    assert work.end() == 0


def waited(gate: threading.Event) -> None:
    gate.wait(TIMEOUT_SECONDS)


def kept() -> int:
    """How many workers are kept on one processor."""
    workers = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("worker-")]
    return sum(len(os.sched_getaffinity(number)) == 1 for number in workers if number)


def count() -> int:
    return sum(thread.name.startswith("worker-") for thread in threading.enumerate())


def test_somebody_listens_while_others_wait(work: Work) -> None:
    gate, served = threading.Event(), threading.Event()
    for _ in range(9):
        work.jobs.put(lambda: waited(gate))
    wait_until(work.jobs.empty)
    work.jobs.put(served.set)
    assert served.wait(TIMEOUT_SECONDS)
    gate.set()


def test_there_is_an_end_to_threads(work: Work) -> None:
    """More calls than that wait in the queue, and come to their turn."""
    gate, done = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        gate.wait(TIMEOUT_SECONDS)
        done.release()

    for _ in range(30):
        work.jobs.put(wait)
    wait_until(lambda: work.jobs.qsize() == 20)
    assert count() == 10
    gate.set()
    for _ in range(30):
        assert done.acquire(timeout=TIMEOUT_SECONDS)
    wait_until(lambda: count() <= 2)


def test_what_is_queued_is_done_before_the_end(work: Work) -> None:
    done: list[int] = []
    for number in range(100):
        work.jobs.put(lambda number=number: done.append(number))  # type: ignore[misc]
    assert work.end() == 0
    assert sorted(done) == list(range(100))
    assert count() == 0


def test_who_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    work, gate, begun = Work(), threading.Event(), threading.Event()
    work.workers.start()

    def wait() -> None:
        begun.set()
        gate.wait(TIMEOUT_SECONDS)

    work.jobs.put(wait)
    assert begun.wait(TIMEOUT_SECONDS)
    work.over.set()
    assert work.workers.stop(time.monotonic()) >= 1
    gate.set()
    assert work.end() == 0


def test_work_goes_on_where_no_thread_can_be_started(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a limit of processes: what is there does everything, one after another, and listens again."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    gate, done = threading.Event(), threading.Semaphore(0)
    for _ in range(2):
        work.jobs.put(lambda: waited(gate))
    wait_until(work.jobs.empty)
    for _ in range(5):
        work.jobs.put(lambda: done.release())
    gate.set()
    for _ in range(5):
        assert done.acquire(timeout=TIMEOUT_SECONDS)
    assert count() == 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason=ONE_PROCESSOR)
def test_those_who_work_at_once_are_kept_on_one_processor(work: Work) -> None:
    """And with them all other threads of the process; at the end the pinning is removed."""
    gate, over = threading.Event(), threading.Event()
    bystander = threading.Thread(target=over.wait, args=(TIMEOUT_SECONDS,))
    bystander.start()
    work.jobs.put(lambda: waited(gate))
    wait_until(work.jobs.empty)
    assert kept() == 0
    work.jobs.put(lambda: waited(gate))
    wait_until(lambda: kept() >= 2)
    assert len(os.sched_getaffinity(bystander.native_id or 0)) == 1
    gate.set()
    assert work.end() == 0
    assert os.sched_getaffinity(bystander.native_id or 0) == os.sched_getaffinity(0)
    over.set()
    bystander.join()
