"""The status of an Installation: its conditions, the version that is in force, and the spec with every default."""

import time
from collections.abc import Sequence
from typing import Any, Final

from svc import __version__
from svc.timestamps import rfc3339
from svc.values import dataclass

Json = dict[str, Any]

READY, PROGRESSING, DEGRADED = "Ready", "Progressing", "Degraded"
ALL_AVAILABLE: Final = "AllObjectsAvailable"
NOTHING: Final = "nothing to report"  # an API server of release 1.20 refuses an empty message
MAX_MESSAGE: Final = 4096  # characters


@dataclass(frozen=True, slots=True)
class Findings:
    """What keeps an Installation from being ready: problems that an administrator must solve, and what only takes time.

    `reason` is one word for the problems."""

    problems: Sequence[str] = ()
    reason: str = ""
    pending: Sequence[str] = ()


def status_of(present: Json, findings: Findings, computed: Json | None) -> Json:
    """Return the status for an Installation as it is stored. None for `computed` keeps the earlier one."""
    before, generation = present.get("status") or {}, present["metadata"].get("generation", 0)
    is_ready = not findings.problems and not findings.pending
    conditions = [
        _condition(DEGRADED, findings.problems, findings.reason, generation),
        _condition(PROGRESSING, findings.pending, "ObjectsPending", generation),
        {**_condition(READY, (), "", generation), "status": "True", "reason": ALL_AVAILABLE}
        if is_ready
        else _not_ready(findings, generation),
    ]
    earlier = {each.get("type"): each for each in before.get("conditions") or () if isinstance(each, dict)}
    found = before | {"conditions": [_dated(each, earlier.get(each["type"])) for each in conditions]}
    found |= {} if computed is None else {"computed": computed}
    return found | ({"version": __version__} if is_ready else {})


def condition_of(present: Json, kind: str) -> Json:
    """Return a condition of a stored Installation; {} if it has none of this kind."""
    conditions = (present.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if isinstance(each, dict) and each.get("type") == kind), {})


def staleness(present: Json) -> str:
    """Return that the conditions are older than the last change of a stored Installation; empty if they are not."""
    ready = condition_of(present, READY)
    seen, latest = ready.get("observedGeneration", 0), present["metadata"].get("generation", 0)
    if not ready or seen >= latest:
        return ""
    wait = "wait for the operator, or use `svcctl installation apply`"
    return f"the conditions are of generation {seen}, and the resource has generation {latest}: {wait}"


def is_ready(present: Json) -> bool:
    """Return whether a stored Installation is ready as it is now, not as it was before its last change."""
    return bool(condition_of(present, READY).get("status") == "True" and not staleness(present))


def _condition(kind: str, causes: Sequence[str], reason: str, generation: int) -> Json:
    return {
        "type": kind,
        "status": "True" if causes else "False",
        "reason": reason if causes else "NotApplicable",
        "message": "; ".join(causes)[:MAX_MESSAGE] or NOTHING,
        "observedGeneration": generation,
    }


def _not_ready(findings: Findings, generation: int) -> Json:
    kind = DEGRADED if findings.problems else PROGRESSING
    causes = findings.problems or findings.pending
    return _condition(READY, causes, kind, generation) | {"status": "False"}


def _dated(condition: Json, before: Json | None) -> Json:
    """Return the condition with the time of its last transition."""
    is_same = before is not None and before.get("status") == condition["status"]
    since = before.get("lastTransitionTime") if before is not None and is_same else None
    return {**condition, "lastTransitionTime": since or rfc3339(time.time())}
