"""Managers of the fields of an object that is brought back: each field belongs again to whom it belonged before the run.

A write makes what it changes a field of svcctl. The former manager's next server-side apply would then be in conflict with it.
"""

from collections.abc import Sequence
from typing import Any

from svc.upgrade.adoption import entries
from svc.upgrade.field_sets import Path, has, leaves, split, union
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


def managers_at(live: Json, paths: Sequence[Path]) -> list[Json]:
    """Return the managers of the fields at these paths and below, each with such fields alone."""
    found = [(each, split(each["fieldsV1"], paths)[0]) for each in entries(live)]
    return [each | {"fieldsV1": fields} for each, fields in found if fields]


def giving_back_at(live: Json, former: Sequence[Json], paths: Sequence[Path]) -> list[Json]:
    """Return the JSON patch that gives the fields at these paths back to what `managers_at` has returned before the run.

    It is empty if svcctl has none that another manager lacks. Fields elsewhere stay with the managers that have them now."""
    if not _is_lost(managers_at(live, paths), former):
        return []
    left = [_without(each, paths) for each in live["metadata"]["managedFields"]]
    value = joined([*(each for each in left if each["fieldsV1"]), *former])
    return [{"op": "replace", "path": "/metadata/managedFields", "value": value}]


def _is_lost(present: Sequence[Json], former: Sequence[Json]) -> bool:
    """Return whether svcctl has a field that a former manager lacks, also if both of them had it before."""
    own = {path for each in present if each["manager"] == MANAGER for path in leaves(each["fieldsV1"])}
    kept = {_identity(each): each["fieldsV1"] for each in present}
    others = ((_identity(each), path) for each in former if each["manager"] != MANAGER for path in leaves(each["fieldsV1"]))
    return any(path in own and not has(kept.get(identity, {}), path) for identity, path in others)


def joined(former: Sequence[Json]) -> list[Json]:
    """Return one entry for each manager."""
    found: dict[tuple[str, ...], Json] = {}
    for each in former:
        present = found.get(_identity(each), each)
        found[_identity(each)] = present | {"fieldsV1": union(present["fieldsV1"], each["fieldsV1"])}
    return [*found.values()]


def _without(entry: Json, paths: Sequence[Path]) -> Json:
    """Return an entry, which lacks these fields if it is that of svcctl."""
    is_own = entry["manager"] == MANAGER and entry.get("fieldsV1")
    return entry | {"fieldsV1": split(entry["fieldsV1"], paths)[1]} if is_own else entry


def _identity(entry: Json) -> tuple[str, ...]:
    return tuple(str(entry.get(field) or "") for field in ("manager", "operation", "apiVersion", "subresource"))


def _has_taken(live: Json, wanted: Sequence[Json]) -> bool:
    """Return whether svcctl owns a field that belonged to others alone."""
    found = (path for each in entries(live) if each["manager"] == MANAGER for path in leaves(each["fieldsV1"]))
    for path in found:
        owners = {each["manager"] for each in wanted if has(each["fieldsV1"], path)}
        if owners and MANAGER not in owners:
            return True
    return False
