"""Steps of a run as its backup has them, to undo it without the manifest."""

from svc.upgrade.backup import Backup
from svc.upgrade.bundle import Bundle
from svc.upgrade.etcd_procedure import NAME as ETCD
from svc.upgrade.etcd_steps import step_of
from svc.upgrade.node_turns import MARK, TURN, NodeTurn, turn_from
from svc.upgrade.object_step import ObjectStep
from svc.upgrade.owner_references import REMOVE, RESTORE
from svc.upgrade.procedures import special_steps
from svc.upgrade.run_record import Run
from svc.upgrade.sidecar_steps import restart_of
from svc.upgrade.step import Step
from svc.upgrade.takeover_steps import RESTORER, RESTORER_END, restorer_place
from svc.upgrade.writer import Writer


def saved_steps(writer: Writer, run: Run, backup: Backup) -> list[Step]:
    """Return the steps that have saved an object, in the order of the run."""
    found: list[Step] = []
    special = special_steps(writer)
    make = step_of if run.procedure == ETCD else ObjectStep
    for name in _names(run, backup):
        if name in (REMOVE, RESTORE):
            continue
        if step := special.get(name) or restart_of(writer, name):
            found.append(step)
            continue
        if name.startswith(TURN):
            found.append(NodeTurn(writer, name))
            continue
        saved = backup.of(name)
        document = next((each[key] for each in reversed(saved) for key in ("after", "before") if each[key]), None)
        if document is not None:
            found.append(make(writer, document, Bundle([]), lambda _: None))
    return found


def _names(run: Run, backup: Backup) -> list[str]:
    """Return the names of the steps. Without its record, a takeover lacks those that save nothing."""
    names = list(run.steps)
    turns = [name for name in names if name.startswith(TURN) and backup.of(name)]
    turn = turn_from(backup.of(turns[0])[-1]["turn"]) if turns else None
    if turn is None or turn.former != restorer_place(turn.agent):
        return names
    first = names.index(MARK) if MARK in names else names.index(turns[0])
    last = names.index(turns[-1]) + 1
    begin = [each for each in (RESTORER_END,) if each not in names]
    end = [each for each in (RESTORER,) if each not in names]
    return [*names[:first], *begin, *names[first:last], *end, *names[last:]]
