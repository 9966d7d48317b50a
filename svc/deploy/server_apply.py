"""Server-side apply of objects of any kind, in an order in which each finds what it needs.

1. Before the first write, the API server is asked which kinds it serves and which namespaces exist. If one is missing, and the
   documents do not bring it, nothing is written.
2. Namespaces come first, then definitions, until they are established, then all others in the given order.
3. A failed write names its object. What was applied before it stays, and the whole can be repeated.
4. A pool is created if it does not exist, and never changed: its settings belong to the administrator.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from svc.datastore.api import StoreError
from svc.deploy.discovery import Discovery, ServedKind
from svc.model.errors import CallerError
from svc.values import dataclass, replace

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]

MANAGER: Final = "svcctl"
ATTEMPTS: Final = 3  # of a write whose answer is lost
SERVED_SECONDS: Final = 30.0  # until a server serves a new definition
NAMESPACE, DEFINITION, POOL = "Namespace", "CustomResourceDefinition", "IPPool"
_FIRST: Final = (NAMESPACE, DEFINITION)
_POLL_SECONDS: Final = 0.1
_NOT_FOUND, _FORBIDDEN, _INVALID, _EXISTS = 404, 403, 422, 409
_REFUSALS: Final = (400, _FORBIDDEN, _NOT_FOUND, _EXISTS, _INVALID)
_ANY_NAMESPACE: Final = "default"  # which every server has
_MALFORMED: Final = "failed to create typed patch object"  # a field that is unknown or of another type: status 500


@dataclass(frozen=True, slots=True)
class Applied:
    """An applied object, as the server has `stored` it.

    In a dry run `stored` is what the server would store; None for an object whose kind or namespace comes with the documents,
    because the server cannot check it yet. An object that `is_kept` was there before, and is not changed."""

    kind: str
    namespace: str
    name: str
    stored: Json | None
    is_kept: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}{'/' if self.namespace else ''}{self.name}"


@dataclass(frozen=True, slots=True)
class _Target:
    """A document with its place on the server. `has_kind` and `has_namespace` are false for what does not exist yet."""

    document: Json
    served: ServedKind
    has_kind: bool
    has_namespace: bool

    @property
    def is_planned(self) -> bool:
        return not (self.has_kind and self.has_namespace)

    @property
    def path(self) -> str:
        metadata = self.document["metadata"]
        return self.served.path(self.document["apiVersion"], metadata["name"], metadata.get("namespace", ""))

    @property
    def folder(self) -> str:
        """The path of all objects of the kind."""
        return self.path.rpartition("/")[0]

    def applied(self, stored: Json | None, *, is_kept: bool = False) -> Applied:
        metadata = self.document["metadata"]
        return Applied(self.document["kind"], metadata.get("namespace", ""), metadata["name"], stored, is_kept)


def apply(client: "Client", documents: Sequence[Json], manager: str = MANAGER, dry_run: bool = False) -> Iterator[Applied]:
    """Apply each object, as a forced server-side `kubectl apply`, and yield it when it is served.

    Raise CallerError for documents that have no place, and StoreError. With `dry_run` the server checks each object, and
    changes nothing; one error has all that it refuses."""
    discovery = Discovery(client)
    targets = _targets(client, discovery, documents)
    if dry_run:
        yield from _rehearse(client, targets, manager)
        return
    for target in targets:
        with named(target.document):
            kept = _kept(client, target)
            yield target.applied(kept or _write(client, discovery, target, manager), is_kept=kept is not None)


def is_created_once(document: Json) -> bool:
    """Return whether an object is a pool, which is not changed if it exists."""
    return document["kind"] == POOL and "cidr" in (document.get("spec") or {})


def in_order(documents: Sequence[Json]) -> list[Json]:
    """Return the documents with namespaces first, then definitions, and otherwise in the given order."""
    return sorted(documents, key=lambda each: _FIRST.index(each["kind"]) if each["kind"] in _FIRST else len(_FIRST))


def describe(document: Json) -> str:
    """Name the object of a document, as far as the document does."""
    metadata = document.get("metadata") or {}
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{document.get('kind') or 'object without kind'} {place}{metadata.get('name') or 'without name'}"


def identity_of(document: Json) -> tuple[str, str]:
    """Return what no other object of a server has. Raise CallerError if the document does not name its object."""
    found = {name: document.get(name) for name in ("apiVersion", "kind")}
    found["metadata.name"] = (document.get("metadata") or {}).get("name")
    for name, value in found.items():
        if not isinstance(value, str) or not value:
            raise CallerError(f"{describe(document)}: {name} is {value!r}", details="every object needs it, as a text")
    return document["apiVersion"].partition("/")[0], describe(document)


def joined(refusals: Sequence[StoreError], subject: str) -> StoreError:
    """Return one error that has a line for each refusal."""
    details = "; ".join(dict.fromkeys(each.details for each in refusals))
    found = StoreError("; ".join(each.msg for each in refusals), details=details)
    found.subject, found.errors = subject, tuple(line for each in refusals for line in each.errors or (str(each),))
    return found


def is_refusal(error: StoreError) -> bool:
    """Return whether the server has answered, and refused some requests alone."""
    return bool(error.errors) or getattr(error, "status", 0) in _REFUSALS


def _rehearse(client: "Client", targets: Sequence[_Target], manager: str) -> Iterator[Applied]:
    refused: list[StoreError] = []
    for target in targets:
        try:
            with named(target.document):
                if kept := _kept(client, target):
                    yield target.applied(kept, is_kept=True)
                    continue
                stored = _checked(client, target, manager) if not target.is_planned else None
                if target.has_kind and not target.has_namespace:
                    _check_elsewhere(client, target, manager)
        except StoreError as error:
            if not is_refusal(error):
                raise
            refused.append(error)
            continue
        yield target.applied(stored)
    if refused:
        raise joined(refused, "nothing was changed")


def _write(client: "Client", discovery: Discovery, target: _Target, manager: str) -> Json:
    if target.is_planned:
        _await_served(discovery, target.document)
    stored = _apply_once(client, target, manager)
    if target.document["kind"] != DEFINITION:
        return stored
    stored = _await_established(client, target.path)
    for version in target.document["spec"]["versions"]:
        discovery.forget(f"{target.document['spec']['group']}/{version['name']}")
    return stored


def _checked(client: "Client", target: _Target, manager: str) -> Json | None:
    """Return what the server would store; None if it cannot check a binding, because the role does not exist yet."""
    try:
        return client.apply(target.path, target.document, manager, dryRun="All")
    except StoreError as error:
        if getattr(error, "status", 0) == _NOT_FOUND and target.document["kind"].endswith("Binding"):
            return None
        if _MALFORMED in error.msg:
            error.details = "correct the field, or leave it out"
        raise


def _check_elsewhere(client: "Client", target: _Target, manager: str) -> None:
    """Let the server check the fields of an object in another namespace, because that of the object does not exist yet."""
    document = target.document
    elsewhere = document | {"metadata": document["metadata"] | {"namespace": _ANY_NAMESPACE}}
    try:
        _checked(client, replace(target, document=elsewhere), manager)
    except StoreError as error:
        if getattr(error, "status", 0) == _INVALID or _MALFORMED in error.msg:
            raise


def _kept(client: "Client", target: _Target) -> Json | None:
    """Return an object that exists and is not to be changed."""
    return client.get_if_served(target.path) if is_created_once(target.document) else None


def _apply_once(client: "Client", target: _Target, manager: str) -> Json:
    """Apply a document. Repeat it if its answer is lost: the second time changes nothing."""
    request = _create if is_created_once(target.document) else _apply
    for _ in range(ATTEMPTS - 1):
        try:
            return request(client, target, manager)
        except StoreError as error:
            if not getattr(error, "maybe_applied", False):
                raise
            time.sleep(_POLL_SECONDS)
    return request(client, target, manager)


def _apply(client: "Client", target: _Target, manager: str) -> Json:
    return client.apply(target.path, target.document, manager)


def _create(client: "Client", target: _Target, manager: str) -> Json:
    """Create an object. Return the present one if it exists."""
    try:
        return client.create(target.folder, target.document, fieldManager=manager)
    except StoreError as error:
        if getattr(error, "status", 0) != _EXISTS:
            raise
        return client.get(target.path)


@contextmanager
def named(document: Json) -> Iterator[None]:
    """Name the object of a document in errors of requests."""
    try:
        yield
    except StoreError as error:
        error.msg = f"{describe(document)}: {error.msg}"
        raise


def _targets(client: "Client", discovery: Discovery, documents: Sequence[Json]) -> list[_Target]:
    """Return the documents in order, with their places. Raise CallerError, and StoreError if one has no place."""
    _require_distinct(documents)
    planned, spaces = _planned_kinds(documents), _Namespaces(client, documents)
    targets: list[_Target] = []
    missing: dict[str, None] = {}  # in order, each once
    for document in in_order(documents):
        with named(document):
            served = discovery.find(document["apiVersion"], document["kind"])
            kind = served or planned.get((document["apiVersion"], document["kind"]))
            if kind is None:
                missing[f"the API server does not serve {document['kind']} of {document['apiVersion']}"] = None
                continue
            namespace = _namespace_of(document, kind)
            if namespace and not spaces.has(namespace):
                missing[f"the namespace {namespace} of {describe(document)} does not exist"] = None
        targets.append(_Target(document, kind, served is not None, namespace not in spaces.planned))
    if missing:
        raise StoreError(
            f"nothing was applied: {'; '.join(missing)}",
            details="apply definitions and namespaces together with the objects, or before; leave out what the server lacks",
        )
    return targets


class _Namespaces:
    """Namespaces that exist, and those that come with the documents."""

    def __init__(self, client: "Client", documents: Sequence[Json]) -> None:
        self._client = client
        self._exists: dict[str, bool] = {}
        brought = [each["metadata"]["name"] for each in documents if each["kind"] == NAMESPACE]
        self.planned = frozenset(name for name in brought if not self._has(name))

    def has(self, name: str) -> bool:
        return name in self.planned or self._has(name)

    def _has(self, name: str) -> bool:
        if name not in self._exists:
            self._exists[name] = self._is_there(name)
        return self._exists[name]

    def _is_there(self, name: str) -> bool:
        """Return whether a namespace exists. If the user may not read it, assume so: the writes into it will tell."""
        try:
            return self._client.get_if_served(f"/api/v1/namespaces/{name}") is not None
        except StoreError as error:
            if getattr(error, "status", 0) != _FORBIDDEN:
                raise
            return True


def _require_distinct(documents: Sequence[Json]) -> None:
    seen: set[tuple[str, str]] = set()
    for document in documents:
        identity = identity_of(document)
        if identity in seen:
            raise CallerError(f"{describe(document)} is given twice", details="leave one of them out")
        seen.add(identity)


def _planned_kinds(documents: Sequence[Json]) -> dict[tuple[str, str], ServedKind]:
    """Return the kinds that the definitions among the documents bring, by API version and kind."""
    specs = [each["spec"] for each in documents if each["kind"] == DEFINITION]
    return {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"]): ServedKind(
            spec["names"]["plural"], spec["scope"] == "Namespaced"
        )
        for spec in specs
        for version in spec["versions"]
        if version["served"]
    }


def _namespace_of(document: Json, kind: ServedKind) -> str:
    namespace = str(document["metadata"].get("namespace") or "")
    if kind.is_namespaced and not namespace:
        raise CallerError(f"{describe(document)}: metadata.namespace is missing", details="give the namespace of the object")
    if namespace and not kind.is_namespaced:
        msg = f"{describe(document)}: metadata.namespace is {namespace!r}, but no namespace has objects of this kind"
        raise CallerError(msg, details="remove metadata.namespace")
    return namespace


def _await_served(discovery: Discovery, document: Json) -> None:
    """Wait until discovery has the kind of an object. It follows the definition with a delay."""
    deadline = time.monotonic() + SERVED_SECONDS
    while discovery.find(document["apiVersion"], document["kind"]) is None:
        if time.monotonic() > deadline:
            msg = f"its kind is not served after {SERVED_SECONDS:.0f} seconds"
            raise StoreError(msg, details="see the conditions of its definition: kubectl describe crd")
        time.sleep(_POLL_SECONDS)
        discovery.forget(document["apiVersion"])


def _await_established(client: "Client", path: str) -> Json:
    """Return the definition when it is served."""
    deadline = time.monotonic() + SERVED_SECONDS
    while True:
        definition = client.get(path)
        conditions = {each["type"]: each for each in (definition.get("status") or {}).get("conditions") or ()}
        if (conditions.get("Established") or {}).get("status") == "True":
            return definition
        names = conditions.get("NamesAccepted") or {}
        if names.get("status") == "False":
            raise StoreError(f"its names are refused: {names.get('message')}", details="remove the definition that has them")
        if time.monotonic() > deadline:
            details = "see its conditions: kubectl describe"
            raise StoreError(f"{path} is not served after {SERVED_SECONDS:.0f} seconds", details=details)
        time.sleep(_POLL_SECONDS)
