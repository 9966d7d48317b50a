"""Periodic tasks: each has its own interval, and a failed task does not end the others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from svc.agent.periodic import Periodic, Task

TIMEOUT_SECONDS = 20.0


@contextmanager
def running(*tasks: Task) -> Iterator[None]:
    periodic = Periodic(tasks)
    periodic.start()
    try:
        yield
    finally:
        periodic.stop()


class Counted:
    """Task that sets an event when it has run the given number of times."""

    def __init__(self, times: int, failure: Exception | None = None) -> None:
        self._left = times
        self._failure = failure
        self.reached = threading.Event()

    def __call__(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.reached.set()
        if self._failure:
            raise self._failure


def test_task_is_repeated() -> None:
    counted = Counted(3)
    with running(Task("count", 0.001, counted)):
        assert counted.reached.wait(TIMEOUT_SECONDS)


def test_rare_task_does_not_delay_a_frequent_one() -> None:
    quick = Counted(3)
    with running(Task("once an hour", 3600.0, Counted(1)), Task("quick", 0.001, quick)):
        assert quick.reached.wait(TIMEOUT_SECONDS)


def test_task_that_fails_runs_again_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    failing, other = Counted(2, OSError("the disk is full")), Counted(3)
    with running(Task("failing", 0.001, failing), Task("other", 0.001, other)):
        assert failing.reached.wait(TIMEOUT_SECONDS)
        assert other.reached.wait(TIMEOUT_SECONDS)
    assert "periodic task failing failed" in caplog.text


def test_stop_works_without_tasks() -> None:
    with running():
        pass
