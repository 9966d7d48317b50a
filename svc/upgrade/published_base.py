"""Edits that were made in a manifest before it was applied: the manifest as it was published tells them.

`kubectl apply` and svcctl note the manifest that they get. What a user has changed in that file is a part of it, and looks like
a field of the release. Three states show such edits by comparison, under each manager of the fields: the published manifest of
the former release, the cluster, and the new manifest. The server completes both manifests, with the same defaults.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeGuard

from svc.deploy.server_apply import DEFINITION
from svc.names import Names
from svc.upgrade.adoption import entries, is_adopted, own_fields
from svc.upgrade.field_sets import MISSING, Path, has, leaves, value_at, wholes_of
from svc.upgrade.manual_edits import Edit
from svc.upgrade.object_states import SECRET, written_annotations
from svc.upgrade.outcomes import Rejected
from svc.upgrade.writer import Cluster

Json = dict[str, Any]

_PROBE: Final = "svc-upgrade-probe"  # the name under which the server completes what a manifest says
_UNCOMPARED: Final = (DEFINITION, SECRET)  # the name of a definition is fixed, and the entries of a Secret are carried anyway


def is_comparable(published: Json | None, document: Json) -> TypeGuard[Json]:
    """Return whether a published document tells edits of the object of the new one."""
    is_same = published is not None and published["apiVersion"] == document["apiVersion"]
    return is_same and document["kind"] not in _UNCOMPARED


def compared(cluster: Cluster, live: Json, applied: Json, document: Json, published: Json) -> list[Edit]:
    """Return the fields in which the cluster differs from the published and from the new manifest."""
    base, new = _completed(cluster, published), _completed(cluster, document)
    found = list(_edits(live, applied, base, new, cluster.names))
    return [each for each in found if not _is_allocated(each, published, document)]


def _completed(cluster: Cluster, document: Json) -> Json:
    """Return a document with the defaults of the server; as it is, if the server does not take it under another name.

    Raise Blocked if the server has not judged it: without its defaults, each of them would count as an edit."""
    try:
        return cluster.dry_create(document | {"metadata": document["metadata"] | {"name": _PROBE}})
    except Rejected:
        return document


def _edits(live: Json, applied: Json, base: Json, new: Json, names: Names) -> Iterator[Edit]:
    own, written = own_fields(applied), {("f:metadata", "f:annotations", f"f:{name}") for name in written_annotations(names)}
    of_appliers = [each["fieldsV1"] for each in entries(live) if is_adopted(each, live["apiVersion"])]
    known: set[Path] = set()
    for path in (leaf for fields in (own, own_fields(live), *of_appliers) for leaf in leaves(fields)):
        at = _place(path, live, base, new)
        if at in known or path in written:
            continue
        known.add(at)
        was, is_, becomes = (value_at(each, at) for each in (base, live, new))
        if is_ not in (was, becomes):
            yield Edit(at, _managers(live, at), was, is_, becomes)


def _place(path: Path, live: Json, base: Json, new: Json) -> Path:
    """Return the path of the outermost object or item that was added or removed as a whole, else the path itself."""
    for whole in wholes_of(path):
        if [value_at(each, whole) is MISSING for each in (live, base, new)] in ([True, False, False], [False, True, True]):
            return whole
    return path


def _managers(live: Json, path: Path) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each["manager"] for each in entries(live) if has(each["fieldsV1"], path)))


def _is_allocated(edit: Edit, published: Json, document: Json) -> bool:
    """Return whether the server chooses the value for each object, as the address of a Service."""
    is_unnamed = all(value_at(each, edit.path) is MISSING for each in (published, document))
    return is_unnamed and edit.base is not MISSING and edit.base != edit.new
