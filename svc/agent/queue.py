"""The admission queue: what waits for a worker, in a fair order.

Rule 1. Jobs of one key (a container) run one after another, in the order of their arrival, and never two at once; a job
that waits for another of its key occupies no worker.
Rule 2. Lanes (verbs) take turns, so that a burst of one never starves the others; within a lane the first come is served first.
Rule 3. Of a lane, and for one datastore, no more jobs run side by side than `lanes.py` says: the rest wait in the queue, and
occupy no worker.
Rule 4. Nothing is refused for want of room.
Rule 5. A job that waits for something outside is paused: it occupies nothing but its key, and comes back when it is resumed.
A DEL of that key does not wait for as long: it hurries the paused job.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from svc.agent.lanes import Busy, Lane
from svc.waits.wait import Wait

HURRIES = "DEL"  # the name of the lanes of those who want what is under way to end


@dataclass(slots=True)
class Job:
    """Something to run, which may return what it waits for, to be run again. `key` empty: it excludes nobody."""

    lane: Lane
    key: str
    run: Callable[["Job"], Wait | None]
    arrived: float = field(default_factory=time.perf_counter)

    def waited(self) -> float:
        """Milliseconds since it arrived."""
        return (time.perf_counter() - self.arrived) * 1000


class AdmissionQueue:
    """`put` from any thread; workers `take` a job and report it `done`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = Busy()
        self._lanes: dict[Lane, deque[Job]] = {}
        self._turns: deque[Lane] = deque()
        self._behind: dict[str, deque[Job]] = {}
        self._paused: dict[str, Callable[[], None]] = {}

    def put(self, job: Job) -> None:
        with self._lock:
            behind = self._behind.get(job.key)
            if behind is None:
                if job.key:
                    self._behind[job.key] = deque()
                self._admit(job)
                return
            behind.append(job)
            hurry = self._paused.get(job.key) if job.lane.name == HURRIES else None
        if hurry is not None:
            hurry()

    def take(self) -> Job | None:
        """The next job that may run now, if there is one."""
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
                    del self._lanes[lane]  # networks come and go
                self._busy.change(lane, 1)
                return job
            return None

    def pause(self, job: Job, hurry: Callable[[], None]) -> None:
        """Until `resume`. `hurry` is called, on any thread, when a DEL comes, or is there, that waits for its key."""
        with self._lock:
            self._busy.change(job.lane, -1)
            if job.key:
                self._paused[job.key] = hurry
            wanted = any(behind.lane.name == HURRIES for behind in self._behind.get(job.key, ()))
        if wanted:
            hurry()

    def resume(self, job: Job) -> None:
        """Once for each pause."""
        with self._lock:
            self._paused.pop(job.key, None)
            self._admit(job)

    def is_paused(self, key: str) -> bool:
        """Whether a job of this key waits, and keeps those behind it waiting."""
        with self._lock:
            return key in self._paused

    def done(self, job: Job) -> None:
        """The next job of its key may run: whoever reports this takes again."""
        with self._lock:
            self._busy.change(job.lane, -1)
            behind = self._behind.get(job.key)
            if behind:
                self._admit(behind.popleft())
            elif behind is not None:
                del self._behind[job.key]

    def has_more(self) -> bool:
        """Whether there is a job that may run now."""
        with self._lock:
            return not all(map(self._busy.is_full, self._turns))

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._lanes.values())) + sum(map(len, self._behind.values()))

    def _admit(self, job: Job) -> None:
        jobs = self._lanes.setdefault(job.lane, deque())
        jobs.append(job)
        if len(jobs) == 1:
            self._turns.append(job.lane)
