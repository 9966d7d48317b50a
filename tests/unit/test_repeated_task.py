"""A task that is repeated: its schedule, and the reports of its failures."""

from collections.abc import Callable

import pytest

from svc.admin.repeated_task import LONGEST_PAUSE, SHORTEST_PAUSE, RepeatedTask
from svc.datastore.api import StoreError

Outcome = float | Exception


class Work:
    """A repeated task with given outcomes, its clock, and its reports."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.outcomes: list[Outcome] = []
        self.runs: list[float] = []
        self.reports: list[tuple[str, bool]] = []
        self.task = RepeatedTask(
            self._step, lambda *report: self.reports.append(report), failed="bad", recovered="good", clock=lambda: self.now
        )

    def _step(self) -> float:
        self.runs.append(self.now)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass in steps of a tenth of a second."""
        end = self.now + seconds
        while self.now < end and not until():
            self.task.run()
            self.now += 0.1


@pytest.fixture
def work() -> Work:
    return Work()


def failure(text: str = "away") -> StoreError:
    return StoreError(text, details="wait")


def test_task_is_due_at_first_and_then_after_its_pause(work: Work) -> None:
    work.outcomes = [7.0, 100.0]
    work.pass_time(50.0)
    assert work.runs == pytest.approx([1000.0, 1007.0], abs=0.11)
    assert work.reports == []


def test_pauses_grow_after_failures_up_to_minutes(work: Work) -> None:
    work.outcomes = [failure() for _ in range(20)]
    work.pass_time(1e9, lambda: not work.outcomes)
    pauses = [after - before for before, after in zip(work.runs, work.runs[1:], strict=False)]
    assert pauses[0] == pytest.approx(SHORTEST_PAUSE, abs=0.11)
    for number, pause in enumerate(pauses):
        longest = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2**number)
        assert max(SHORTEST_PAUSE, longest * 0.75) - 0.1 <= pause <= longest + 0.2
    assert max(pauses) > 200.0


def test_each_failure_is_reported_once_and_its_end(work: Work) -> None:
    work.outcomes = [failure(), failure(), OSError(30, "Read-only file system", "/x"), failure(), 1.0, 1.0, failure(), 1e9]
    work.pass_time(1e6, lambda: not work.outcomes)
    assert work.reports == [
        ("bad: away: wait", True), ("bad: Read-only file system: '/x'", True), ("good", False),
        ("bad: away: wait", True), ("good", False),
    ]  # fmt: skip


def test_pause_is_short_again_after_a_success(work: Work) -> None:
    work.outcomes = [failure(), failure(), failure(), 1.0, failure(), 1e9]
    work.pass_time(1e5, lambda: not work.outcomes)
    assert work.runs[5] - work.runs[4] == pytest.approx(SHORTEST_PAUSE, abs=0.11)


def test_hastened_task_runs_earlier_and_never_later(work: Work) -> None:
    work.outcomes = [100.0, 1.0, 1e9]
    work.task.run()
    work.task.hasten(work.now + 20.0)
    work.task.hasten(work.now + 50.0)
    work.pass_time(30.0)
    assert work.runs == pytest.approx([1000.0, 1020.0, 1021.0], abs=0.11)


def test_bug_is_not_taken_for_a_failure(work: Work) -> None:
    work.outcomes = [KeyError("bug")]
    with pytest.raises(KeyError):
        work.task.run()
