"""The admission queue: jobs that wait for a worker, in a fair order.

Rule 1. Jobs of one key (a container) run one at a time, in the order of their arrival. A job that waits for another job of its
key occupies no worker.
Rule 2. Lanes (verbs) are served in rotation, so that a burst of one does not starve the others. Each lane is a FIFO.
Rule 3. `lanes.py` limits the jobs of a lane, and of one datastore, that run in parallel.
Rule 4. The queue is unbounded.
Rule 5. A job that waits for an external event is parked: it occupies only its key, until it is resumed. A DEL of that key
cancels the wait.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import chain

from svc.agent.lanes import Busy, Lane
from svc.values import dataclass, field
from svc.waits.wait import Wait

CANCELLING_LANE = "DEL"  # jobs of lanes with this name cancel parked jobs of their key


@dataclass(slots=True)
class Job:
    """A unit of work. If `run` returns a wait, it runs again after the wait. An empty `key` excludes no other job."""

    lane: Lane
    key: str
    run: Callable[["Job"], Wait | None]
    arrived: float = field(default_factory=time.perf_counter)

    def waited(self) -> float:
        """Return the milliseconds since its arrival."""
        return (time.perf_counter() - self.arrived) * 1000


@dataclass(frozen=True, slots=True)
class LaneReport:
    """Jobs of a lane: how many wait, how many run, and since how many seconds the oldest waits."""

    lane: Lane
    waiting: int
    running: int
    oldest_seconds: float


class AdmissionQueue:
    """A fair queue. Any thread may `put` a job; workers `take` jobs and report each as `done`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = Busy()
        self._lanes: dict[Lane, deque[Job]] = {}
        self._turns: deque[Lane] = deque()
        self._behind: dict[str, deque[Job]] = {}
        self._parked: dict[str, Callable[[], None]] = {}

    def put(self, job: Job) -> None:
        with self._lock:
            behind = self._behind.get(job.key)
            if behind is None:
                if job.key:
                    self._behind[job.key] = deque()
                self._admit(job)
                return
            behind.append(job)
            cancel = self._parked.get(job.key) if job.lane.name == CANCELLING_LANE else None
        if cancel is not None:
            cancel()

    def take(self) -> Job | None:
        """Return the next job that may run now, or None."""
        with self._lock:
            for _ in range(len(self._turns)):
                lane = self._turns.popleft()
                if self._busy.is_full(lane):
                    self._turns.append(lane)
                    continue
                jobs = self._lanes[lane]
                job = jobs.popleft()
                if jobs:
                    self._turns.append(lane)
                else:
                    del self._lanes[lane]  # so that lanes of removed networks do not remain
                self._busy.change(lane, 1)
                return job
            return None

    def park(self, job: Job, cancel: Callable[[], None]) -> None:
        """Park the job until `resume`. A DEL that waits for its key, now or later, calls `cancel`, on any thread."""
        with self._lock:
            self._busy.change(job.lane, -1)
            if job.key:
                self._parked[job.key] = cancel
            wanted = any(behind.lane.name == CANCELLING_LANE for behind in self._behind.get(job.key, ()))
        if wanted:
            cancel()

    def resume(self, job: Job) -> None:
        """Admit a parked job again. Call it once for each `park`."""
        with self._lock:
            self._parked.pop(job.key, None)
            self._admit(job)

    def is_parked(self, key: str) -> bool:
        with self._lock:
            return key in self._parked

    def done(self, job: Job) -> None:
        """Report the end of a job. The next job of its key may run: the caller must `take` again."""
        with self._lock:
            self._busy.change(job.lane, -1)
            behind = self._behind.get(job.key)
            if behind:
                self._admit(behind.popleft())
            elif behind is not None:
                del self._behind[job.key]

    def has_more(self) -> bool:
        """Return True if a job may run now."""
        with self._lock:
            return not all(map(self._busy.is_full, self._turns))

    def report(self) -> list[LaneReport]:
        """Return the lanes that have jobs, with those that wait behind another job of their key."""
        now = time.perf_counter()
        with self._lock:
            waiting = [*chain.from_iterable((*self._lanes.values(), *self._behind.values()))]
            running = dict(self._busy.lanes)
        arrivals: dict[Lane, list[float]] = {lane: [] for lane in running}
        for job in waiting:
            arrivals.setdefault(job.lane, []).append(job.arrived)
        return [
            LaneReport(lane, len(found), running.get(lane, 0), now - min(found, default=now))
            for lane, found in arrivals.items()
        ]

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._lanes.values())) + sum(map(len, self._behind.values()))

    def calls_in_flight(self) -> int:
        """Return the number of calls that wait, run, or are parked."""
        with self._lock:
            waiting = sum(len(jobs) for lane, jobs in self._lanes.items() if lane.is_of_calls)
            behind = sum(job.lane.is_of_calls for jobs in self._behind.values() for job in jobs)
            running = sum(number for lane, number in self._busy.lanes.items() if lane.is_of_calls)
            return waiting + behind + running + len(self._parked)

    def _admit(self, job: Job) -> None:
        jobs = self._lanes.setdefault(job.lane, deque())
        jobs.append(job)
        if len(jobs) == 1:
            self._turns.append(job.lane)
