"""Nodes of Kubernetes, which svc only reads."""

from collections.abc import Hashable, Iterator
from typing import Any, NoReturn

from svc.datastore.api import Create, Delete, Entry, NotFound, StoreError, Update
from svc.datastore.orch.client import segment
from svc.datastore.orch.resource_store import Collection, ResourceStore, revision_of
from svc.model.keys import Key, Query, ResourceKey
from svc.model.kubernetes_node import KIND, node_resource
from svc.model.kv_codec import Value

Json = dict[str, Any]

_NODES = "/api/v1/nodes"


class NodeStore(ResourceStore):
    """Nodes of one cluster."""

    def get(self, key: Key) -> Entry:
        assert isinstance(key, ResourceKey)
        node = self._object(f"{_NODES}/{segment(key.name)}")
        if node is None:
            missing = NotFound(key)
            missing.details = "see `kubectl get nodes`, and set `nodename` in the network configuration to the name there"
            raise missing
        return Entry(key, node_resource(self._names, node), revision_of(node))

    def collection(self, query: Key | Query) -> Collection:  # noqa: ARG002 all nodes are in one collection
        return Collection(_NODES, self._read, fingerprint=self._fingerprint)

    def write(self, write: Create | Update | Delete) -> NoReturn:
        assert isinstance(write.key, ResourceKey)
        name = write.key.name
        raise StoreError(
            f"node {name!r} belongs to Kubernetes",
            details=f"change it there: kubectl label node {name} KEY=VALUE, or kubectl delete node {name}",
        )

    def _read(self, node: Json) -> Iterator[tuple[Key, Value]]:
        resource = node_resource(self._names, node)
        yield ResourceKey(KIND, resource.name), resource

    def _fingerprint(self, node: Json) -> Hashable:
        """Return the parts of a node that its resource uses. The status of a node changes often without them."""
        resource = node_resource(self._names, {"metadata": node["metadata"]})
        return repr((resource.labels, resource.spec, resource.status, resource.metadata.get("annotations")))
