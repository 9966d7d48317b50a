"""A task that a program repeats: each failure is reported once, and followed by growing pauses."""

import time
from collections.abc import Callable

from svc.model.errors import SvcError, reason_of
from svc.retry import Backoff

SHORTEST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # after a failure

Report = Callable[[str, bool], None]
"""Print a line. The second argument says whether it is about a failure."""


def boot_time() -> float:
    """Return seconds since the machine was started, which go on while it sleeps and do not follow a changed clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RepeatedTask:
    """A task that returns after how many seconds it is due again. It is due at first. Not thread-safe.

    `failed` begins the report of a failure, `recovered` is the report of its end."""

    def __init__(
        self,
        task: Callable[[], float],
        report: Report,
        *,
        failed: str,
        recovered: str,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._task = task
        self._report = report
        self._failed, self._recovered = failed, recovered
        self._clock = clock
        self._due = clock()
        self._backoff = Backoff(SHORTEST_PAUSE, LONGEST_PAUSE)
        self._failures: list[str] = []  # those that were reported since the last success

    def run(self) -> None:
        """Run the task if it is due. Report SvcError and OSError, and try again later."""
        if self._clock() < self._due:
            return
        try:
            pause = self._task()
        except (SvcError, OSError) as error:
            self._due = self._clock() + self._backoff.next()
            failure = error.as_text() if isinstance(error, SvcError) else reason_of(error)
            if failure not in self._failures:
                self._failures.append(failure)
                self._report(f"{self._failed}: {failure}", True)
            return
        self._due = self._clock() + pause
        self._backoff.reset()
        if self._failures:
            self._failures.clear()
            self._report(self._recovered, False)

    def hasten(self, at: float) -> None:
        """Make the task due at a time, unless it is due earlier."""
        self._due = min(self._due, at)
