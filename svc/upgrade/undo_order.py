"""The order in which the steps of a run are undone."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from svc.upgrade.bundle import WORKLOADS
from svc.upgrade.object_step import ObjectStep, origin
from svc.upgrade.step import Step

Json = dict[str, Any]
Saved = Callable[[str], Sequence[Json]]
"""Return the entries of the backup for a step."""

_SETTINGS: Final = ("ConfigMap", "Secret")


def undo_order(steps: Sequence[Step], saved: Saved) -> list[Step]:
    """Return the steps, the last one first. Settings that are restored come before the first workload that is restored.

    The pods of a workload that comes back read them when they start. Settings that the run has created stay until the workloads
    that read them have gone back."""
    back = list(reversed(steps))
    first = next((index for index, step in enumerate(back) if _restores(step, WORKLOADS, saved)), len(back))
    settings = [step for step in back[first:] if _restores(step, _SETTINGS, saved)]
    return [*back[:first], *settings, *(step for step in back[first:] if step not in settings)]


def _restores(step: Step, kinds: Sequence[str], saved: Saved) -> bool:
    """Return whether undoing a step restores an object of one of these kinds, which was there before the run."""
    entries = saved(step.saves_as) if isinstance(step, ObjectStep) and step.place.kind in kinds else ()
    return bool(entries) and origin(entries) is not None
