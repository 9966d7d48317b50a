"""Nodes of Kubernetes, which svc only reads."""

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any, NoReturn

from svc.datastore.api import Create, Delete, Entry, NotFound, StoreError, Update
from svc.datastore.orch import resource_store
from svc.datastore.orch.client import Client, segment
from svc.datastore.orch.collection import Collection, revision_of
from svc.model.keys import Key, Query, ResourceKey
from svc.model.kubernetes_node import KIND, node_resource
from svc.model.kv_codec import Value
from svc.names import Names

Json = dict[str, Any]

_NODES = "/api/v1/nodes"


class NodeStore:
    """Nodes of one cluster."""

    def __init__(self, client: Client, names: Names) -> None:
        self._client = client
        self._names = names

    def get(self, key: Key) -> Entry:
        assert isinstance(key, ResourceKey)
        node = resource_store.present(self._client, f"{_NODES}/{segment(key.name)}")
        if node is None:
            missing = NotFound(key)
            missing.details = "see `kubectl get nodes`, and set `nodename` in the network configuration to the name there"
            raise missing
        return Entry(key, node_resource(self._names, node), revision_of(node))

    def source(self, query: Query) -> Collection:  # noqa: ARG002 all nodes are in one collection
        return Collection(_NODES, partial(_read, self._names), fingerprint=partial(_fingerprint, self._names))

    def create(self, write: Create) -> Entry:
        _refuse(write.key)

    def update(self, write: Update) -> Entry:
        _refuse(write.key)

    def delete(self, write: Delete) -> None:
        _refuse(write.key)


def _read(names: Names, node: Json) -> Iterator[tuple[Key, Value]]:
    resource = node_resource(names, node)
    yield ResourceKey(KIND, resource.name), resource


def _fingerprint(names: Names, node: Json) -> Hashable:
    """Return the parts of a node that its resource uses, such as labels. The status of a node changes often without them."""
    resource = node_resource(names, {"metadata": node["metadata"]})
    return repr((resource.labels, resource.spec, resource.status, resource.metadata.get("annotations")))


def _refuse(key: Key) -> NoReturn:
    assert isinstance(key, ResourceKey)
    raise StoreError(
        f"node {key.name!r} is the orchestrator's",
        details=f"change it there: kubectl label node {key.name} KEY=VALUE, or kubectl delete node {key.name}",
    )
