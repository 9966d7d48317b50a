"""Changes of objects of several kinds: worked out and checked together, shown, and written.

All errors are found before the first write. A store with transactions gets all writes of a call in one, up to its limit.
Another store gets them in the order of the objects, and the error of an interrupted call names those that were changed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from svc.admin.field_changes import SHOWN, FieldChange, field_changes
from svc.admin.kind import Kind, full_name, namespace_problem
from svc.admin.objects import Stored, find_all
from svc.admin.resources import CLUSTER, CREATED, READY, UNCHANGED, UPDATED, retry
from svc.datastore.api import MAX_WRITES, Backend, Check, Create, Entry, Update
from svc.model.errors import CallerError, Code, SvcError
from svc.model.resource import Resource, name_error, new_uid, ordered, set_identity
from svc.values import dataclass, replace

Json = dict[str, Any]
_UNCHANGED: Final = "nothing was changed"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object to create or change. `change` returns what it becomes; `place` opens its errors.

    If `revision` is not empty, the stored object must have it."""

    kind: Kind
    resource: Resource
    change: Callable[[Resource | None], Resource]
    place: str = ""
    revision: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        return self.kind.name, full_name(self.resource)


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of an object. `write` is None if it stays as it is."""

    wanted: Wanted
    before: Resource | None
    after: Resource
    write: Create | Update | None

    @property
    def outcome(self) -> str:
        return UNCHANGED if self.write is None else CREATED if self.before is None else UPDATED

    def fields(self) -> list[FieldChange]:
        """Return the labels, annotations and fields of `spec` that differ, in the order of their paths."""
        return field_changes(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Options:
    """How objects are applied. With `create`, none may exist; with `replace`, all must. A locked datastore is refused unless
    `while_locked`."""

    now: datetime
    create: bool = False
    replace: bool = False
    while_locked: bool = True


def applied(kind: Kind, resource: Resource, place: str = "", revision: str = "") -> Wanted:
    """Return the application of a document: its metadata and fields are set, and what it does not mention stays."""

    def change(present: Resource | None) -> Resource:
        wanted = kind.complete(resource)
        if present is None:
            return replace(wanted, metadata=dict(wanted.metadata))
        kept = {name: value for name, value in present.spec.items() if name not in kind.own and name not in wanted.spec}
        return replace(present, metadata=ordered(present.metadata | wanted.metadata), spec=wanted.spec | kept)

    return Wanted(kind, resource, change, place, revision)


def replaced(each: Wanted) -> Wanted:
    """Return the replacement of an object: what its document does not mention is removed, except what a datastore sets."""

    def change(present: Resource | None) -> Resource:
        wanted = each.kind.complete(each.resource)
        if present is None:
            return each.change(None)
        identity = {name: value for name, value in present.metadata.items() if name not in SHOWN}
        return replace(present, metadata=ordered(identity | wanted.metadata), spec=wanted.spec)

    return replace(each, change=change)


def plan(backend: Backend, wanted: Sequence[Wanted], options: Options) -> list[Change]:
    """Return the changes, in the same order; write nothing. Raise CallerError with every error of every object."""
    stored = find_all(backend, [(each.kind, each.resource) for each in wanted])
    problems = _problems(backend, wanted, stored, options)
    raise_problems(problems, wanted[0].kind.code if wanted else Code.INVALID_NETCONF)
    return [_change(each, present, options.now) for each, present in zip(wanted, stored, strict=True)]


def preview(backend: Backend, wanted: Sequence[Wanted], options: Options) -> list[Change]:
    """Return what `apply` would do. Raise as it does."""
    if not options.while_locked:
        require_unlocked(backend.find(CLUSTER), wanted)
    return plan(backend, wanted, options)


def find_problems(backend: Backend, wanted: Sequence[Wanted], options: Options) -> list[str]:
    """Return every error that `plan` would raise."""
    return _problems(backend, wanted, find_all(backend, [(each.kind, each.resource) for each in wanted]), options)


def apply(backend: Backend, wanted: Sequence[Wanted], options: Options) -> list[Change]:
    """Create or change the objects durably; return what was done to each. Raise as `plan` does, StoreError.

    If others change the objects at the same time, work the changes out again. If the user interrupts the work, raise
    CallerError that names the changed objects; KeyboardInterrupt if no object was changed."""
    done: dict[int, Change] = {}

    def step() -> None:
        rest = [index for index in range(len(wanted)) if index not in done]
        record = backend.find(CLUSTER)  # before all other objects: the write compares its revision
        if not options.while_locked:
            require_unlocked(record, wanted)
        changes = dict(zip(rest, plan(backend, [wanted[index] for index in rest], options), strict=True))
        guard = _guard(record, changes, options) if backend.atomic else None
        _write(backend, changes, guard, done)

    kinds = dict.fromkeys(each.kind.noun for each in wanted)
    try:
        retry(" and ".join(f"the list of {noun}s" for noun in kinds), step)
    except SvcError as error:
        _add_changed(error, _changed(done))
        raise
    except KeyboardInterrupt:
        if not (changed := _changed(done)):
            raise
        details = f"already changed: {', '.join(changed)}; the same command changes the others"
        raise CallerError(f"interrupted after {len(changed)} of {len(wanted)} objects", details=details) from None
    return [done[index] for index in range(len(wanted))]


def _changed(done: Mapping[int, Change]) -> list[str]:
    return [each.wanted.kind.reference(each.after) for each in done.values() if each.write]


def _add_changed(error: SvcError, changed: Sequence[str]) -> None:
    """Add the objects that were changed before the error, if there are any."""
    if not changed:
        return
    before = f"already changed: {', '.join(changed)}"
    error.msg = error.msg.replace(_UNCHANGED, before)
    error.subject = before if error.errors else ""
    if before not in error.msg:
        error.details = f"{error.details}; {before}".removeprefix("; ")


def raise_problems(problems: Iterable[str], code: Code) -> None:
    """Raise CallerError if there are problems, naming each once."""
    lines = tuple(dict.fromkeys(problems))
    if not lines:
        return
    error = CallerError(f"{len(lines)} error{'s' if len(lines) > 1 else ''}, {_UNCHANGED}", details="; ".join(lines), code=code)
    error.subject, error.errors = _UNCHANGED, lines
    raise error


def _problems(backend: Backend, wanted: Sequence[Wanted], stored: Sequence[Stored | None], options: Options) -> list[str]:
    refused = _refused(wanted, stored, options)
    return [*_repeated(wanted), *refused, *_invalid(backend, wanted, stored)]


def _repeated(wanted: Sequence[Wanted]) -> Iterator[str]:
    counts = Counter(each.identity for each in wanted)
    for each in wanted:
        if each.resource.name and counts[each.identity] > 1:
            yield _line(each, f"given {counts[each.identity]} times: keep one of them")


def _refused(wanted: Sequence[Wanted], stored: Sequence[Stored | None], options: Options) -> Iterator[str]:
    """Yield why objects cannot be changed, for reasons other than their fields."""
    for each, present in zip(wanted, stored, strict=True):
        kind, name = each.kind, each.resource.name
        if kind.read_only:
            yield _line(each, f"is read only: {kind.read_only}")
        elif reason := kind.foreign(each.resource):
            yield _line(each, f"belongs to another program: {reason}")
        if kind.absence:
            yield _line(each, f"has no place in this datastore: {kind.absence}")
        yield from (_line(each, error.line) for error in name_error(each.resource))
        if kind.is_writable and (problem := namespace_problem(kind, each.resource)):
            yield _line(each, problem)
        if kind.singleton and name and name != kind.singleton:
            yield _line(each, f"metadata.name = {name!r} is not {kind.singleton!r}: there is only one such object")
        if options.create and present is not None:
            yield _line(each, "exists: `svcctl apply` changes it")
        if options.replace and not kind.read_only:
            yield from _not_replaceable(each, present)
        if each.revision and (present is None or present.revision != each.revision):
            state = "it does not exist any more" if present is None else f"it has {present.revision!r} now"
            remedy = "read it again and repeat your change, or leave metadata.resourceVersion out"
            yield _line(each, f"metadata.resourceVersion = {each.revision!r} is not current, {state}: {remedy}")


def _not_replaceable(each: Wanted, present: Stored | None) -> Iterator[str]:
    if each.kind.undeletable:
        yield _line(each, "cannot be replaced, because calls depend on its fields: `svcctl apply` changes single ones")
    elif present is None:
        yield _line(each, "does not exist: `svcctl create` or `svcctl apply` makes it")


def _invalid(backend: Backend, wanted: Sequence[Wanted], stored: Sequence[Stored | None]) -> Iterator[str]:
    together: dict[str, list[Resource]] = {}
    for each in wanted:
        together.setdefault(each.kind.name, []).append(each.resource)
    checks = {each.kind.name: each.kind.checker(backend, together[each.kind.name]) for each in wanted if each.kind.is_writable}
    for each, present in zip(wanted, stored, strict=True):
        before = present.resource if present else None
        if check := checks.get(each.kind.name):
            yield from (_line(each, problem) for problem in check(_without_kept(each, before), before))


def _without_kept(each: Wanted, before: Resource | None) -> Resource:
    """Return the object without the stored fields of other programs, which `get` shows and `apply` keeps."""
    stored, given = (before.spec if before else {}), each.resource.spec
    kept = [name for name in given if name not in each.kind.own and name in stored and stored[name] == given[name]]
    return replace(each.resource, spec={name: given[name] for name in given if name not in kept}) if kept else each.resource


def _line(each: Wanted, problem: str) -> str:
    return f"{each.place}{each.kind.describe(each.resource)}: {problem}"


def _change(each: Wanted, present: Stored | None, now: datetime) -> Change:
    storage = each.kind.storage
    if present is None:
        created = each.change(None)
        if each.kind.has_labels:
            set_identity(created, now, new_uid())
        return Change(each, None, created, Create(storage.key(created), storage.value(created, None)))
    after = each.change(present.resource)
    if after == present.resource:
        return Change(each, present.resource, after, None)
    return Change(each, present.resource, after, Update(present.key, storage.value(after, present.value), present.revision))


def require_unlocked(record: Entry[Resource] | None, wanted: Sequence[Wanted] = ()) -> None:
    """Raise CallerError if the datastore is locked, unless its record itself is wanted."""
    if record is None or any(each.kind.name == CLUSTER.kind for each in wanted):
        return
    if record.value.spec.get(READY) is False:
        raise CallerError(
            "the datastore is locked for a migration, and nothing was changed",
            details="wait for its end, or give --while-locked if this is a part of it; `svcctl clusterinfo unlock` ends it",
            code=Code.DATASTORE_LOCKED,
        )


def _guard(record: Entry[Resource] | None, changes: Mapping[int, Change], options: Options) -> Update | Check | None:
    """Return the write that fails if another process has locked the datastore, or created objects that exclude new ones."""
    writes = [change for change in changes.values() if change.write]
    if record is None or any(change.wanted.kind.name == CLUSTER.kind for change in writes):
        return None
    # Written unchanged with a new pool: of two processes that check for overlaps in parallel, the later one checks again.
    if any(change.before is None and change.wanted.kind.admit for change in writes):
        return Update(record.key, record.value, record.revision)
    return None if options.while_locked else Check(record.key, record.revision)


def _write(backend: Backend, changes: Mapping[int, Change], guard: Update | Check | None, done: dict[int, Change]) -> None:
    """Write the changes, and add each to `done` when it is stored. Raise Conflict, NotFound, StoreError."""
    done |= {index: change for index, change in changes.items() if change.write is None}
    waiting = {index: change for index, change in changes.items() if change.write is not None}
    if backend.atomic:
        _write_together(backend, waiting, guard, done)
    else:
        _write_each(backend, waiting, done)


def _write_together(
    backend: Backend, changes: Mapping[int, Change], guard: Update | Check | None, done: dict[int, Change]
) -> None:
    first = [] if guard is None else [guard]
    pending = list(changes)
    while pending:
        count = MAX_WRITES - len(first)
        part, pending = pending[:count], pending[count:]
        stored = backend.write([*first, *(write for index in part if (write := changes[index].write))], durable=True)
        done |= {index: changes[index] for index in part}
        first = [_next_guard(each, stored[0]) for each in first]


def _next_guard(guard: Update | Check, stored: Entry | None) -> Update | Check:
    """Return the check that the record is still as this call has found or written it."""
    return Check(guard.key, stored.revision) if isinstance(guard, Update) and stored else guard


def _write_each(backend: Backend, changes: Mapping[int, Change], done: dict[int, Change]) -> None:
    admitted = _admitted(backend, changes)
    for index, change in changes.items():
        write = admitted.get(index, change.write)
        assert write is not None
        backend.write([write], durable=True)
        done[index] = change


def _admitted(backend: Backend, changes: Mapping[int, Change]) -> dict[int, Update]:
    """Create new objects of kinds that exclude each other; return the update that completes each."""
    updates: dict[int, Update] = {}
    for kind in {change.wanted.kind.name: change.wanted.kind for change in changes.values()}.values():
        of_kind = [index for index, change in changes.items() if change.wanted.kind.name == kind.name]
        new = {index: write for index in of_kind if isinstance(write := changes[index].write, Create)}
        if kind.admit and new:
            resources = [changes[index].wanted.resource for index in of_kind]
            updates |= dict(zip(new, kind.admit(backend, resources, list(new.values())), strict=True))
    return updates
