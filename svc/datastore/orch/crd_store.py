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

from svc.datastore.api import Conflict, Create, Delete, Entry, NotFound, StoreError, UndecodableEntry, Update
from svc.datastore.orch import resource_store
from svc.datastore.orch.client import ApiError, Client, Unreachable, segment
from svc.datastore.orch.collection import Collection, revision_of
from svc.model import custom_resources
from svc.model.custom_resources import CustomResourceCodec
from svc.model.errors import CallerError
from svc.model.keys import AffinityKey, BlockKey, HandleKey, IpamConfigKey, Key, Query, ResourceKey
from svc.model.kv_codec import Value
from svc.model.object_metadata import Group
from svc.names import Names
from svc.retry import attempts

Json = dict[str, Any]

_MARKED = (BlockKey, AffinityKey, HandleKey)
_MARKING_ATTEMPTS = 10  # to write the tombstone of an object that other writers change, for a deletion at any revision
_LISTED = ("IPPool", "IPReservation")  # the role of the plugin may list these, but not get one by its path
_REPAIR = "delete the object, or put it right with kubectl edit"

_log = logging.getLogger(__name__)


class CrdStore:
    """Custom resources of one deployment. If `api_group` is empty, the API server is asked which group it serves."""

    def __init__(self, client: Client, names: Names, api_group: str = "") -> None:
        self._client = client
        self._names = names
        self._found: CustomResourceCodec | None = CustomResourceCodec(_given_group(names, api_group)) if api_group else None

    def get(self, key: Key) -> Entry:
        """Return the entry of a key. Raise NotFound if it does not exist, UndecodableEntry if its object cannot be decoded.

        An object with a tombstone is removed, and counts as missing.
        """
        data = self._present(key)
        if data is None:
            raise NotFound(key)
        try:
            found, value = self._objects.decode(self._objects.kind(key), data)
        except ValueError as error:
            raise UndecodableEntry(f"{self._path(key)} is no valid object: {error}", details=_REPAIR) from error
        if found != key:  # a handle whose name differs in case, or another kind of affinity
            raise NotFound(key)
        return Entry(key, value, revision_of(data))

    def source(self, query: Query) -> Collection:
        return self._collection_of(self._objects.kind(query), self._objects.selector(query))

    def settings(self) -> Collection:
        """Return the collection of the IPAM settings, which no query covers."""
        return self._collection_of(self._objects.kind(IpamConfigKey()), "")

    def unlabelled_affinities(self) -> Collection:
        """Return the affinities of all hosts without the labels that select the affinities of a host."""
        return self._collection_of(custom_resources.AFFINITY, self._objects.unlabelled)

    def _collection_of(self, kind: str, selector: str) -> Collection:
        path = f"{self._objects.group.root}/{custom_resources.kind_plural(kind)}"
        return Collection(path, partial(_read, self._objects, kind), {"labelSelector": selector} if selector else {})

    def create(self, write: Create) -> Entry:
        key, body = write.key, self._objects.encode(write.key, write.value)
        send = partial(self._client.create, self._collection(key), body)
        try:
            return self._entry(key, resource_store.write_verified(key, send, partial(self._created, key, body)))
        except Conflict:
            data = self._present(key)
            if data is not None:
                self._demand_same_handle(key, data)
                raise
        return self._entry(key, resource_store.write_verified(key, send, partial(self._created, key, body)))

    def update(self, write: Update) -> Entry:
        key, body = write.key, self._objects.encode(write.key, write.value, write.revision)
        send = partial(self._client.replace, self._path(key), body)
        return self._entry(key, resource_store.write_verified(key, send, partial(self._updated, key, body)))

    def delete(self, write: Delete) -> None:
        if isinstance(write.key, _MARKED):
            self.remove(write.key, self.mark(write))
        else:
            key, revision = write.key, write.revision
            resource_store.write_verified(
                key, partial(self._delete_object, key, revision), partial(self._deleted, key, revision)
            )

    def mark(self, write: Delete) -> Json:
        """Write the tombstone, the first step of a deletion. Return the marked object; {} if it no longer exists."""
        assert isinstance(write.key, _MARKED)
        return self._mark_any(write.key) if write.revision is None else self._mark(write.key, write.revision)

    def remove(self, key: Key, marked: Json) -> None:
        """Remove the marked object, the second step of a deletion. Without an answer, the next reader repeats it."""
        if not marked:
            return
        try:
            self._client.delete(self._path(key), _delete_options(uid=str(marked["metadata"]["uid"])))
        except ApiError as error:
            if error.status not in (404, 409):  # the object was removed, or replaced by another of the same name
                raise
        except Unreachable as error:
            _log.warning("%s is marked as deleted and not removed: %s", self._path(key), str(error))

    @property
    def _objects(self) -> CustomResourceCodec:
        """Return the codec. Threads that discover the group at the same time get equal results."""
        if self._found is not None:
            return self._found
        group = _served_group(self._client, self._names)
        objects = CustomResourceCodec(group or Group(self._names, self._names.crd_api_version))
        if group is not None:  # otherwise the next call looks again, because a group may be installed later
            self._found = objects
        return objects

    def _collection(self, key: Key) -> str:
        return f"{self._objects.group.root}/{self._objects.place(key).plural}"

    def _path(self, key: Key) -> str:
        return f"{self._collection(key)}/{segment(self._objects.place(key).name)}"

    def _entry(self, key: Key, data: Json) -> Entry:
        _, value = self._objects.decode(self._objects.kind(key), data)
        return Entry(key, value, revision_of(data))

    def _present(self, key: Key) -> Json | None:
        """Return the object of a key; None if it does not exist or has a tombstone. Remove an object with a tombstone."""
        data = self._find(key)
        if data is None or not isinstance(key, _MARKED) or not custom_resources.is_marked(data):
            return data
        self.remove(key, data)
        return None

    def _find(self, key: Key) -> Json | None:
        if not (isinstance(key, ResourceKey) and key.kind in _LISTED):
            return resource_store.present(self._client, self._path(key))
        name = re.sub(r"([\\,=])", r"\\\1", key.name)
        found = self._client.list(self._collection(key), fieldSelector=f"metadata.name={name}").items
        return found[0] if found else None

    def _created(self, key: Key, body: Json) -> Json | None:
        data = self._present(key)
        if data is not None and data.get("spec") != body["spec"]:
            raise Conflict(key)
        return data

    def _updated(self, key: Key, body: Json) -> Json | None:
        data = self._present(key)
        if data is None:
            raise NotFound(key)
        if data.get("spec") == body["spec"]:
            return data
        if revision_of(data) != body["metadata"]["resourceVersion"]:
            raise resource_store.outcome_unknown(key)
        return None

    def _demand_same_handle(self, key: Key, data: Json) -> None:
        """Raise StoreError if an object has another handle's ID. Object names are lower case, so a retry would fail too."""
        found = (data.get("spec") or {}).get("handleID")
        if isinstance(key, HandleKey) and found != key.handle:
            details = "let the names of networks differ in more than upper and lower case"
            raise StoreError(f"handle {key.handle!r} cannot be kept beside {found!r}", details=details)

    def _delete_object(self, key: Key, revision: str | None) -> Json:
        return self._client.delete(self._path(key), _delete_options(resourceVersion=revision))

    def _deleted(self, key: Key, revision: str | None) -> Json | None:
        data = self._present(key)
        if data is None:
            return {}
        if revision not in (None, revision_of(data)):
            raise Conflict(key)
        return None

    def _mark_any(self, key: BlockKey | AffinityKey | HandleKey) -> Json:
        for _ in attempts(_MARKING_ATTEMPTS):
            data = self._present(key)
            if data is None:
                raise NotFound(key)
            try:
                return self._mark(key, revision_of(data))
            except Conflict:
                continue
        raise Conflict(key)

    def _mark(self, key: BlockKey | AffinityKey | HandleKey, revision: str) -> Json:
        body = self._marked_block(key, revision) if isinstance(key, BlockKey) else self._objects.tombstone(key, revision)
        send = partial(self._client.replace, self._path(key), body)
        return resource_store.write_verified(key, send, partial(self._was_marked, key, revision))

    def _marked_block(self, key: BlockKey, revision: str) -> Json:
        """Return the whole block with a tombstone, because the schema of blocks accepts no shorter document."""
        data = self._present(key)
        if data is None:
            raise NotFound(key)
        if revision_of(data) != revision:
            raise Conflict(key)
        data["spec"]["deleted"] = True
        return data

    def _was_marked(self, key: Key, revision: str) -> Json | None:
        data = resource_store.present(self._client, self._path(key))
        if data is None:
            return {}
        if custom_resources.is_marked(data):
            return data
        if revision_of(data) != revision:
            raise Conflict(key)
        return None


def _read(objects: CustomResourceCodec, kind: str, data: Json) -> Iterator[tuple[Key, Value]]:
    if not custom_resources.is_marked(data):
        yield objects.decode(kind, data)


def _delete_options(**preconditions: str | None) -> Json:
    wanted = {name: text for name, text in preconditions.items() if text is not None}
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": wanted}


def _given_group(names: Names, api_group: str) -> Group:
    known = (names.api_version, names.crd_api_version)
    for version in known:
        if api_group.lower() == version.lower():
            return Group(names, version)
    raise CallerError(f"api_group = {api_group!r} is not known", details=f"give one of {' and '.join(known)}")


def _served_group(client: Client, names: Names) -> Group | None:
    """Return the served API group; None if neither is. Return the plain group only if the other one is not served."""
    try:
        groups = {str(group.get("name")) for group in client.get("/apis").get("groups") or ()}
    except ApiError:  # only old deployments lack the right to list API groups
        return Group(names, names.crd_api_version)
    plain, backing = (version.partition("/")[0] for version in (names.api_version, names.crd_api_version))
    if backing in groups:
        return Group(names, names.crd_api_version)
    return Group(names, names.api_version) if plain in groups else None
