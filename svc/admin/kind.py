"""What the commands for all kinds need to know of one kind. `kinds.py` has the table."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from svc.datastore.api import Backend, Create, Update
from svc.model.errors import Code
from svc.model.field_errors import MISSING, FieldError
from svc.model.keys import NAMESPACED, Key, Query, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.values import dataclass, field, replace

NAMESPACE_RULE: Final = "up to 63 lower-case letters, digits and '-', a letter or digit first and last"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Column = tuple[str, Callable[[Resource], str]]
"""A heading, and the text of a cell below it."""

Check = Callable[[Resource, Resource | None], Iterable[str]]
"""Yields the problems of a resource, each with its fix. The second argument is the stored resource, if any."""

Checker = Callable[[Backend, Sequence[Resource]], Check]
"""Returns the check for resources that are applied together."""


class Storage(Protocol):
    """Conversion between the resources of a kind and the keys and values of a datastore."""

    def key(self, resource: Resource) -> Key:
        """Return the key of a resource."""

    def queries(self, namespace: str) -> Sequence[Query]:
        """Return the queries that find all resources of a namespace, or of all; none if there is only one key."""

    def resource(self, key: Key, value: Any) -> Resource:
        """Return the resource of a stored value."""

    def value(self, resource: Resource, present: Any | None) -> Any:
        """Return the value to store in place of `present`."""

    def is_named(self, resource: Resource, name: str) -> bool:
        """Return whether a user who gives this name means the resource."""


@dataclass(frozen=True, slots=True)
class ResourceStorage:
    """Storage of resources under keys of their own."""

    kind: str

    def key(self, resource: Resource) -> ResourceKey:
        return ResourceKey(self.kind, resource.name, resource.namespace if self.kind in NAMESPACED else "")

    def queries(self, namespace: str) -> Sequence[Query]:
        return (ResourceQuery(self.kind, namespace),)

    def resource(self, _key: Key, value: Resource) -> Resource:
        return value

    def value(self, resource: Resource, _present: Resource | None) -> Resource:
        return resource

    def is_named(self, resource: Resource, name: str) -> bool:
        return resource.name == name


def _no_check(_backend: Backend, _resources: Sequence[Resource]) -> Check:
    return lambda _resource, _present: ()


def each_alone(check: Check) -> Checker:
    """Return the checker for objects that do not depend on each other."""
    return lambda _backend, _resources: check


def _as_given(resource: Resource) -> Resource:
    return resource


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects.

    `words` name it on the command line, beside its name and plural. `own` are the fields of `spec` that an applied document
    sets or removes; other stored fields belong to other programs and stay. `texts` are as in `manifest.read`. A kind with a
    `singleton` has only the object of that name. The reason in `read_only` or `undeletable` includes the fix.
    """

    name: str
    noun: str
    plural: str
    columns: tuple[Column, ...]
    storage: Storage
    words: tuple[str, ...] = ()
    wide: tuple[Column, ...] = ()
    api_version: str = ""  # of its documents, if it is not that of the names
    aliases: tuple[str, ...] = ()  # other names of the kind in manifests
    singleton: str = ""
    has_labels: bool = True
    own: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    code: Code = Code.INVALID_NETCONF
    checker: Checker = _no_check
    complete: Callable[[Resource], Resource] = _as_given  # with defaults, as it is stored
    admit: Callable[[Backend, Sequence[Resource], Sequence[Create]], list[Update]] | None = (
        None  # for stores without transactions
    )
    implied: Callable[[Backend, str], list[Resource]] | None = None  # objects without a document, for a node's name
    unreadable: Callable[[Backend], Mapping[str, str]] | None = None  # errors of objects that svc cannot use, by name
    check_unused: Callable[[Backend, str], None] | None = None  # raises CallerError if the object of this name is in use
    remove: Callable[[Backend, str], None] | None = None  # deletes the object of this name with all that belongs to it
    warnings: Callable[[Sequence[Resource]], list[str]] | None = None
    foreign: Callable[[Resource], str] = lambda _: ""  # why another program writes this object of the kind, with the fix
    read_only: str = ""
    undeletable: str = ""
    absence: str = ""  # why the datastore has no such objects
    defined_by: str = ""  # the remedy, if a Kubernetes API serves no such objects: another program defines the kind
    read_only_in: Mapping[str, str] = field(default_factory=dict)  # by datastore, as `read_only`
    absent_in: Mapping[str, str] = field(default_factory=dict)  # by datastore, as `absence`

    @property
    def is_namespaced(self) -> bool:
        return self.name in NAMESPACED

    @property
    def is_writable(self) -> bool:
        return not self.read_only and not self.absence

    @property
    def names(self) -> tuple[str, ...]:
        """Return every word that selects the kind on the command line."""
        return (self.name.lower(), self.plural, *self.words)

    def within(self, store: str) -> "Kind":
        """Return the kind as a datastore of this type has it."""
        read_only = self.read_only or self.read_only_in.get(store, "")
        return replace(self, read_only=read_only, absence=self.absent_in.get(store, ""))

    def describe(self, resource: Resource) -> str:
        """Return noun and name, for errors."""
        return f"{self.noun} {full_name(resource)!r}"

    def reference(self, resource: Resource) -> str:
        """Return the form KIND/NAME, which commands accept as an argument."""
        return f"{self.name.lower()}/{full_name(resource)}"


def namespace_problem(kind: Kind, resource: Resource) -> str:
    """Return why an object has no valid namespace, with the fix; empty if it has one, or needs none."""
    if not kind.is_namespaced:
        return ""
    given = resource.metadata.get("namespace", MISSING)
    if isinstance(given, str) and _NAMESPACE.fullmatch(given):
        return ""
    problem, remedy = "is not the name of a namespace", f"give {NAMESPACE_RULE}"
    if given is MISSING:
        problem, remedy = "is missing", "add it, or give -n NAMESPACE"
    return FieldError("metadata.namespace", given, problem, remedy).line


def is_namespace(text: str) -> bool:
    """Return whether a text can be the name of a namespace."""
    return bool(_NAMESPACE.fullmatch(text))


def full_name(resource: Resource) -> str:
    """Return the name, with the namespace if there is one."""
    return f"{resource.namespace}/{resource.name}" if resource.namespace else resource.name
