"""Steps of a run as its backup has them, to undo it without the manifest."""

from typing import Final

from svc.upgrade.backup import Backup
from svc.upgrade.bundle import Bundle
from svc.upgrade.etcd_access import uses_etcd
from svc.upgrade.etcd_procedure import NAME as ETCD
from svc.upgrade.etcd_steps import step_of
from svc.upgrade.node_turns import MARK, TURN, NodeTurn, turn_from
from svc.upgrade.object_step import ObjectStep
from svc.upgrade.owner_references import REMOVE, RESTORE
from svc.upgrade.procedures import special_steps
from svc.upgrade.run_record import Run
from svc.upgrade.sidecar_steps import FORMER_TEMPLATE, TEMPLATE, restart_of
from svc.upgrade.step import Step
from svc.upgrade.takeover_steps import RESTORER, RESTORER_END, restorer_place
from svc.upgrade.writer import Writer

_TELLING: Final = ("DaemonSet", "ConfigMap")  # kinds of objects that tell the datastore


def saved_steps(writer: Writer, run: Run, backup: Backup) -> list[Step]:
    """Return the steps that have saved an object, in the order of the run."""
    found: list[Step] = []
    special = special_steps(writer)
    make = step_of if _is_on_etcd(run, backup) else ObjectStep
    for name in _with_restorer(_names(run), backup):
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


def _is_on_etcd(run: Run, backup: Backup) -> bool:
    """Return whether the pods of the run pass by their agents alone. Without a record, the saved objects tell the datastore."""
    if run.procedure:
        return run.procedure == ETCD
    found = [each.saved.get("after") or each.saved.get("before") for each in backup.entries]
    kinds = {kind: [each for each in found if isinstance(each, dict) and each.get("kind") == kind] for kind in _TELLING}
    agents, configs = kinds.values()
    return any(uses_etcd(each, configs) for each in agents)


def _names(run: Run) -> list[str]:
    """Return the names of the steps. A lost record lacks the step that undoes a template first, because it saves nothing."""
    missing = [FORMER_TEMPLATE] if TEMPLATE in run.steps and FORMER_TEMPLATE not in run.steps else []
    return [*run.steps, *missing]


def _with_restorer(names: list[str], backup: Backup) -> list[str]:
    """Return the names with the steps of a takeover that save nothing as well."""
    turns = [name for name in names if name.startswith(TURN) and backup.of(name)]
    turn = turn_from(backup.of(turns[0])[-1]["turn"]) if turns else None
    if turn is None or turn.former != restorer_place(turn.agent):
        return names
    first = names.index(MARK) if MARK in names else names.index(turns[0])
    last = names.index(turns[-1]) + 1
    begin = [each for each in (RESTORER_END,) if each not in names]
    end = [each for each in (RESTORER,) if each not in names]
    return [*names[:first], *begin, *names[first:last], *end, *names[last:]]
