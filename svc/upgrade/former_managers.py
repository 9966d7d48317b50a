"""Managers of the fields of an object that is brought back: each field belongs again to whom it belonged before the run.

A write makes what it changes a field of svcctl. The former manager's next server-side apply would then be in conflict with it.
"""

from collections.abc import Sequence
from typing import Any

from svc.upgrade.adoption import entries
from svc.upgrade.field_sets import has, leaves
from svc.upgrade.writer import MANAGER

Json = dict[str, Any]


def giving_back(live: Json, target: Json) -> list[Json]:
    """Return the JSON patch that gives fields back to their managers in `target`; empty if svcctl has none of them.

    What others own in parts such as the status stays as it is."""
    wanted = entries(target)
    if not _has_taken(live, wanted):
        return []
    own = entries(live)
    others = [each for each in live["metadata"]["managedFields"] if each not in own]
    return [{"op": "replace", "path": "/metadata/managedFields", "value": [*others, *wanted]}]


def _has_taken(live: Json, wanted: Sequence[Json]) -> bool:
    """Return whether svcctl owns a field that belonged to others alone."""
    found = (path for each in entries(live) if each["manager"] == MANAGER for path in leaves(each["fieldsV1"]))
    for path in found:
        owners = {each["manager"] for each in wanted if has(each["fieldsV1"], path)}
        if owners and MANAGER not in owners:
            return True
    return False
