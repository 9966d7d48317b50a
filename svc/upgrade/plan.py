"""Plans: what a run finds and would do. A plan is a document; two plans of an unchanged cluster are equal."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from svc.upgrade.procedure import Findings
from svc.upgrade.step import PARTS, Look, Step
from svc.values import dataclass

Json = dict[str, Any]

_DONE: Final = "done"
_COMPARED: Final = ("procedure", "inputs", "target")


@dataclass(frozen=True, slots=True)
class Plan:
    """Findings, and each step with what it finds."""

    procedure: str
    inputs: dict[str, str]
    findings: Findings
    looks: Sequence[tuple[Step, Look]]

    @property
    def blockers(self) -> list[str]:
        """Everything that forbids the run."""
        return [*self.findings.blockers, *(text for _, look in self.looks for text in look.blockers)]

    @property
    def open_steps(self) -> list[tuple[Step, Look]]:
        """The steps that have something to do."""
        return [(step, look) for step, look in self.looks if not look.is_done]

    def to_json(self) -> Json:
        """Return the document."""
        return {
            "procedure": self.procedure,
            "inputs": self.inputs,
            "source": self.findings.source,
            "target": self.findings.target,
            "found": self.findings.found,
            "steps": [_step(step, look) for step, look in self.looks],
            "blockers": self.blockers,
        }


def changes_since(plan: Json, now: Json) -> Iterator[str]:
    """Yield a sentence for each thing that is not as in a plan. A step that has nothing to do now is as planned."""
    for name in _COMPARED:
        if plan.get(name) != now[name]:
            yield f"{name} is {now[name]!r}, and {plan.get(name)!r} in the plan"
    if now["source"] not in (plan.get("source"), plan.get("target")):
        yield f"the cluster has version {now['source']!r}, and {plan.get('source')!r} in the plan"
    planned = {step["name"]: step for step in plan.get("steps") or ()}
    for step in now["steps"]:
        before = planned.pop(step["name"], None)
        if before is None:
            yield f"step {step['name']} is not in the plan"
        elif _is_open(step) and not before.get("unverified") and not _is_as_planned(step, before):
            yield f"{step['name']} was changed since the plan was made"
    yield from (f"step {name} is only in the plan" for name in planned)


def _is_open(step: Json) -> bool:
    return bool(step["state"] != _DONE)


def _is_as_planned(step: Json, before: Json) -> bool:
    """Return whether a step finds what the plan found, or a part of it if an interrupted run has done the rest."""
    if step["before"] == PARTS:
        return all(each in before["changes"] for each in step["changes"])
    return step["before"] in (before["before"], before["after"])


def _step(step: Step, look: Look) -> Json:
    return {
        "name": step.name,
        "state": _DONE if look.is_done else "to do",
        "unverified": look.unverified,
        "changes": [{"field": field, "before": before, "after": after} for field, before, after in look.changes],
        "destroys": step.destroys,
        "can be undone": step.can_undo,
        "notes": list(look.notes),
        "asks": list(look.asks),
        "before": look.before,
        "after": look.after,
    }
