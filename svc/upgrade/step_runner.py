"""Carries out and undoes single steps: look, save, write, look again, wait."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from svc.datastore.api import StoreError
from svc.upgrade.backup import Backup, Entry
from svc.upgrade.outcomes import Blocked, Stopped, TimedOut, Waits
from svc.upgrade.run_record import DONE, FAILED, RUNNING, UNDONE, WAITING, RunRecord
from svc.upgrade.step import Look, Progress, Step
from svc.upgrade.writer import Changed
from svc.values import dataclass, field

Json = dict[str, Any]

_MAX_SHOWN: Final = 5  # differences in an error
ATTEMPTS: Final = 6  # of a step whose object changes all the time
POLL_SECONDS = 1.0  # between two looks at a rollout
PAUSE_SECONDS = 0.3  # before a step looks again


class Stop:
    """The wish of the user to stop. A write that is sent is not broken off; everything else is."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._writes = 0  # blocks that the main thread is in

    def request(self) -> None:
        """Raise KeyboardInterrupt; while a write is sent, let the run stop after it. The handler of a signal calls this."""
        self._event.set()
        if not self._writes:
            raise KeyboardInterrupt

    @contextmanager
    def after_write(self) -> Iterator[None]:
        """Send a write in the block. Raise KeyboardInterrupt after it if the run is to stop."""
        self._writes += 1
        try:
            yield
        finally:
            self._writes -= 1
        if not self._writes:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if the run is to stop."""
        if self._event.is_set():
            raise KeyboardInterrupt

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Let the block send what has to be sent before a stopped run ends."""
        self._event.clear()
        try:
            yield
        finally:
            self._event.set()

    def pause(self, seconds: float) -> None:
        """Wait. Raise KeyboardInterrupt at once if the run is to stop."""
        self._event.wait(seconds)
        self.check()


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chooses: steps with consent, seconds to wait, folder of backups, a plan that must still fit.

    `say` gets a line about each step."""

    folder: Path
    acks: frozenset[str] = frozenset()
    timeout: float = 1800.0
    plan: Json | None = None
    say: Callable[[str], None] = field(default=lambda _: None)


class StepRunner:
    """Steps of one run, whose record and backup are loaded."""

    def __init__(self, record: RunRecord, backup: Backup, options: Options, stop: Stop) -> None:
        self._record = record
        self._backup = backup
        self._options = options
        self._stop = stop
        self._until = time.monotonic() + options.timeout
        self._told: set[str] = set()

    def carry_out(self, step: Step) -> None:
        """Bring a step to its postcondition. Raise Stopped."""
        with self._recorded(step, DONE):
            acted = self._settle(step, lambda: step.look(self._saved(step)), lambda look: self._act(step, look), _shown)
            self._await(step)
        if acted:
            self._options.say(f"{step.name} done")

    def undo(self, step: Step) -> None:
        """Bring back what was there before a step. Raise Stopped."""
        with self._recorded(step, UNDONE):
            saved = self._saved
            acted = self._settle(step, lambda: step.look_back(saved(step)), lambda look: self._undo(step, look), _shown_since)
            if self._saved(step) and step.remains():  # also if the run was killed while it waited
                self._await(step)
        if acted:
            self._options.say(f"{step.name} undone")

    def _saved(self, step: Step) -> list[Json]:
        return self._backup.of(step.saves_as)

    def _settle(
        self, step: Step, look: Callable[[], Look], act: Callable[[Look], None], details: Callable[[Look], str]
    ) -> bool:
        """Look and act until the step is done. Return whether anything was written. Attempts that come closer do not count."""
        acted, reason = False, "what it has written does not stay"
        left, fewest = ATTEMPTS, sys.maxsize
        while left:
            self._stop.check()
            found = look()
            left, fewest = (ATTEMPTS if len(found.changes) < fewest else left) - 1, min(fewest, len(found.changes))
            self._tell(found)
            if found.blockers:
                raise Blocked(found.blockers, details=details(found))
            if found.is_done:
                return acted
            self._record.note(step.name, RUNNING)
            try:
                act(found)
                acted = True
            except Changed as error:
                reason = str(error)
                self._stop.pause(PAUSE_SECONDS)
        raise Blocked(
            [f"{step.name} is not done after {ATTEMPTS} attempts without progress: {reason}"], details="run the command again"
        )

    def _tell(self, found: Look | Progress) -> None:
        """Say each note once."""
        for text in found.notes:
            if text not in self._told:
                self._told.add(text)
                self._options.say(f"note: {text}")

    def _act(self, step: Step, look: Look) -> None:
        if look.unverified:
            raise Changed("its kind or namespace is not there yet")
        self._require_consent(step, look.asks)
        if entry := step.unsaved(look, self._saved(step)):
            self._backup.add([Entry(step.saves_as, entry)])
        step.act(look)

    def _undo(self, step: Step, look: Look) -> None:
        if entry := step.unsaved_back(look, self._saved(step)):
            self._backup.add([Entry(step.saves_as, entry)])
        step.undo(look)

    def _await(self, step: Step) -> None:
        """Wait until the cluster has followed a step. Raise TimedOut with what is missing, and Waits if time does not help."""
        waits = False
        while not (progress := self._progress(step)).is_reached and not progress.asks:
            if time.monotonic() > self._until:
                raise TimedOut(step.progress(detailed=True).reasons or progress.reasons)
            if not waits:
                self._record.note(step.name, WAITING)
                self._options.say(f"{step.name} waits: {progress.reasons[0].removeprefix(f'{step.name}: ')}")
                waits = True
            self._stop.pause(POLL_SECONDS)
        self._require_consent(step, progress.asks)
        if progress.saves is not None:
            self._backup.add([Entry(step.saves_as, progress.saves)])
        self._tell(progress)

    def _progress(self, step: Step) -> Progress:
        found = step.progress()
        if found.saves_now is not None:
            self._backup.add([Entry(step.saves_as, found.saves_now)])
        return found

    def _require_consent(self, step: Step, asks: Sequence[str]) -> None:
        if asks and step.name not in self._options.acks:
            raise Waits(step.name, asks)

    @contextmanager
    def _recorded(self, step: Step, state: str) -> Iterator[None]:
        """Record how a step ends. Nothing is recorded of a step that had nothing to do and is recorded as finished."""
        try:
            yield
        except (Stopped, StoreError) as error:
            with suppress(Stopped, StoreError):  # the first error is reported; the next run finds the state in the cluster
                self._record.note(step.name, WAITING if isinstance(error, Waits | TimedOut) else FAILED)
            raise
        self._record.finish(step.name, state)


def _shown(look: Look) -> str:
    """Return the differences of a look, for an error."""
    found = [f"{name or 'object'}: {_value(before)} -> {_value(after)}" for name, before, after in look.changes]
    return "; ".join([*found[:_MAX_SHOWN], *([f"and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else [])])


def _value(value: Any) -> str:
    """Return a value of a field. A whole object, which was created or deleted, is only said to be there."""
    return "present" if isinstance(value, dict) and {"kind", "metadata"} <= value.keys() else repr(value)


def _shown_since(look: Look) -> str:
    """Return the differences of a look back from what the run has made, with what the user can do."""
    remedy = "bring that back to what the upgrade made of it, and run `svcctl upgrade undo` again"
    return f"since the upgrade: {_shown(look)}; {remedy}" if look.changes else ""
