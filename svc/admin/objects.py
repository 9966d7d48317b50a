"""Objects of any kind as a datastore has them: found by name, listed, and deleted."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from svc.admin.kind import Kind, full_name, namespace_problem
from svc.admin.resources import missing
from svc.datastore.api import MAX_WRITES, Backend, Conflict, Delete, NotFound, StoreError, entry_of
from svc.model.errors import CallerError, PeerError, SvcError
from svc.model.keys import Key
from svc.model.resource import Resource, name_error
from svc.values import dataclass

Json = dict[str, Any]

_NOT_SERVED: Final = 404  # status of an answer that is not about an object


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored object. An implied one has neither value nor revision."""

    kind: Kind
    resource: Resource
    key: Key
    value: Any = None
    revision: str = ""

    def document(self, api_version: str) -> Json:
        """Return the object as a document that `apply` reads, and whose revision it compares."""
        data = self.resource.to_json(self.kind.api_version or api_version)
        order = {"apiVersion": data["apiVersion"], "kind": data["kind"]}
        metadata = data["metadata"] | ({"resourceVersion": self.revision} if self.revision else {})
        return order | data | {"metadata": metadata}


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a kind, and the errors of those that svc cannot use, by name."""

    kind: Kind
    found: list[Stored]
    errors: dict[str, str]


def find_all(backend: Backend, wanted: Sequence[tuple[Kind, Resource]]) -> list[Stored | None]:
    """Return the stored object of each resource, or None. Raise UndecodableEntry, StoreError."""
    keys = [kind.storage.key(each) if _has_key(kind, each) else None for kind, each in wanted]
    kinds = {key: kind for key, (kind, _) in zip(keys, wanted, strict=True) if key is not None}
    asked, entries = list(kinds), dict[Key, Stored]()
    for start in range(0, len(asked), MAX_WRITES):
        part = asked[start : start + MAX_WRITES]
        with _naming_definers(kinds.values()):
            answers = backend.get_all(part)
        for key, found in zip(part, answers, strict=True):
            if entry := entry_of(found):
                entries[key] = _stored(kinds[key], key, entry.value, entry.revision)
    return [None if key is None else entries.get(key) for key in keys]


def _has_key(kind: Kind, resource: Resource) -> bool:
    return kind.is_writable and not name_error(resource) and not namespace_problem(kind, resource)


@contextmanager
def _naming_definers(kinds: Iterable[Kind]) -> Iterator[None]:
    """Raise CallerError for the error of an API that does not serve one of the kinds, if another program defines it."""
    try:
        yield
    except StoreError as error:
        if getattr(error, "status", 0) != _NOT_SERVED:
            raise
        for kind in kinds:
            if kind.defined_by and f"/{kind.plural}" in error.msg:
                raise CallerError(f"the datastore has no {kind.noun}s: {error.msg}", details=kind.defined_by) from None
        raise


def read(backend: Backend, kind: Kind, namespace: str = "", own_node: str = "") -> Listing:
    """Return the objects of a namespace, or of all, in the order of their names. Raise CallerError if the store has none.

    `own_node` is the node of this command, for kinds with objects that have no document."""
    if kind.absence:
        raise CallerError(f"the datastore has no {kind.noun}s", details=kind.absence)
    found: list[Stored] = []
    errors: dict[str, str] = {}
    for query in kind.storage.queries(namespace):
        with _naming_definers([kind]):
            entries = backend.list(query)
        found += [_stored(kind, entry.key, entry.value, entry.revision) for entry in entries]
        errors |= {place.rpartition("/")[2]: f"{kind.noun} {place}: {error}" for place, error in entries.skipped.items()}
    if kind.singleton:
        only = Resource(kind.name, {"name": kind.singleton})
        found = [each for each in find_all(backend, [(kind, only)]) if each]
    if kind.implied:
        known = {each.resource.name for each in found}
        more = (each for each in kind.implied(backend, own_node) if each.name not in known)
        found += [Stored(kind, each, kind.storage.key(each)) for each in more]
    if kind.unreadable:
        errors |= kind.unreadable(backend)
    found.sort(key=lambda each: (each.resource.namespace, each.resource.name))
    return Listing(kind, found, errors)


def select(listing: Listing, names: Sequence[str]) -> Listing:
    """Return the objects of these names, in their order; all without a name. Raise CallerError if one does not exist."""
    if not names:
        return listing
    kind = listing.kind
    chosen = [[each for each in listing.found if kind.storage.is_named(each.resource, name)] for name in names]
    errors = {name: listing.errors[name] for name in names if name in listing.errors}
    unknown = [name for name, found in zip(names, chosen, strict=True) if not found and name not in errors]
    if unknown:
        raise missing(kind.noun, unknown, [full_name(each.resource) for each in listing.found], kind.code)
    return Listing(kind, list({full_name(each.resource): each for found in chosen for each in found}.values()), errors)


def select_in(backend: Backend, kind: Kind, names: Sequence[str], namespace: str) -> Listing:
    """Return the objects of a namespaced kind that NAME or NAMESPACE/NAME means, in their order; `namespace` is that of NAME,
    empty for all. Raise CallerError if one does not exist; its details name the namespaces that have it."""
    pairs = [(space, name) if slash else (namespace, space) for space, slash, name in (each.partition("/") for each in names)]
    listings = {space: read(backend, kind, space) for space in dict.fromkeys(space for space, _ in pairs)}
    found: dict[str, Stored] = {}
    errors: dict[str, str] = {}
    unknown = []
    for space, name in pairs:
        chosen = [each for each in listings[space].found if kind.storage.is_named(each.resource, name)]
        found |= {full_name(each.resource): each for each in chosen}
        if name in listings[space].errors:
            errors[name] = listings[space].errors[name]
        elif not chosen:
            unknown.append((space, name))
    if unknown:
        raise _missing_in(backend, kind, unknown)
    return Listing(kind, list(found.values()), errors)


def _missing_in(backend: Backend, kind: Kind, unknown: Sequence[tuple[str, str]]) -> CallerError:
    """Return the error about objects that do not exist in their namespaces."""
    every = [each.resource for each in read(backend, kind).found]
    wanted = [f"{space}/{name}" if space else name for space, name in unknown]
    error = missing(kind.noun, wanted, [full_name(each) for each in every], kind.code)
    name = unknown[0][1]
    if spaces := sorted(each.namespace for each in every if len(unknown) == 1 and kind.storage.is_named(each, name)):
        word = "namespace" if len(spaces) == 1 else "namespaces"
        error.details = f"it exists in {word} {', '.join(spaces)}: give -n {spaces[0]}, or -A"
    return error


def check_deletable(backend: Backend, chosen: Iterable[Stored]) -> Iterator[str]:
    """Yield why objects cannot be deleted."""
    for each in chosen:
        kind, named = each.kind, each.kind.describe(each.resource)
        if kind.read_only:
            yield f"{named} is read only: {kind.read_only}"
        elif reason := kind.foreign(each.resource):
            yield f"{named} belongs to another program: {reason}"
        elif kind.undeletable:
            yield f"{named} cannot be deleted: {kind.undeletable}"
        elif kind.check_unused:
            try:
                kind.check_unused(backend, each.resource.name)
            except CallerError as error:
                yield str(error)


def delete_all(backend: Backend, chosen: Sequence[Stored]) -> Iterator[Stored]:
    """Delete objects durably, with all that belongs to them; yield each after its deletion.

    Raise PeerError with the objects that could not be deleted, after all were tried."""
    failures = []
    for each in chosen:
        try:
            _delete(backend, each)
            yield each
        except NotFound:  # another program has deleted it
            yield each
        except Conflict:
            failures.append(f"{each.kind.describe(each.resource)}: was changed since it was read: repeat the command")
        except SvcError as error:
            failures.append(f"{each.kind.describe(each.resource)}: {error}")
    if failures:
        refusal = PeerError(f"{len(failures)} of {len(chosen)} objects were not deleted", details="; ".join(failures))
        refusal.subject, refusal.errors = "not deleted", tuple(failures)
        raise refusal


def _delete(backend: Backend, each: Stored) -> None:
    if each.kind.remove:
        each.kind.remove(backend, each.resource.name)
    else:
        backend.write([Delete(each.key, each.revision)], durable=True)


def _stored(kind: Kind, key: Key, value: Any, revision: str) -> Stored:
    return Stored(kind, kind.storage.resource(key, value), key, value, revision)
