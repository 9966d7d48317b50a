"""The steps of moves from one deployment to another, by name, to undo them without the inputs of their run."""

from svc.upgrade.former_steps import ACCOUNTS, WORKLOADS, HoldFormer, PauseControllers, RemoveFormer
from svc.upgrade.former_subjects import FormerSubjects
from svc.upgrade.node_turns import MarkNodes, UnmarkNodes
from svc.upgrade.pool_labels import PoolLabels
from svc.upgrade.step import Step
from svc.upgrade.takeover_steps import FormerControllers, PolicyAgent, Restorer, RestorerEnd
from svc.upgrade.writer import Writer


def move_steps(writer: Writer) -> dict[str, Step]:
    """Return the steps whose names do not depend on the cluster."""
    steps: list[Step] = [
        MarkNodes(writer),
        HoldFormer(writer),
        PauseControllers(writer),
        PoolLabels(writer),
        RemoveFormer(writer, WORKLOADS),
        FormerSubjects(writer),
        RemoveFormer(writer, ACCOUNTS),
        PolicyAgent(writer),
        RestorerEnd(writer),
        Restorer(writer),
        FormerControllers(writer),
        UnmarkNodes(writer),
    ]
    return {step.name: step for step in steps}
