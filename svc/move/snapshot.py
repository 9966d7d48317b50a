"""All documents of a datastore at one revision, in the form of a key-value store."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, Protocol, runtime_checkable

from svc.admin.ipam_check.observation import Place
from svc.datastore.api import Entries, Entry, StoreError, UndecodableEntry
from svc.datastore.expired_pages import repeated
from svc.model.custom_resources import CORE
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.keys import (
    ALL_PLURALS,
    HOST_KINDS,
    AffinityQuery,
    BlockQuery,
    HandleQuery,
    IpamConfigKey,
    Key,
    Query,
    ResourceKey,
    ResourceQuery,
)
from svc.model.kv_codec import Codec, Value
from svc.names import Names
from svc.values import dataclass

ATTEMPTS: Final = 5  # to read a datastore while other programs write to it or discard its history
_PREFIXES: Final = ("ipam/", "resources/")  # below the key root: claims belong to sessions, and do not move
_IN_KUBERNETES: Final = ("Node", ENDPOINT)  # those of the kinds of Kubernetes that its API can read as resources


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The documents by path. `revision` is that of the datastore, or the newest one of a document."""

    revision: str
    documents: dict[str, bytes]

    def decoded(self, names: Names) -> dict[Key, Value]:
        """Return the values by key, without documents of keys that svc does not know. Raise UndecodableEntry."""
        codec, found = Codec(names), dict[Key, Value]()
        for path, data in self.documents.items():
            key = codec.key(path)
            if key is not None:
                found[key] = _decoded(codec, path, key, data)
        return found

    def unknown(self, names: Names) -> list[str]:
        """Return the paths whose keys svc does not know, without records for hosts: old programs only delete them."""
        codec, hosts = Codec(names), re.compile(rf"{re.escape(names.key_root)}/ipam/v2/host/[^/]+")
        return [path for path in self.documents if codec.key(path) is None and not hosts.fullmatch(path)]


def _decoded(codec: Codec, path: str, key: Key, data: bytes) -> Value:
    try:
        value: Value = codec.decode(key, data)
    except ValueError as error:
        raise _undecodable({path: str(error)}) from None
    return value


@runtime_checkable
class KeepsHistory(Protocol):
    """A datastore whose documents can be read at one revision."""

    def history(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield the present revision, and path and document of every key at it. Raise StoreError if it was discarded."""


def kind_of(place: Place) -> str:
    """Return the kind of a datastore, as the settings of a network configuration name it."""
    if place.pods_are_endpoints:
        return "orch"
    return "etcdv3" if isinstance(place.backend, KeepsHistory) else "embedded"


def take(place: Place) -> Snapshot:
    """Read a datastore at one revision. Raise StoreError if it keeps changing, UndecodableEntry for an unreadable document."""
    if isinstance(place.backend, KeepsHistory):
        return _of_history(place.backend, place.names)
    before = None
    for _ in range(ATTEMPTS):
        now = _entries(place)
        if before is not None and _revisions(before) == _revisions(now):
            return _encoded(place.names, now)
        before = now
    details = "stop the programs that change it although it is locked, then repeat"
    raise StoreError(f"{place.backend.place} keeps changing: {ATTEMPTS} readings differ", details=details)


def look(place: Place) -> Snapshot:
    """Read a datastore that other programs may change. Raise UndecodableEntry for an unreadable document."""
    return take(place) if isinstance(place.backend, KeepsHistory) else _encoded(place.names, _entries(place))


def _encoded(names: Names, found: "_Read") -> Snapshot:
    codec = Codec(names)
    documents = {codec.path(key): codec.encode(value) for key, (value, _) in found.items()}
    return Snapshot(_newest(found), dict(sorted(documents.items())))


def _of_history(backend: KeepsHistory, names: Names) -> Snapshot:
    failure: StoreError | None = None
    prefixes = tuple(f"{names.key_root}/{prefix}" for prefix in _PREFIXES)
    for _ in range(ATTEMPTS):
        documents, revision = dict[str, bytes](), 0
        try:
            for revision, path, data in backend.history():  # noqa: B007 the last one is that of all
                if path.startswith(prefixes):
                    documents[path] = data
        except StoreError as error:
            failure = error
            continue
        return Snapshot(str(revision), documents)
    assert failure is not None
    raise failure


_Read = Mapping[Key, tuple[Value, str]]


def _entries(place: Place) -> _Read:
    found: dict[Key, tuple[Value, str]] = {}
    for query in queries(place):
        found |= {entry.key: (entry.value, entry.revision) for entry in entries(place, query)}
    settings = place.backend.find(IpamConfigKey())
    return found if settings is None else {settings.key: (settings.value, settings.revision), **found}


def entries(place: Place, query: Query) -> list[Entry]:
    """Return the entries of a query, read in pages. Raise UndecodableEntry, StoreError."""
    return repeated(lambda: [entry for page in place.backend.pages(query) for entry in _decodable(page)])


def queries(place: Place) -> list[Query]:
    """Return the queries for all documents but the settings."""
    served = served_kinds(place)
    kinds = [kind for kind in ALL_PLURALS if served is None or kind in served or kind in _IN_KUBERNETES]
    affinities = (AffinityQuery(kind=kind) for kind in HOST_KINDS)
    return [*map(ResourceQuery, kinds), HandleQuery(), BlockQuery(), *affinities]


def served_kinds(place: Place) -> dict[str, str] | None:
    """Return kinds and plurals that the API group of a Kubernetes API serves; None for any other datastore."""
    if place.client is None or not place.pods_are_endpoints:
        return None
    names = place.names
    group = f"/apis/{names.api_version if place.backend.has_plain_objects else names.crd_api_version}"
    resources = (place.client.get_if_served(group) or {}).get("resources") or ()
    return {str(each["kind"]): str(each["name"]) for each in resources if "/" not in each["name"]}


def _decodable(page: Entries) -> Entries:
    if page.skipped:
        raise _undecodable(page.skipped)
    return page


def _undecodable(errors: Mapping[str, str]) -> UndecodableEntry:
    path, error = next(iter(errors.items()))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return UndecodableEntry(
        f"the document at {path} cannot be moved: {error}{more}", details="correct or delete it; `svcctl ipam check` lists more"
    )


def _revisions(found: _Read) -> dict[Key, str]:
    """Return the revisions of what a lock keeps unchanged. Pods and nodes of Kubernetes change all the time."""
    return {key: revision for key, (_, revision) in found.items() if not (isinstance(key, ResourceKey) and key.kind in CORE)}


def _newest(found: _Read) -> str:
    numbers = [int(revision) for _, revision in found.values() if revision.isdecimal()]
    return str(max(numbers, default=0))
