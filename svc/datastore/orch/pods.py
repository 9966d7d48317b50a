"""Endpoints of pods: read from the pod, and written to its annotations through the status subresource.

A pod has one endpoint per interface during its whole life. A `Create` therefore overwrites the endpoint of a previous sandbox,
and does not fail with Conflict. A container that is not a pod cannot have an endpoint here.
"""

from functools import partial
from typing import Any

from svc.datastore.api import Create, Delete, Entries, Entry, NotFound, StoreError, Update
from svc.datastore.orch.client import STRATEGIC_PATCH, segment
from svc.datastore.orch.resource_store import Collection, ResourceStore, revision_of, updated, write_verified
from svc.model.keys import Key, Query, ResourceKey, ResourceQuery
from svc.model.pod_endpoint import PodInterface, cleared_annotations, endpoints_of, pod_interface, wired_annotations

Json = dict[str, Any]


class PodEndpointStore(ResourceStore):
    """Endpoints of one deployment's pods."""

    def get(self, key: Key) -> Entry:
        assert isinstance(key, ResourceKey)
        interface = pod_interface(self._names, key)
        pod = self._object(_path(interface)) if interface else None
        entry = pod and self._entry(key, pod)
        if not entry:
            raise NotFound(key)
        return entry

    def collection(self, query: Key | Query) -> Collection:
        """Return the collection of a query. For the endpoints of one pod, it contains only that pod."""
        assert isinstance(query, ResourceQuery)
        read = partial(endpoints_of, self._names)
        interface = pod_interface(self._names, query)
        if interface:
            return Collection(_pods(interface.namespace), read, {"fieldSelector": f"metadata.name={interface.pod}"})
        selector = {"fieldSelector": f"spec.nodeName={query.node}"} if query.node else {}
        return Collection(_pods(query.namespace) if query.namespace else "/api/v1/pods", read, selector)

    def list(self, query: Query) -> Entries:
        """Return the entries of a query. The endpoints of one pod need no more than the right `get`."""
        assert isinstance(query, ResourceQuery)
        interface = pod_interface(self._names, query)
        if interface is None:
            return super().list(query)
        pod = self._object(_path(interface))
        return self.collection(query).entries([pod] if pod else ())

    def write(self, write: Create | Update | Delete) -> Entry | None:
        key, interface = write.key, self._interface(write.key)
        revision = None if isinstance(write, Create) else write.revision
        if isinstance(write, Delete):
            self._patch(key, interface, cleared_annotations(self._names, interface.interface), revision)
            return None
        pod = self._patch(key, interface, wired_annotations(self._names, interface.interface, write.value), revision)
        return self._entry(key, pod) or Entry(key, write.value, revision_of(pod))

    def _patch(self, key: Key, interface: PodInterface, annotations: Json, revision: str | None) -> Json:
        path = _path(interface)
        metadata: Json = {"annotations": annotations} | ({} if revision is None else {"resourceVersion": revision})
        send = partial(self._client.patch, f"{path}/status", {"metadata": metadata}, STRATEGIC_PATCH)

        def is_applied(pod: Json) -> bool:
            return annotations.items() <= (pod["metadata"].get("annotations") or {}).items()

        return write_verified(key, send, lambda: updated(key, self._object(path), revision, is_applied))

    def _entry(self, key: Key, pod: Json) -> Entry | None:
        found = (value for name, value in endpoints_of(self._names, pod) if name == key)
        return next((Entry(key, value, revision_of(pod)) for value in found), None)

    def _interface(self, key: Key) -> PodInterface:
        assert isinstance(key, ResourceKey)
        interface = pod_interface(self._names, key)
        if interface is None:
            details = "pass K8S_POD_NAME and K8S_POD_NAMESPACE in CNI_ARGS, or use another datastore"
            raise StoreError(f"endpoint {key.name!r} belongs to no pod", details=details)
        return interface


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/pods"


def _path(interface: PodInterface) -> str:
    return f"{_pods(interface.namespace)}/{segment(interface.pod)}"
