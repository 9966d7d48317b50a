"""Worker pool of the agent: a worker always listens, idle workers end, and concurrent ones share a CPU."""

import errno
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from harness.polling import wait_until
from harness.skips import ONE_PROCESSOR
from svc.agent import workers
from svc.agent.workers import WorkerPool
from svc.right_of_way import take_precedence

TIMEOUT_SECONDS = 20.0

Job = Callable[[], None]


class Work:
    """Worker pool and its jobs."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Job | None] = queue.Queue()
        self.over = threading.Event()
        self.listening, self.woken = threading.Event(), threading.Event()
        self.workers = WorkerPool(self._next_job, self._listen, self.woken.set)

    def _listen(self) -> None:
        self.listening.set()
        time.sleep(0.01)

    def _next_job(self) -> Job | None:
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


def wait_for_event(gate: threading.Event) -> None:
    gate.wait(TIMEOUT_SECONDS)


def pinned_workers() -> int:
    """Return how many workers are pinned to one CPU."""
    workers = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("worker-")]
    return sum(len(os.sched_getaffinity(number)) == 1 for number in workers if number)


def count() -> int:
    return sum(thread.name.startswith("worker-") for thread in threading.enumerate())


def test_worker_listens_while_others_wait(work: Work) -> None:
    gate, served = threading.Event(), threading.Event()
    for _ in range(9):
        work.jobs.put(lambda: wait_for_event(gate))
    wait_until(work.jobs.empty)
    work.jobs.put(served.set)
    assert served.wait(TIMEOUT_SECONDS)
    gate.set()


def test_idle_worker_has_nothing_of_its_last_job(work: Work) -> None:
    job = partial(time.sleep, 0)
    ended = weakref.ref(job)
    work.jobs.put(job)
    del job
    wait_until(lambda: ended() is None)


def test_number_of_workers_is_limited(work: Work) -> None:
    """Further calls wait in the queue, and run later."""
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


def test_another_thread_listens_while_all_workers_are_occupied(work: Work) -> None:
    """When a worker is idle again, that thread ends, and passes on the wake-up that it may have consumed."""
    gate = threading.Event()
    for _ in range(9):
        work.jobs.put(lambda: wait_for_event(gate))
    wait_until(work.jobs.empty)
    assert not work.listening.is_set()
    work.jobs.put(lambda: wait_for_event(gate))
    assert work.listening.wait(TIMEOUT_SECONDS)
    assert not work.woken.is_set()
    gate.set()
    assert work.woken.wait(TIMEOUT_SECONDS)
    wait_until(lambda: all(thread.name != "listener" for thread in threading.enumerate()))


def test_queued_jobs_run_before_the_end(work: Work) -> None:
    done: list[int] = []
    for number in range(100):
        work.jobs.put(lambda number=number: done.append(number))  # type: ignore[misc]
    assert work.end() == 0
    assert sorted(done) == list(range(100))
    assert count() == 0


def test_stop_returns_the_number_of_running_workers(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_existing_workers_continue_if_no_thread_can_be_started(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run all jobs one after another, and listen again."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    gate, done = threading.Event(), threading.Semaphore(0)
    for _ in range(2):
        work.jobs.put(lambda: wait_for_event(gate))
    wait_until(work.jobs.empty)
    for _ in range(5):
        work.jobs.put(lambda: done.release())
    gate.set()
    for _ in range(5):
        assert done.acquire(timeout=TIMEOUT_SECONDS)
    assert count() == 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason=ONE_PROCESSOR)
def test_concurrent_workers_are_pinned_to_one_cpu(work: Work) -> None:
    """All other threads of the process are pinned too. The pinning is removed at the end."""
    gate, over = threading.Event(), threading.Event()
    other_thread = threading.Thread(target=over.wait, args=(TIMEOUT_SECONDS,))
    other_thread.start()
    work.jobs.put(lambda: wait_for_event(gate))
    wait_until(work.jobs.empty)
    assert pinned_workers() == 0
    work.jobs.put(lambda: wait_for_event(gate))
    wait_until(lambda: pinned_workers() >= 2)
    assert len(os.sched_getaffinity(other_thread.native_id or 0)) == 1
    gate.set()
    assert work.end() == 0
    assert os.sched_getaffinity(other_thread.native_id or 0) == os.sched_getaffinity(0)
    over.set()
    other_thread.join()


def test_worker_goes_on_after_it_could_not_take_a_job(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "PAUSE_SECONDS", 0.01)
    takes, fails = work.workers._next_job, threading.Event()

    def fail() -> Job | None:
        if fails.is_set():
            raise OSError(errno.ENOSYS, "Function not implemented")
        return takes()

    work.workers._next_job = fail
    fails.set()
    for _ in range(4):  # each worker ends its job, and fails to take the next one
        work.jobs.put(lambda: None)
    wait_until(lambda: caplog.text.count("could not take a job") > 4)
    fails.clear()
    done = threading.Event()
    work.jobs.put(done.set)
    assert done.wait(TIMEOUT_SECONDS)


@pytest.mark.root
def test_worker_that_a_thread_with_precedence_starts_has_the_priority_of_the_process(work: Work) -> None:
    """The kernel resets the priority of such a thread."""
    usual, found = os.getpriority(os.PRIO_PROCESS, os.getpid()), queue.Queue[int]()
    first, gate = threading.Barrier(workers.IDLE_WORKERS + 1), threading.Event()
    known = set(threading.enumerate())

    def precede() -> None:
        take_precedence()
        first.wait(TIMEOUT_SECONDS)

    def tell() -> None:
        if threading.current_thread() not in known:
            found.put(os.getpriority(os.PRIO_PROCESS, 0))
        wait_for_event(gate)

    for _ in range(workers.IDLE_WORKERS):
        work.jobs.put(precede)
    first.wait(TIMEOUT_SECONDS)
    known.update(threading.enumerate())
    os.setpriority(os.PRIO_PROCESS, os.getpid(), usual - 5)
    try:
        for _ in range(workers.MAX_WORKERS):
            work.jobs.put(tell)
        assert {found.get(timeout=TIMEOUT_SECONDS) for _ in range(workers.MAX_WORKERS - len(known))} <= {usual - 5}
    finally:
        gate.set()
        os.setpriority(os.PRIO_PROCESS, os.getpid(), usual)
