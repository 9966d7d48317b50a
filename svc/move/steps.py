"""The steps of a move, in their order: each can be repeated, also after a kill, and continues what is there.

`marks.lock`, `marks.wait_for_calls`, `export_at_one_revision`, `admit`, `import_`, `move_endpoints`, `require_equal`,
`enable_pools`, `finish`. Until `finish`, `undo` deletes what was imported and unlocks the source. When `marks.has_arrived`, the
move has ended, and the target is in use.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import orjson

from svc.admin.ipam_check.observation import Place
from svc.admin.resources import CLUSTER, NODE, POOL, READY
from svc.datastore.api import StoreError
from svc.ipam.errors import shortened
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.errors import CallerError, Code
from svc.model.keys import Key, ResourceKey, ResourceQuery, describe
from svc.model.kv_codec import Value
from svc.model.resource import Resource
from svc.move import endpoints, file, marks, own_nodes, snapshot
from svc.move.convert import (
    Form,
    cluster_spec,
    comparable,
    comparable_disabled,
    converted,
    disabled,
    in_order,
    moves,
    with_identity,
)
from svc.move.endpoints import Report
from svc.move.marks import ARRIVED, ARRIVING, LEAVING, LEFT, Mark
from svc.move.nodes import between
from svc.move.snapshot import Snapshot
from svc.move.writing import CONNECTIONS, Writer, read
from svc.names import Names
from svc.values import replace

Documents = Mapping[Key, Value]


def export_at_one_revision(source: Place) -> Snapshot:
    """Return all documents of the source at one revision. Raise StoreError if it keeps changing."""
    return snapshot.take(source)


def form_of(documents: Documents, target: Place) -> Form:
    """Return the form of the documents in the target. Raise StoreError if nodes would get the same name."""
    nodes = [entry.value for entry in target.backend.list(ResourceQuery(NODE))]
    names = between(target.names, _nodes(documents), nodes)
    return Form(target.names, names, target.pods_are_endpoints)


def _nodes(documents: Documents) -> list[Resource]:
    return [value for value in documents.values() if isinstance(value, Resource) and value.kind == NODE]


def write_file(source: Place, taken: Snapshot, path: Path) -> str:
    """Write an export to a file; return its digest. Raise CallerError if that is not possible."""
    info = taken.decoded(source.names).get(CLUSTER)
    cluster = str(info.spec.get("clusterGUID") or "") if isinstance(info, Resource) else ""
    header = file.header_of(source.names, cluster, snapshot.kind_of(source), taken.revision)
    return file.write(path, header, taken)


def admit(source: Place, target: Place, run: str, archive: Path | None = None) -> None:
    """Lock and mark the target for this run. If it is the predecessor of the source, write its content to the archive first.

    Without an archive, the caller has saved it. Raise CallerError if the target is neither empty nor the predecessor, nor that
    of this run."""
    info = marks.present(source)
    if info is None:
        raise marks.not_initialised(source)
    begin(target, info, Mark(run, ARRIVING, source.backend.place), archive)


def begin(target: Place, source_info: Resource, mark: Mark, archive: Path | None) -> None:
    """Lock and mark the target for the content of a source with this ClusterInformation. See `admit`."""
    present = marks.present(target)
    own = marks.mark_of(target.names, present)
    if own and own.run == mark.run and own.state in (ARRIVING, ARRIVED):
        return
    if own is not None and marks.is_predecessor(source_info, target):
        if archive is not None:
            write_file(target, snapshot.take(target), archive)
        mark = replace(mark, before=own.run)
    else:
        require_empty(target)
        mark = replace(mark, former=orjson.dumps(present.spec).decode() if present else "")
    form = Form(target.names, between(target.names, (), ()), target.pods_are_endpoints)
    spec = cluster_spec(form, source_info.spec)

    def wanted(info: Resource | None) -> Resource:
        if marks.mark_of(target.names, info) != own:
            raise marks.locked_by_others(target, marks.mark_of(target.names, info))
        made = info or with_identity(form, marks.with_mark(target.names, source_info, None, {}))
        return marks.with_mark(target.names, replace(made, spec=spec), mark, {})

    marks.change(target, wanted)
    if not mark.before:
        _require_still_empty(target, mark)


def _require_still_empty(target: Place, mark: Mark) -> None:
    """Remove the mark, and raise CallerError, if another program has written to the target before it was locked."""
    try:
        _require_no_content(target)
    except CallerError:
        marks.change(target, partial(_without_run, target.names, mark))
        raise


def _require_no_content(target: Place) -> None:
    if found := contents_of(target):
        listed = ", ".join(shortened(found))
        details = "name an empty one; delete what is not needed, or undo the run that wrote it"
        raise CallerError(f"{target.backend.place} is not empty: it has {listed}", details=details, code=Code.DATASTORE)


def require_empty(target: Place) -> None:
    """Raise CallerError if the target has documents, other than ClusterInformation and Nodes."""
    _require_no_content(target)
    mark = marks.mark_of(target.names, marks.present(target))
    if mark is not None:
        raise marks.locked_by_others(target, mark)


def contents_of(target: Place) -> list[str]:
    """Return the objects in a target that should be empty."""
    found = [describe(key) for key in read(target)]
    if target.pods_are_endpoints:
        return found
    return found + [describe(entry.key) for entry in target.backend.list(ResourceQuery(ENDPOINT))]


def import_(documents: Documents, target: Place, connections: int = CONNECTIONS) -> None:
    """Make the target equal to the documents, with its pools disabled. Raise StoreError; repeat it then.

    Other documents there are deleted, so the target must have the mark of a move."""
    _require_arriving(target)
    form = form_of(documents, target)
    wanted = converted(form, documents)
    _require_distinct(wanted, documents)
    present, writer = read(target), Writer(form, target, connections, partial(comparable_disabled, form))
    writer.write([(key, disabled(value)) for key, value in in_order(wanted)], present)
    writer.delete([entry for key, entry in present.items() if key not in wanted])
    own_nodes.move(form, documents, target)


def _require_arriving(target: Place) -> None:
    info = marks.present(target)
    mark = marks.mark_of(target.names, info)
    if info is None or mark is None or mark.state != ARRIVING or not marks.is_locked(info):
        details = "begin the move again: what is there is not deleted"
        raise StoreError(f"{target.backend.place} is not the locked target of a move", details=details)


def _require_distinct(wanted: Documents, documents: Documents) -> None:
    if len(wanted) != len(converted_keys(documents)):
        raise StoreError("documents would get the same key in the target", details="see the blockers of the preflight")


def converted_keys(documents: Documents) -> list[Key]:
    """Return the keys of the documents that are copied."""
    return [key for key in documents if moves(key)]


def move_endpoints(documents: Documents, target: Place, connections: int = CONNECTIONS) -> Report:
    """Write the endpoints of pods that still exist, and remove others. Raise StoreError; repeat it then."""
    _require_arriving(target)
    return endpoints.move(form_of(documents, target), documents, target, connections)


def compare(documents: Documents, target: Place) -> list[str]:
    """Return the objects that differ between the documents and the target, whether its pools are enabled or not."""
    return differing_documents(documents, target) + differing_endpoints(documents, target)


def differing_documents(documents: Documents, target: Place) -> list[str]:
    """Return what `compare` does, without endpoints."""
    form = form_of(documents, target)
    wanted, present = converted(form, documents), read(target)
    found = [
        describe(key)
        for key, value in wanted.items()
        if key not in present or comparable_disabled(form, key, present[key].value) != comparable_disabled(form, key, value)
    ]
    found += [describe(key) for key in present if key not in wanted]
    return found + own_nodes.compare(form, documents, target)


def differing_endpoints(documents: Documents, target: Place) -> list[str]:
    """Return the endpoints that `compare` returns."""
    return endpoints.compare(form_of(documents, target), documents, target)


def require_equal(documents: Documents, target: Place) -> None:
    """Raise StoreError if the target differs from the documents."""
    if found := compare(documents, target):
        listed = ", ".join(shortened(found))
        details = "another program writes to one of the datastores: stop it, then repeat the import"
        raise StoreError(f"{len(found)} objects differ between source and target: {listed}", details=details)


def enable_pools(documents: Documents, target: Place) -> None:
    """Enable the pools that are enabled in the documents. Raise StoreError if their state cannot be written."""
    form = form_of(documents, target)
    present = {entry.key: entry for entry in target.backend.list(ResourceQuery(POOL))}
    Writer(form, target, 1).write(list(_pools(form, documents).items()), present)


def differing_pools(documents: Documents, target: Place) -> list[str]:
    """Return the names of the pools in the documents that are not equal in the target."""
    form = form_of(documents, target)
    present = {entry.key: entry.value for entry in target.backend.list(ResourceQuery(POOL))}
    wanted = {key: comparable(form, key, value) for key, value in _pools(form, documents).items()}
    same = [key for key, value in present.items() if key in wanted and comparable(form, key, value) == wanted[key]]
    return sorted(key.name for key in wanted.keys() - same if isinstance(key, ResourceKey))


def _pools(form: Form, documents: Documents) -> Documents:
    pools = {key: value for key, value in documents.items() if isinstance(value, Resource) and value.kind == POOL}
    return converted(form, pools)


def finish(source: Place, target: Place, run: str) -> None:
    """Mark the source with its successor, then unlock the target. The source stays locked."""
    marks.leave(source, run)
    marks.arrive(source, target, run)


def undo(source: Place, target: Place, run: str, archive: Path) -> None:
    """Delete what this run has imported, or restore the archive of a predecessor, and unlock the source.

    Raise CallerError if the source has left: then the move back is a move of its own."""
    info = marks.present(source)
    mark = marks.mark_of(source.names, info)
    if mark and mark.run == run and mark.state == LEFT:
        details = "move it back: a move from the target to the source"
        raise CallerError(f"the content of {source.backend.place} has moved", details=details, code=Code.DATASTORE_LOCKED)
    empty(target, run, archive)
    unlock(source, run)


def unlock(source: Place, run: str) -> None:
    """Unlock a source that this run has locked and that has not left."""
    mark = marks.mark_of(source.names, marks.present(source))
    if mark and mark.run == run and mark.state == LEAVING:
        _unlock(source, mark)


def _unlock(source: Place, mark: Mark) -> None:
    """Unlock a source whose run was undone. If an earlier move had filled it, it has that mark again."""
    earlier = Mark(mark.before, ARRIVED, mark.other) if mark.before else None

    def unlocked(info: Resource | None) -> Resource | None:
        if info is None or marks.mark_of(source.names, info) != mark:
            return info
        return marks.with_mark(source.names, info, earlier, {READY: True})

    marks.change(source, unlocked)


def empty(target: Place, run: str, archive: Path) -> None:
    """Delete what this run has written to the target; restore the content of a predecessor."""
    info = marks.present(target)
    mark = marks.mark_of(target.names, info)
    if mark is None or mark.run != run or mark.state != ARRIVING:
        return
    if mark.before:
        _restore(target, mark, file.read(archive, target.names).snapshot.decoded(target.names))
        return
    form = Form(target.names, between(target.names, (), ()), target.pods_are_endpoints)
    endpoints.move(form, {}, target)
    own_nodes.clear(target)
    Writer(form, target).delete(list(read(target).values()))
    marks.change(target, partial(_without_run, target.names, mark))


def _without_run(names: Names, mark: Mark, info: Resource | None) -> Resource | None:
    """Return ClusterInformation as it was before the run with this mark; None if it did not exist."""
    if info is None or marks.mark_of(names, info) != mark:
        return info
    return marks.with_mark(names, replace(info, spec=orjson.loads(mark.former)), None, {}) if mark.former else None


def _restore(target: Place, mark: Mark, documents: Documents) -> None:
    """Make the content of a predecessor equal to its archive, ClusterInformation last."""
    info = documents.get(CLUSTER)
    before = marks.mark_of(target.names, info) if isinstance(info, Resource) else None
    if not isinstance(info, Resource) or before is None or (before.run, before.state) != (mark.before, LEFT):
        raise CallerError("the archive is not that of this target", details="give the one that this run has written")
    form = Form(target.names, between(target.names, (), ()), target.pods_are_endpoints)
    present, writer = read(target), Writer(form, target)
    kept = {key: documents[key] for key in converted_keys(documents)}
    writer.write(list(in_order(kept)), present)
    writer.delete([entry for key, entry in present.items() if key not in kept])
    endpoints.move(form, documents, target)
    own_nodes.restore(form, documents, target)
    marks.change(target, lambda found: info if marks.mark_of(target.names, found) == mark else found)
