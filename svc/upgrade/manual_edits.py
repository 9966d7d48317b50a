"""Edits that people and programs have made to the objects of a manifest since it was applied.

Three values decide about a field that another manager has set, and that the new manifest has as well:

* the new manifest has what the former one had: the edit is carried over. The field stays out of what svcctl applies, so that it
  still belongs to its manager.
* the new manifest has what the edit says: nothing is to be decided.
* otherwise, or if the former manifest is not known, the edit is in conflict. The new manifest wins if the user consents.

A field that was removed in the cluster is an edit as well, if an earlier run has recorded that the former manifest had it.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from svc.upgrade.adoption import entries, is_applier, own_fields
from svc.upgrade.field_sets import MISSING, Path, has, leaves, put, remove, show, value_at, wholes_of
from svc.upgrade.object_states import HIDDEN, SECRET
from svc.upgrade.writer import MANAGER
from svc.values import dataclass

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """A field with its managers, and its values in the former manifest, in the cluster and in the new manifest.

    MISSING stands for a field that is not there. `is_base_known` says whether the former manifest is known, `is_hidden` that no
    text may have the values."""

    path: Path
    managers: tuple[str, ...]
    base: Any
    live: Any
    new: Any
    is_base_known: bool = True
    is_hidden: bool = False

    @property
    def is_carried(self) -> bool:
        """Whether the new manifest has what the former one had."""
        return self.is_base_known and bool(self.base == self.new)

    def __str__(self) -> str:
        field, managers = show(self.path), ", ".join(self.managers)
        edit = f"{field} was removed" if self.live is MISSING else f"{field} = {self._shown(self.live)}, set by {managers}"
        if self.is_carried:
            return f"{edit}, stays out" if self.live is MISSING else f"{edit}, is carried over"
        former = self._shown(self.base) if self.is_base_known else "not known"
        return f"{edit}; the manifest has {self._shown(self.new)}, the former one: {former}"

    def _shown(self, value: Any) -> str:
        if value is MISSING:
            return "nothing"
        return HIDDEN if self.is_hidden else repr(value)


def find_edits(live: Json, applied: Json, base: Json | None, *, is_recorded: bool = False) -> Iterator[Edit]:
    """Yield the fields that a forced apply would take from their managers, or add again.

    `applied` is the object as it would leave it. A base that is recorded has the values as the server stores them."""
    others = [each for each in entries(live) if not is_applier(each) and each["manager"] != MANAGER]
    is_hidden = live.get("kind") == SECRET
    removed: set[Path] = set()
    for path in leaves(own_fields(applied)):
        before, after = value_at(live, path), value_at(applied, path)
        former = MISSING if base is None else value_at(base, path)
        if before is MISSING:
            at = _whole(path, live)
            if is_recorded and former is not MISSING and at not in removed:
                removed.add(at)
                yield Edit(at, (), value_at(base, at), MISSING, value_at(applied, at), is_hidden=is_hidden)
            continue
        managers = tuple(dict.fromkeys(each["manager"] for each in others if has(each["fieldsV1"], path)))
        if managers and before != after:
            yield Edit(path, managers, former, before, after, former is not MISSING, is_hidden)


def _whole(path: Path, live: Json) -> Path:
    """Return the path of the outermost object or item that is gone, with all that it had, as one edit.

    Its fields one by one could come back in part, such as the period of a probe without what it does."""
    return next(each for each in wholes_of(path) if value_at(live, each) is MISSING)


def without_carried(document: Json, edits: Sequence[Edit]) -> Json:
    """Return the document without the fields whose edits are carried over."""
    found = copy.deepcopy(document)
    for edit in edits:
        if edit.is_carried:
            remove(found, edit.path)
    return found


def with_carried(document: Json, edits: Sequence[Edit], live: Json) -> Json:
    """Return the document with the edits that are carried over: what will be there."""
    found = without_carried(document, edits)
    for edit in edits:
        if edit.is_carried and edit.live is not MISSING:
            put(found, edit.path, live)
    return found
