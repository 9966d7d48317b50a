"""The engine: it plans, applies, verifies and undoes the steps of a procedure.

1. A step is done if its postcondition holds in the cluster. The record informs, and the backup restores.
2. Before the first write of a run, what its steps will change is saved.
3. A write that finds another state than was read makes the step look again, a limited number of times.
"""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Final

from svc.datastore.api import StoreError
from svc.upgrade.backup import Backup, Entry, runs_with_secrets
from svc.upgrade.canary import CANARY, remove
from svc.upgrade.client_versions import older
from svc.upgrade.datastore_procedure import is_reverse
from svc.upgrade.node_checks import CHECK
from svc.upgrade.object_states import digest
from svc.upgrade.outcomes import Blocked, Stopped, Unverified, Waits, stores_blocked
from svc.upgrade.owner_references import REMOVE, RESTORE, RemoveReferences, RestoreReferences, end_of
from svc.upgrade.plan import Plan, changes_since
from svc.upgrade.procedure import Procedure
from svc.upgrade.run_lease import RunLease
from svc.upgrade.run_record import DONE, PENDING, RUNNING, SKIPPED, UNDONE, WAITING, Run, RunRecord
from svc.upgrade.saved_steps import saved_steps
from svc.upgrade.step import Between, Look, Step
from svc.upgrade.step_runner import POLL_SECONDS, Options, StepRunner, Stop
from svc.upgrade.undo_order import undo_order
from svc.upgrade.writer import Writer
from svc.values import replace

Json = dict[str, Any]

SETTLE_SECONDS = 60.0  # for what follows the last step, such as the version that agents note
_DIGITS: Final = 8  # of the digest of the inputs in the name of a run
_APPLIED: Final = "applied:"  # begins the names of entries about objects that a run does not change


class Engine:
    """Runs on one cluster. `writer` may write while `lease` is held."""

    def __init__(self, writer: Writer, lease: RunLease, options: Options, stop: Stop) -> None:
        self._writer = writer
        self._lease = lease
        self._options = options
        self._stop = stop
        self._record = RunRecord(writer)
        self._between = Between()

    def plan(self, procedure: Procedure) -> Plan:
        """Return what a run would do. Write nothing."""
        with stores_blocked():
            backup = self._backup(procedure)
            return self._survey(procedure, backup)

    def apply(self, procedure: Procedure) -> bool:
        """Carry out all steps that are not done. Return whether there was something to do. Raise Stopped."""
        with stores_blocked():
            made = self.plan(procedure)
            self._name_unknown_acks(made)
            self._require(made)
            if self._is_finished(made):
                self._require_verified(procedure, made)
                return False
            with self._lease.held(self._writer.names):
                self._run(procedure)
            return True

    def verify(self, procedure: Procedure) -> Plan:
        """Return the plan if nothing is left of it. Raise Unverified with what is not as it should be."""
        with stores_blocked():
            made = self.plan(procedure)
            reasons = [*made.blockers, *_open(made), *self._behind(made.looks), *_unverified(procedure)]
            if reasons:
                raise Unverified(reasons)
            return made

    def undo(self) -> bool:
        """Undo the steps of the last run, the last one first. Return whether there was something to undo. Raise Stopped."""
        with stores_blocked():
            run = self._last_run()
            if run is None or run.state == UNDONE:
                return False
            with self._lease.held(self._writer.names):
                self._undo()
            return True

    def status(self) -> Run | None:
        """Return the last run, if one is recorded."""
        with stores_blocked():
            return self._record.load()

    def _run(self, procedure: Procedure) -> None:
        """Carry out a run, or the rest of one, under the Lease."""
        backup = self._backup(procedure)
        made = self._survey(procedure, backup)
        self._require(made)
        entries = [
            Entry(step.saves_as, entry)
            for step, look in made.open_steps
            if (entry := step.unsaved(look, backup.of(step.saves_as)))
        ]
        backup.publish()
        backup.add([*entries, *_unchanged(made, backup)])
        self._record.save(_begun(made, backup.run, self._record.run))
        backup.remove_others()
        runner = StepRunner(self._record, backup, self._options, self._stop)
        for step, _ in made.looks:
            runner.carry_out(step)
        self._end_removal(backup)
        self._settle(procedure)
        self._record.turn(DONE)

    def _undo(self) -> None:
        run = self._last_run()
        assert run is not None
        backup = Backup(self._writer, self._options.folder, run.name)
        backup.load()
        _require_backup(run, backup)
        middle = saved_steps(self._writer, run, backup)
        self._between.is_pending = any(not step.look_back(backup.of(step.saves_as)).is_done for step in middle)
        self._record.save(replace(run, state=RUNNING))
        self._remove_pods()
        runner = StepRunner(self._record, backup, self._options, self._stop)
        for step in undo_order(self._around(middle), backup.of):
            runner.undo(step)
        self._end_removal(backup)
        self._record.turn(UNDONE)

    def _end_removal(self, backup: Backup) -> None:
        """Note that the references which were removed are restored."""
        if entry := end_of(self._writer, backup.of(REMOVE)):
            backup.add([Entry(REMOVE, entry)])

    def _last_run(self) -> Run | None:
        """Return the run of the record; without a record, the last one that has a backup in the cluster."""
        run = self._record.load()
        names = runs_with_secrets(self._writer) if run is None else []
        if not names:
            return run
        backup = Backup(self._writer, self._options.folder, names[-1])
        backup.load()
        known = (each.step for each in backup.entries if not each.step.startswith(_APPLIED))
        return Run(names[-1], "", "", "", {}, RUNNING, dict.fromkeys(known, PENDING))

    def _survey(self, procedure: Procedure, backup: Backup) -> Plan:
        """Look at each step; at the references last, because they matter only if something else is to be done."""
        findings = procedure.findings()
        if findings.blockers:
            return Plan(procedure.name, procedure.inputs, findings, ())
        middle = procedure.steps(lambda step: self._former(backup, step))
        found = {step.name: (step, self._look(step, backup)) for step in middle}
        self._between.is_pending = any(not look.is_done for _, look in found.values())
        looks = [found[step.name] if step.name in found else (step, self._look(step, backup)) for step in self._around(middle)]
        return Plan(procedure.name, procedure.inputs, findings, looks if found else ())

    def _former(self, backup: Backup, step: str) -> Json | None:
        """Return what was applied to an object last: by this run if it has ended the step, else before it."""
        run = self._record.run
        if saved := backup.of(step):
            is_ended = run is not None and run.name == backup.run and run.steps.get(step) == DONE
            return _applied(saved[-1]) if is_ended else saved[-1].get("base")
        if saved := backup.of(_APPLIED + step):
            return _applied(saved[-1])
        saved = backup.of_former(step)
        if saved and run is not None and run.state == UNDONE:
            return saved[-1].get("base")
        saved = saved or backup.of_former(_APPLIED + step)
        return _applied(saved[-1]) if saved else None

    def _look(self, step: Step, backup: Backup) -> Look:
        self._stop.check()
        return step.look(backup.of(step.saves_as))

    def _around(self, middle: Sequence[Step]) -> list[Step]:
        """Return the steps between the removal of references and their restoration."""
        return [RemoveReferences(self._writer, self._between), *middle, RestoreReferences(self._writer, self._between)]

    def _backup(self, procedure: Procedure) -> Backup:
        """Return the backup of the run that is continued, else an empty one. Raise Blocked if another run is not finished.

        A run that was undone is not continued: the state of before the next one may be another."""
        run, suffix = self._record.load(), digest(procedure.inputs)[:_DIGITS]
        others = run is not None and run.inputs != procedure.inputs and not is_reverse(run.inputs, procedure.inputs)
        if run is not None and run.is_open and others:
            raise Blocked(
                [f"the run {run.name} is not finished, and had other inputs"],
                details="finish it with its own manifest, or undo it: `svcctl upgrade undo`",
            )
        known = [run.name] if run is not None else [each for each in runs_with_secrets(self._writer) if each.endswith(suffix)]
        same = [name for name in known if name.endswith(suffix) and (run is None or run.state != UNDONE)]
        backup = Backup(self._writer, self._options.folder, same[-1] if same else _new_name(suffix))
        if same:
            backup.load()
        elif run is not None:
            backup.follow(run.name)
        return backup

    def _name_unknown_acks(self, made: Plan) -> None:
        known = {step.name for step, _ in made.looks}
        for name in sorted(self._options.acks - known) if known else ():
            self._options.say(f"note: --ack {name} names no step of this run")

    def _require(self, made: Plan) -> None:
        """Raise Blocked or Waits if the run may not begin."""
        if made.blockers:
            raise Blocked(made.blockers)
        if self._options.plan is not None and (changes := list(changes_since(self._options.plan, made.to_json()))):
            raise Blocked(changes, details="make a new plan, and look at it: `svcctl upgrade plan --out FILE`")
        for step, look in made.open_steps:
            if look.asks and step.name not in self._options.acks:
                raise Waits(step.name, look.asks)

    def _is_finished(self, made: Plan) -> bool:
        run = self._record.run
        return not made.open_steps and not self._behind(made.looks) and (run is None or not run.is_open)

    def _behind(self, looks: Sequence[tuple[Step, Look]]) -> list[str]:
        """Return what the cluster has not followed yet."""
        return [text for step, look in looks if look.is_done for text in step.progress().reasons]

    def _settle(self, procedure: Procedure) -> None:
        """Wait until the result is as it should be. Raise Unverified if it is not in time."""
        until = time.monotonic() + min(SETTLE_SECONDS, self._options.timeout)
        while reasons := _unverified(procedure):
            if time.monotonic() > until:
                raise Unverified(reasons)
            self._stop.pause(POLL_SECONDS)
        if reasons := self._prove(procedure):
            raise Unverified(reasons)
        made = self._survey(procedure, self._backup(procedure))
        if left := [*made.blockers, *_open(made), *self._behind(made.looks)]:
            raise Unverified(left)

    def _prove(self, procedure: Procedure) -> list[str]:
        """Return why what was upgraded does not work. Leave no pod of the proof behind if it is broken off."""
        try:
            return procedure.prove(self._stop.pause)
        except (KeyboardInterrupt, Stopped, StoreError):
            with self._stop.put_off(), suppress(Stopped, StoreError):  # the next run and undo remove them as well
                self._remove_pods()
            raise

    def _remove_pods(self) -> None:
        """Delete the pods of proofs."""
        for place in (CANARY, CHECK):
            remove(self._writer, place)

    def _require_verified(self, procedure: Procedure, made: Plan) -> None:
        if reasons := [*self._behind(made.looks), *_unverified(procedure)]:
            raise Unverified(reasons)


def _unverified(procedure: Procedure) -> list[str]:
    """Return what is not as it should be after the last step, and the programs that do not know what has changed."""
    return [*procedure.unverified(), *older(os.environ.get("PATH", ""))]


def _begun(made: Plan, name: str, before: Run | None) -> Run:
    """Return the run at its begin. Steps that an interrupted run has finished keep their state."""
    same = before if before is not None and before.name == name else None
    known = same.steps if same is not None else {}
    states = {step.name: known.get(step.name, SKIPPED) if look.is_done else PENDING for step, look in made.looks}
    source = same.source if same is not None else made.findings.source
    noted = same.noted if same is not None else made.findings.noted
    return Run(name, made.procedure, source, made.findings.target, made.inputs, RUNNING, _joined(known, states), noted)


def _joined(known: Mapping[str, str], states: Mapping[str, str]) -> dict[str, str]:
    """Return the states, and those of steps that have written and are not found any more: undoing needs them in place."""
    order, last = list(states), 0
    for name in known:
        if name in states:
            last = order.index(name) + 1
        elif known[name] not in (PENDING, SKIPPED):
            order.insert(last, name)
            last += 1
    return {name: states.get(name) or known[name] for name in order}


def _require_backup(run: Run, backup: Backup) -> None:
    """Raise Blocked if a run has done something, and nothing of what it has saved is there."""
    if not backup.entries and any(state in (RUNNING, WAITING, DONE) for state in run.steps.values()):
        reason = f"the backup of run {run.name} is gone: its Secrets were deleted, and this machine has no copy"
        raise Blocked([reason], details="run undo on the machine where the run began, with the same --state-dir")


def _new_name(suffix: str) -> str:
    now = datetime.now(timezone.utc).strftime("%Y%m%dt%H%M%S")
    return f"{now}-{secrets.token_hex(2)}-{suffix}"


def _unchanged(made: Plan, backup: Backup) -> list[Entry]:
    """Return what the manifest says of objects that the run does not change: the next run finds edits by it."""
    found = {step.saves_as: look.content["applied"] for step, look in made.looks if look.is_done and "applied" in look.content}
    new = (name for name in found if not backup.of(name) and not backup.of(_APPLIED + name))
    return [Entry(_APPLIED + name, {"after": found[name]}) for name in new]


def _applied(entry: Json) -> Json | None:
    """Return the object of an entry as its manifest has it, without the edits that were carried over."""
    found: Json | None = entry.get("applied") or entry.get("after")
    return found


def _open(made: Plan) -> list[str]:
    return [f"{step.name} is not as the manifest says" for step, _ in made.open_steps if step.name not in (REMOVE, RESTORE)]
