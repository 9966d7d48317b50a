"""Periodic tasks of the agent."""

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable

from svc.values import dataclass

log = logging.getLogger("svc.agent")


@dataclass(frozen=True, slots=True)
class Task:
    """A function that runs every `seconds`, first after one period.

    `run` must return quickly. Work that waits for a server, a file or a container belongs into a Job of the admission queue.
    """

    name: str
    seconds: float
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The last run of a task: when it began (Unix time), how long it took, and its exception, if any."""

    began: float
    seconds: float
    failure: str


class Periodic:
    """Tasks on one thread of this name, until `stop`. A task that raises an exception is logged, and runs again later."""

    def __init__(self, tasks: Iterable[Task], name: str = "periodic") -> None:
        self._tasks = tuple(tasks)
        self._runs: dict[str, TaskRun] = {}  # by the name of the task
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and return when no task runs any more."""
        self._stopping.set()
        self._thread.join()

    def report(self) -> list[tuple[Task, TaskRun | None]]:
        """Return each task with its last run, if any has ended."""
        return [(task, self._runs.get(task.name)) for task in self._tasks]

    def _run(self) -> None:
        begin = time.monotonic()
        due = [(begin + task.seconds, number) for number, task in enumerate(self._tasks)]
        heapq.heapify(due)
        while due and not self._stopping.wait(max(0.0, due[0][0] - time.monotonic())):
            number = due[0][1]
            self._run_once(self._tasks[number])
            heapq.heapreplace(due, (time.monotonic() + self._tasks[number].seconds, number))

    def _run_once(self, task: Task) -> None:
        began, started, reason = time.time(), time.monotonic(), ""
        try:
            task.run()
        except Exception as failure:  # for example the disk of the journal is full: the next period tries again
            reason = f"{type(failure).__name__}: {failure}"
            log.exception("periodic task %s failed", task.name)
        self._runs[task.name] = TaskRun(began, time.monotonic() - started, reason)
