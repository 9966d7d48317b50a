"""The agent's worker threads: at least one is idle and listens.

A worker that starts a job and leaves no idle worker behind starts another one. A worker that ends a job ends itself if enough
others are idle. If all workers are occupied, and no more are allowed, another thread listens: requests for introspection must
not wait for a worker.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from svc.cpu_pinning import CPU_PINNING
from svc.right_of_way import take_usual_priority

IDLE_WORKERS = 8  # kept for bursts; each takes some 50 KiB
MAX_WORKERS = 128  # other calls wait in the queue
PAUSE_SECONDS = 1.0  # after a failure to take a job
BUSY_SECONDS = 40.0  # if no call begins or ends in this time, all workers are stuck

Job = Callable[[], None]

log = logging.getLogger("svc.agent")


class WorkerPool:
    """Worker threads. Each calls `next_job` in a loop; it blocks until it returns a job, or None when the agent ends.

    While all are occupied, a thread calls `listen` in a loop, which blocks until requests were read. `wake` makes an idle
    worker call `next_job` again.
    """

    def __init__(self, next_job: Callable[[], Job | None], listen: Callable[[], None], wake: Callable[[], None]) -> None:
        self._next_job, self._listen, self._wake = next_job, listen, wake
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._listener: threading.Thread | None = None
        self._idle = 0
        self._is_stopping = False
        self._number = 0
        self._progress = 0.0  # when a job last began or ended (monotonic clock)

    def start(self) -> None:
        with self._lock:
            for _ in range(IDLE_WORKERS):
                self._start_one()

    def stop(self, deadline: float) -> int:
        """Wait for the end of all workers, until the deadline (monotonic clock). Return how many have not ended."""
        with self._lock:
            self._is_stopping = True
            threads = (*self._threads, *([self._listener] if self._listener else []))
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        CPU_PINNING.unpin()
        return sum(thread.is_alive() for thread in threads)

    def is_busy(self) -> bool:
        """Return True if all workers are occupied, and one of them began or ended a job within BUSY_SECONDS."""
        with self._lock:
            return not self._idle and time.monotonic() - self._progress < BUSY_SECONDS

    def report(self) -> tuple[int, int, float]:
        """Return the number of workers, of idle ones, and the seconds since a job last began or ended."""
        with self._lock:
            return len(self._threads), self._idle, time.monotonic() - self._progress

    def _start_one(self) -> None:
        """Start a worker. The caller holds the lock."""
        self._number += 1
        thread = threading.Thread(target=self._serve, name=f"worker-{self._number}", daemon=True)
        thread.start()
        self._threads.add(thread)
        self._idle += 1

    def _start_listener(self) -> None:
        """Start the thread that listens for the workers, unless it runs. The caller holds the lock."""
        if self._listener is None:
            thread = threading.Thread(target=self._listen_for_workers, name="listener", daemon=True)
            thread.start()
            self._listener = thread

    def _listen_for_workers(self) -> None:
        take_usual_priority()
        while self._lacks_listener():
            self._listen()
        self._wake()  # this thread may have consumed the wake-up of an idle worker

    def _lacks_listener(self) -> bool:
        with self._lock:
            if not self._idle and not self._is_stopping:
                return True
            self._listener = None
            return False

    def _serve(self) -> None:
        take_usual_priority()
        while (job := self._next()) is not None:
            self._begin()
            job()
            del job  # with its call: the worker may be idle for long
            if not self._stays():
                return

    def _next(self) -> Job | None:
        """Return what `next_job` returns. After a failure, call it again: without workers the agent would serve nobody."""
        while True:
            try:
                return self._next_job()
            except Exception:
                log.exception("a worker could not take a job")
                time.sleep(PAUSE_SECONDS)

    def _begin(self) -> None:
        with self._lock:
            self._idle -= 1
            self._progress = time.monotonic()
            concurrent = len(self._threads) - self._idle > 1
            if not self._idle and not self._is_stopping:
                with suppress(RuntimeError):  # the system refuses a thread: this worker listens after its job
                    self._start_one() if len(self._threads) < MAX_WORKERS else self._start_listener()
        CPU_PINNING.call_begins(concurrent=concurrent)

    def _stays(self) -> bool:
        """Return True if the worker stays. During shutdown all stay until the queue is empty."""
        with self._lock:
            if self._idle >= IDLE_WORKERS and not self._is_stopping:
                self._threads.discard(threading.current_thread())
                return False
            self._idle += 1
            self._progress = time.monotonic()
            return True
