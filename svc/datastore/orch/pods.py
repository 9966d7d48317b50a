"""Endpoints of pods: read from the pod, and written to its annotations through the status subresource.

A pod has one endpoint per interface during its whole life. A `Create` therefore overwrites the endpoint of a previous sandbox,
and does not fail with Conflict. A container that is not a pod cannot have an endpoint here.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from svc.datastore.api import Create, Delete, Entries, Entry, NotFound, StoreError, Update
from svc.datastore.orch import resource_store
from svc.datastore.orch.client import STRATEGIC_PATCH, Client, segment
from svc.datastore.orch.collection import Collection, revision_of
from svc.model.keys import Key, Query, ResourceKey, ResourceQuery
from svc.model.kv_codec import Value
from svc.model.pod_endpoint import PodInterface, endpoints_of, pod_interface, unwiring, wiring
from svc.model.resource import Resource
from svc.names import Names

Json = dict[str, Any]

_NO_POD = "pass K8S_POD_NAME and K8S_POD_NAMESPACE in CNI_ARGS, or use another datastore"


class PodEndpointStore:
    """Endpoints of one deployment's pods."""

    def __init__(self, client: Client, names: Names) -> None:
        self._client = client
        self._names = names

    def get(self, key: Key) -> Entry:
        assert isinstance(key, ResourceKey)
        interface = pod_interface(self._names, key)
        pod = resource_store.present(self._client, _path(interface)) if interface else None
        entry = pod and self._entry(key, pod)
        if not entry:
            raise NotFound(key)
        return entry

    def source(self, query: Query) -> Collection:
        """Return the collection of a query. For the endpoints of one pod, it contains only that pod."""
        assert isinstance(query, ResourceQuery)
        read = partial(_read, self._names)
        interface = pod_interface(self._names, query)
        if interface:
            field = f"metadata.name={interface.pod}"
            return Collection(_pods(interface.namespace), read, {"fieldSelector": field})
        return Collection(_pods(query.namespace) if query.namespace else "/api/v1/pods", read)

    def one(self, query: Query) -> Entries | None:
        """Return the endpoints of one pod, for which the right `get` suffices; None if the query covers several pods."""
        interface = isinstance(query, ResourceQuery) and pod_interface(self._names, query)
        if not interface:
            return None
        pod = resource_store.present(self._client, _path(interface))
        return (
            Entries(Entry(key, value, revision_of(pod)) for key, value in endpoints_of(self._names, pod)) if pod else Entries()
        )

    def create(self, write: Create) -> Entry:
        return self._wire(write.key, write.value, None)

    def update(self, write: Update) -> Entry:
        return self._wire(write.key, write.value, write.revision)

    def delete(self, write: Delete) -> None:
        self._patch(write.key, unwiring(self._names, self._interface(write.key).interface), write.revision)

    def _wire(self, key: Key, value: Resource, revision: str | None) -> Entry:
        pod = self._patch(key, wiring(self._names, self._interface(key).interface, value), revision)
        return self._entry(key, pod) or Entry(key, value, revision_of(pod))

    def _patch(self, key: Key, notes: dict[str, str], revision: str | None) -> Json:
        path = _path(self._interface(key))
        metadata: Json = {"annotations": notes} | ({} if revision is None else {"resourceVersion": revision})
        send = partial(self._client.patch, f"{path}/status", {"metadata": metadata}, STRATEGIC_PATCH)
        return resource_store.write_verified(key, send, partial(self._patched, key, path, notes, revision))

    def _patched(self, key: Key, path: str, notes: dict[str, str], revision: str | None) -> Json | None:
        pod = resource_store.present(self._client, path)
        if pod is None:
            raise NotFound(key)
        present = pod["metadata"].get("annotations") or {}
        if notes.items() <= present.items():
            return pod
        if revision not in (None, revision_of(pod)):
            raise resource_store.outcome_unknown(key)
        return None

    def _entry(self, key: Key, pod: Json) -> Entry | None:
        found = (value for name, value in endpoints_of(self._names, pod) if name == key)
        return next((Entry(key, value, revision_of(pod)) for value in found), None)

    def _interface(self, key: Key) -> PodInterface:
        assert isinstance(key, ResourceKey)
        interface = pod_interface(self._names, key)
        if interface is None:
            raise StoreError(f"endpoint {key.name!r} belongs to no pod", details=_NO_POD)
        return interface


def _read(names: Names, pod: Json) -> Iterator[tuple[Key, Value]]:
    yield from endpoints_of(names, pod)


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/pods"


def _path(interface: PodInterface) -> str:
    return f"{_pods(interface.namespace)}/{segment(interface.pod)}"
