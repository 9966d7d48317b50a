"""The loop around a step: it looks, writes, looks again and waits; and reasons why a pod does not count as upgraded."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from svc.upgrade.backup import Backup, Entry
from svc.upgrade.outcomes import Blocked, TimedOut, Waits
from svc.upgrade.rollouts import _why_not_ready
from svc.upgrade.run_record import PENDING, Run, RunRecord
from svc.upgrade.step import REACHED, Look, Progress
from svc.upgrade.step_runner import ATTEMPTS, Options, StepRunner, Stop, _shown
from svc.upgrade.writer import Changed

Json = dict[str, Any]


class MemoryRecord(RunRecord):
    """A record that is kept in memory."""

    def __init__(self) -> None:
        self.run = Run("r", "p", "", "", {}, "running", {"step": PENDING})

    def save(self, run: Run) -> None:
        self.run = run


class MemoryBackup(Backup):
    """A backup that is kept in memory."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, entries: Sequence[Entry]) -> None:
        self._entries += entries


class CountingStep:
    """A step that is done after some writes."""

    name = saves_as = "step"
    destroys = ""
    can_undo = True

    def __init__(self, needed: int, **look: Any) -> None:
        self.needed = needed
        self.found = Look(False, **look)
        self.failing = 0
        self.following = REACHED
        self.awaited = 0

    def look(self, saved: Sequence[Json]) -> Look:
        return replace(self.found, is_done=self.needed == 0)

    look_back = look

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        return None if saved else {"saved": True}

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:
        return None

    def act(self, look: Look) -> None:
        if self.failing:
            self.failing -= 1
            raise Changed("it was changed")
        self.needed -= 1

    undo = act

    def remains(self) -> bool:
        return True

    def progress(self, *, detailed: bool = False) -> Progress:
        self.awaited += 1
        return replace(self.following, reasons=("in detail",)) if detailed else self.following


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[StepRunner, MemoryRecord, MemoryBackup]]:
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.0)

    def make(**options: Any) -> tuple[StepRunner, MemoryRecord, MemoryBackup]:
        record, backup = MemoryRecord(), MemoryBackup()
        return StepRunner(record, backup, Options(Path("unused"), **options), Stop()), record, backup

    return make


def test_stop_ends_reads_at_once_and_waits_for_a_write() -> None:
    stop = Stop()
    with pytest.raises(KeyboardInterrupt):
        stop.request()
    stop, done = Stop(), []

    def write() -> None:
        with stop.after_write():
            with stop.after_write():
                stop.request()
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        write()
    assert done == ["inner", "outer"]
    with pytest.raises(KeyboardInterrupt):
        stop.check()


def test_error_of_a_write_is_not_hidden_by_a_stop() -> None:
    """The run stops before its next write."""
    stop = Stop()

    def write() -> None:
        with stop.after_write():
            stop.request()
            raise Changed("another state")

    with pytest.raises(Changed):
        write()
    with pytest.raises(KeyboardInterrupt):
        stop.pause(60.0)


def state(record: MemoryRecord) -> str:
    return cast("Run", record.run).steps["step"]


def test_conflicts_are_looked_at_again(runner: Any) -> None:
    run, record, backup = runner()
    step = CountingStep(1)
    step.failing = ATTEMPTS - 2
    run.carry_out(step)
    assert state(record) == "done"
    assert backup.of("step") == [{"saved": True}]


def test_endless_conflicts_block(runner: Any) -> None:
    run, record, _ = runner()
    step = CountingStep(1)
    step.failing = ATTEMPTS
    with pytest.raises(Blocked, match="it was changed"):
        run.carry_out(step)
    assert state(record) == "failed"


def test_attempts_that_come_closer_do_not_count(runner: Any) -> None:
    """Such as those of a step with many objects, of which others change some at any time."""

    class ManyObjects(CountingStep):
        def look(self, saved: Sequence[Json]) -> Look:
            return Look(not self.needed, changes=(("object", "present", None),) * self.needed)

        def act(self, look: Look) -> None:
            super().act(look)
            raise Changed("one of them was changed")

    run, record, _ = runner()
    run.carry_out(ManyObjects(5 * ATTEMPTS))
    assert state(record) == "done"


def test_unverified_step_waits_for_its_kind(runner: Any) -> None:
    run, record, backup = runner()
    with pytest.raises(Blocked, match="its kind or namespace is not there yet"):
        run.carry_out(CountingStep(1, unverified=True))
    assert backup.of("step") == []
    assert state(record) == "failed"


def test_blockers_write_nothing(runner: Any) -> None:
    run, _, backup = runner()
    step = CountingStep(1, blockers=("a reason",))
    with pytest.raises(Blocked, match="a reason"):
        run.carry_out(step)
    assert (step.needed, backup.of("step")) == (1, [])


def test_consent(runner: Any) -> None:
    run, record, _ = runner()
    step = CountingStep(1, asks=("is it meant?",))
    with pytest.raises(Waits, match="is it meant"):
        run.carry_out(step)
    assert state(record) == "waiting"
    run, record, _ = runner(acks=frozenset({"step"}))
    run.carry_out(step)
    assert state(record) == "done"


def test_late_cluster_is_described_in_detail(runner: Any) -> None:
    run, record, _ = runner(timeout=0.0)
    step = CountingStep(1)
    step.following = Progress(False, ("in short",))
    with pytest.raises(TimedOut, match="in detail"):
        run.carry_out(step)
    assert state(record) == "waiting"


def test_undo_that_goes_on_waits(runner: Any) -> None:
    """It was killed after it had written, and before the cluster had followed."""
    run, record, backup = runner()
    backup.add([Entry("step", {"saved": True})])
    step = CountingStep(0)
    run.undo(step)
    assert step.awaited == 1
    assert state(record) == "undone"


def test_stop_before_the_next_write(runner: Any) -> None:
    run, record, _ = runner()
    with pytest.raises(KeyboardInterrupt):
        run._stop.request()
    step = CountingStep(1)
    with pytest.raises(KeyboardInterrupt):
        run.carry_out(step)
    assert (step.needed, state(record)) == (1, PENDING)


def pod(**status: Any) -> Json:
    return {"metadata": {"labels": {"controller-revision-hash": "new"}}, "status": status}


WORKLOAD: Json = {
    "kind": "DaemonSet",
    "metadata": {"name": "svc-node"},
    "spec": {"template": {"spec": {"containers": [{"name": "agent"}, {"name": "policy"}]}}},
}
READY = {"name": "agent", "ready": True}
WAITING = {"name": "agent", "ready": False, "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}


@pytest.mark.parametrize(
    ("found", "newest", "reason"),
    [
        (pod(phase="Running", containerStatuses=[READY, {"name": "policy", "ready": False}]), "new", ""),  # 1/2 is enough
        (pod(phase="Running", containerStatuses=[READY]), "newer", "has an older template"),
        (pod(phase="Pending", containerStatuses=[WAITING]), "new", "ErrImagePull: no such image"),
        (pod(phase="Failed", reason="Evicted"), "new", "Evicted"),
        (pod(phase="Pending"), "", "Pending, agent is not ready"),
        (pod(), "", "no phase, agent is not ready"),
    ],
)
def test_why_a_pod_does_not_count(found: Json, newest: str, reason: str) -> None:
    assert _why_not_ready(found, WORKLOAD, newest) == reason


def test_object_that_is_gone_is_not_shown_as_a_whole() -> None:
    document = {"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1"}}
    assert _shown(Look(False, changes=(("", document, None), ("data", {"a": "1"}, None)))) == (
        "object: present -> None; data: {'a': '1'} -> None"
    )
