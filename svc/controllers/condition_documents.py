"""Conditions as the status of an object of Kubernetes has them."""

from collections.abc import Iterable
from typing import Any

from svc.controllers.conditions import Condition
from svc.timestamps import rfc3339

Json = dict[str, Any]


def documents(conditions: Iterable[Condition], before: Any, now: float) -> list[Json]:
    """Return the conditions. One whose status has not changed keeps the time of its last transition in `before`."""
    times = {(each.get("type"), each.get("status")): each.get("lastTransitionTime") for each in _objects(before)}
    return [
        {
            "type": each.kind,
            "status": each.status,
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": times.get((each.kind, each.status)) or rfc3339(now),
        }
        for each in conditions
    ]


def _objects(value: Any) -> Iterable[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
