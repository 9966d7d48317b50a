"""Keys that are stored as custom resources of svc's API group.

Blocks, affinities and handles are deleted in two steps. The first writes a tombstone at the known revision; from then on the
key is deleted. The second deletes the object with that UID. A reader that finds a tombstone treats the key as missing, and
removes the object.
"""

import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from svc.datastore.api import (
    Conflict,
    Create,
    Delete,
    Entries,
    Entry,
    KeyedError,
    NotFound,
    StoreError,
    UndecodableEntry,
    Update,
)
from svc.datastore.orch.answers import objects_in
from svc.datastore.orch.client import PAGE, ApiError, Client, Unreachable, segment
from svc.datastore.orch.resource_store import Collection, ResourceStore, revision_of, updated, write_verified
from svc.model.custom_resources import CustomResourceCodec, is_marked, kind_plural
from svc.model.errors import CallerError
from svc.model.keys import AffinityKey, AffinityQuery, BlockKey, HandleKey, Key, Query, ResourceKey
from svc.model.kv_codec import Value
from svc.model.object_metadata import ApiGroup
from svc.model.resource import Resource
from svc.names import Names
from svc.retry import attempts

Json = dict[str, Any]

_MARKED = (BlockKey, AffinityKey, HandleKey)
_MARKING_ATTEMPTS = 10  # to write the tombstone of an object that other writers change, for a deletion at any revision
_LISTED = ("IPPool", "IPReservation")  # the role of the plugin may list these, but not get one by its path
_INFORMATION = ResourceKey("ClusterInformation", "default")

_log = logging.getLogger(__name__)


class CrdStore(ResourceStore):
    """Custom resources of one deployment. If `api_group` is empty, the API server is asked which group it serves."""

    page_objects = PAGE

    def __init__(self, client: Client, names: Names, api_group: str | ApiGroup = "") -> None:
        super().__init__(client, names)
        group = _given_group(names, api_group) if isinstance(api_group, str) and api_group else api_group
        self._found = CustomResourceCodec(group) if isinstance(group, ApiGroup) else None
        self._labelled: set[str] = set()  # hosts whose affinities have labels
        self._plain: set[str] = set()  # kinds without a status subresource

    @property
    def is_plain(self) -> bool:
        """Whether the objects are in the plain group, not in a backing one. Raise StoreError."""
        return not self._objects.group.is_backing

    def get(self, key: Key) -> Entry:
        """Return the entry of a key. Raise NotFound or UndecodableEntry. An object with a tombstone is removed."""
        data = self._present(key)
        if data is None:
            raise NotFound(key)
        try:
            found, value = self._objects.decode(self._objects.kind(key), data)
        except ValueError as error:
            details = "delete the object, or put it right with kubectl edit"
            raise UndecodableEntry(f"{self._path(key)} is not a valid object: {error}", details=details) from error
        if found != key:  # a handle whose name differs in case, or another kind of affinity
            raise NotFound(key)
        return Entry(key, value, revision_of(data))

    def collection(self, query: Key | Query) -> Collection:
        return self._selected(query, self._objects.selector(query) if isinstance(query, Query) else "")

    def list(self, query: Query) -> Entries:
        """Return the entries of a query. Complete the labels of affinities that a query for a host selects by."""
        if isinstance(query, AffinityQuery) and query.host:
            self._complete_labels(query.host)
        return super().list(query)

    def write(self, write: Create | Update | Delete) -> Entry | None:
        match write:
            case Create(key=key, value=value):
                return self._create(key, value)
            case Update(key=key, value=value, revision=revision):
                return self._with_status(key, value, self._replace(key, self._objects.encode(key, value, revision), revision))
            case Delete(key=key, revision=revision) if isinstance(key, _MARKED):
                self._remove(key, self._mark_any(key) if revision is None else self._mark(key, revision))
            case Delete(key=key, revision=revision):
                send = partial(self._client.delete, self._path(key), resourceVersion=revision)
                write_verified(key, send, partial(self._deleted, key, revision))
        return None

    @property
    def _objects(self) -> CustomResourceCodec:
        """Return the codec. Threads that discover the group at the same time get equal results."""
        if self._found is not None:
            return self._found
        group = _served_group(self._client, self._names)
        objects = CustomResourceCodec(group or ApiGroup(self._names, self._names.crd_api_version))
        if group is not None:  # otherwise the next call looks again, because a group may be installed later
            self._found = objects
        return objects

    def _selected(self, query: Key | Query, selector: str) -> Collection:
        read = partial(_read, self._objects, self._objects.kind(query))
        return Collection(self._plural_path(query), read, {"labelSelector": selector} if selector else {})

    def _plural_path(self, query: Key | Query) -> str:
        namespace = query.namespace if isinstance(query, ResourceKey) else ""
        folder = f"/namespaces/{segment(namespace)}" if namespace else ""
        return f"{self._objects.group.root}{folder}/{kind_plural(self._objects.kind(query))}"

    def _path(self, key: Key) -> str:
        return f"{self._plural_path(key)}/{segment(self._objects.name(key))}"

    def _entry(self, key: Key, data: Json) -> Entry:
        _, value = self._objects.decode(self._objects.kind(key), data)
        return Entry(key, value, revision_of(data))

    # reading

    def _present(self, key: Key) -> Json | None:
        """Return the object of a key; None if it does not exist or has a tombstone. Remove an object with a tombstone."""
        data = self._find(key)
        if data is None or not _has_tombstone(key, data):
            return data
        self._remove(key, data)
        return None

    def _find(self, key: Key) -> Json | None:
        if not (isinstance(key, ResourceKey) and key.kind in _LISTED):
            return self._object(self._path(key))
        name = re.sub(r"([\\,=])", r"\\\1", key.name)
        found = self._client.list(self._plural_path(key), fieldSelector=f"metadata.name={name}").items
        return found[0] if found else None

    # writing

    def _create(self, key: Key, value: Value) -> Entry:
        body = self._objects.encode(key, value)
        send = partial(self._client.create, self._plural_path(key), body)
        try:
            return self._entry(key, write_verified(key, send, partial(self._created, key, body)))
        except Conflict:
            data = self._present(key)
            if data is not None:
                _require_same_handle(key, data)
                raise
        except NotFound:
            if not (isinstance(key, ResourceKey) and key.namespace):
                raise
            details = f"create it first: kubectl create namespace {key.namespace}"
            raise StoreError(f"namespace {key.namespace!r} does not exist", details=details) from None
        return self._entry(key, write_verified(key, send, partial(self._created, key, body)))  # a tombstone was removed

    def _created(self, key: Key, body: Json) -> Json | None:
        data = self._present(key)
        if data is not None and data.get("spec") != body["spec"]:
            raise Conflict(key)
        return data

    def _replace(self, key: Key, body: Json, revision: str) -> Entry:
        send = partial(self._client.replace, self._path(key), body)

        def look_up() -> Json | None:
            return updated(key, self._present(key), revision, lambda data: bool(data.get("spec") == body["spec"]))

        written = write_verified(key, send, look_up)
        if self.is_plain and "status" in body and written.get("status") != body["status"]:
            written = self._replace_status(key, written, body["status"])
        return self._entry(key, written)

    def _replace_status(self, key: Key, present: Json, status: Json) -> Json:
        """Write the status of an object whose kind has it as a part of its own: a write of the object leaves it as it is."""
        send = partial(self._client.replace, f"{self._path(key)}/status", present | {"status": status})

        def look_up() -> Json | None:
            return updated(key, self._present(key), revision_of(present), lambda data: bool(data.get("status") == status))

        try:
            return write_verified(key, send, look_up)
        except NotFound:  # without such a part, the server has dropped fields that it does not know
            return present

    def _with_status(self, key: Key, wanted: Value, entry: Entry) -> Entry:
        """Write the status as well, if the kind has it as a subresource: an update of the object leaves it as it was."""
        if not isinstance(wanted, Resource) or wanted.status in (None, entry.value.status) or wanted.kind in self._plain:
            return entry
        body = self._objects.encode(key, wanted, entry.revision)
        send = partial(self._client.replace, f"{self._path(key)}/status", body)

        def look_up() -> Json | None:
            return updated(key, self._present(key), entry.revision, lambda data: bool(data.get("status") == body["status"]))

        try:
            return self._entry(key, write_verified(key, send, look_up))
        except NotFound:
            self.get(key)  # unless the object was deleted, the kind has no such subresource, and drops fields of the status
            self._plain.add(wanted.kind)
            return entry

    def _mark_any(self, key: Key) -> Json:
        """Mark an object at any revision, as `_mark` does. Raise Conflict if other writers keep changing it."""
        for _ in attempts(_MARKING_ATTEMPTS):
            data = self._present(key)
            if data is None:
                raise NotFound(key)
            try:
                return self._mark(key, revision_of(data))
            except Conflict:
                continue
        raise Conflict(key)

    def _mark(self, key: Key, revision: str) -> Json:
        """Write the tombstone, the first step of a deletion. Return the marked object; {} if it no longer exists."""
        assert isinstance(key, _MARKED)
        body = self._marked_block(key, revision) if isinstance(key, BlockKey) else self._objects.tombstone(key, revision)
        send = partial(self._client.replace, self._path(key), body)
        return write_verified(key, send, partial(self._deleted, key, revision))

    def _marked_block(self, key: BlockKey, revision: str) -> Json:
        """Return the whole block with a tombstone, because the schema of blocks accepts no shorter document."""
        data = self._present(key)
        if data is None:
            raise NotFound(key)
        if revision_of(data) != revision:
            raise Conflict(key)
        data["spec"]["deleted"] = True
        return data

    def _remove(self, key: Key, marked: Json) -> None:
        """Remove the marked object, the second step of a deletion. Without an answer, the next reader repeats it."""
        if not marked:
            return
        try:
            self._client.delete(self._path(key), uid=str(marked["metadata"]["uid"]))
        except ApiError as error:
            if error.status not in (404, 409):  # the object was removed, or replaced by another of the same name
                raise
        except Unreachable as error:
            _log.warning("%s is marked as deleted and not removed: %s", self._path(key), str(error))

    def _deleted(self, key: Key, revision: str | None) -> Json | None:
        """Return {} or the marked object if a deletion without an answer was applied; None if it was not."""
        data = self._find(key)
        if data is None:
            return {}
        if _has_tombstone(key, data):
            return data
        if revision not in (None, revision_of(data)):
            raise Conflict(key)
        return None

    # labels

    def _complete_labels(self, host: str) -> None:
        """Write the labels that a host's affinities of older programs lack, once in a session. Change no locked datastore."""
        if host in self._labelled or not self._is_ready():
            return
        for entry in self._all(self._selected(AffinityQuery(), self._objects.unlabelled)):
            if not isinstance(entry.key, AffinityKey) or entry.key.host != host:
                continue
            try:
                if data := self._present(entry.key):
                    self._replace(entry.key, self._objects.with_labels(entry.key, data), revision_of(data))
                _log.info("affinity of %r to %s has its labels now", host, entry.key.cidr)
            except KeyedError:
                _log.info("affinity of %r to %s was changed by another program", host, entry.key.cidr)
        self._labelled.add(host)

    def _is_ready(self) -> bool:
        try:
            information = self.get(_INFORMATION).value
        except NotFound:
            return False
        return isinstance(information, Resource) and information.spec.get("datastoreReady") is True


def _read(objects: CustomResourceCodec, kind: str, data: Json) -> Iterator[tuple[Key, Value]]:
    if not is_marked(data):
        yield objects.decode(kind, data)


def _has_tombstone(key: Key, data: Json) -> bool:
    return isinstance(key, _MARKED) and is_marked(data)


def _require_same_handle(key: Key, data: Json) -> None:
    """Raise StoreError if an object has another handle's ID. Object names are lower case, so a retry would fail too."""
    found = (data.get("spec") or {}).get("handleID")
    if isinstance(key, HandleKey) and found != key.handle:
        details = "let the names of networks differ in more than upper and lower case"
        raise StoreError(f"handle {key.handle!r} cannot be kept beside {found!r}", details=details)


def _given_group(names: Names, api_group: str) -> ApiGroup:
    known = (names.api_version, names.crd_api_version)
    for version in known:
        if api_group.lower() == version.lower():
            return ApiGroup(names, version)
    raise CallerError(f"api_group = {api_group!r} is not known", details=f"give one of {' and '.join(known)}")


def _served_group(client: Client, names: Names) -> ApiGroup | None:
    """Return the served API group; None if neither is. Return the plain group only if the other one is not served."""
    try:
        groups = {str(group.get("name")) for group in objects_in(client.get("/apis"), "groups", "GET /apis")}
    except ApiError:  # only old deployments lack the right to list API groups
        return ApiGroup(names, names.crd_api_version)
    plain, backing = (version.partition("/")[0] for version in (names.api_version, names.crd_api_version))
    if backing in groups:
        return ApiGroup(names, names.crd_api_version)
    return ApiGroup(names, names.api_version) if plain in groups else None
