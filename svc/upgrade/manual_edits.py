"""Edits that people and programs have made to the objects of a manifest since it was applied.

Three values decide about a field that another manager has set, and that the new manifest has as well:

* the new manifest has what the former one had: the edit is carried over. The field stays out of what svcctl applies, so that it
  still belongs to its manager.
* the new manifest has what the edit says: nothing is to be decided.
* otherwise, or if the former manifest is not known, the edit is in conflict. The new manifest wins if the user consents.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from svc.upgrade.adoption import entries, is_applier, own_fields
from svc.upgrade.field_sets import MISSING, Path, has, leaves, remove, show, value_at
from svc.upgrade.writer import MANAGER
from svc.values import dataclass

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """A field with its managers, and its values in the former manifest, in the cluster and in the new manifest."""

    path: Path
    managers: tuple[str, ...]
    base: Any
    live: Any
    new: Any

    @property
    def is_carried(self) -> bool:
        """Whether the new manifest has what the former one had."""
        return self.base is not MISSING and bool(self.base == self.new)

    def __str__(self) -> str:
        field, managers = show(self.path), ", ".join(self.managers)
        if self.is_carried:
            return f"{field} = {self.live!r}, set by {managers}, is carried over"
        former = "not known" if self.base is MISSING else repr(self.base)
        return f"{field} = {self.live!r}, set by {managers}; the manifest has {self.new!r}, the former one: {former}"


def find_edits(live: Json, applied: Json, base: Json | None) -> Iterator[Edit]:
    """Yield the fields that a forced apply would take from their managers. `applied` is the object as it would leave it."""
    others = [each for each in entries(live) if not is_applier(each) and each["manager"] != MANAGER]
    if not others:
        return
    for path in leaves(own_fields(applied)):
        managers = tuple(dict.fromkeys(each["manager"] for each in others if has(each["fieldsV1"], path)))
        before, after = value_at(live, path), value_at(applied, path)
        if managers and before is not MISSING and before != after:
            yield Edit(path, managers, MISSING if base is None else value_at(base, path), before, after)


def without_carried(document: Json, edits: Sequence[Edit]) -> Json:
    """Return the document without the fields whose edits are carried over."""
    found = copy.deepcopy(document)
    for edit in edits:
        if edit.is_carried:
            remove(found, edit.path)
    return found
