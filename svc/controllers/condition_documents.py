"""Conditions as the status of an object of Kubernetes has them."""

from collections.abc import Collection, Iterable
from typing import Any

from svc.controllers.conditions import Condition
from svc.timestamps import rfc3339

Json = dict[str, Any]


def documents(conditions: Iterable[Condition], before: Any, now: float, awaited: Collection[str] = ()) -> list[Json]:
    """Return the conditions, and those of `before` whose kinds are awaited, by kind.

    A condition whose status has not changed keeps the time of its last transition in `before`.
    """
    earlier = {each["type"]: each for each in _objects(before)}
    found = {kind: each for kind, each in earlier.items() if kind in awaited}
    for each in conditions:
        last = earlier.get(each.kind, {})
        time = last.get("lastTransitionTime") if last.get("status") == each.status else None
        found[each.kind] = {
            "type": each.kind,
            "status": each.status,
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": time or rfc3339(now),
        }
    return [found[kind] for kind in sorted(found)]


def _objects(value: Any) -> Iterable[Json]:
    """Return the conditions of a status. Leave out what is malformed."""
    found = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    return [each for each in found if isinstance(each.get("type"), str)]
