"""The part of controller `node` that deletes the Node of a node that Kubernetes no longer has, where the datastore has Nodes.

A Node goes when nothing else of the node is left, so that a killed process leaves what the next round needs to go on. Leaked
addresses go by another part before. Automatic host endpoints follow the Node.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from svc.admin.block_release import addresses_of_node, delete_claim, remove_host
from svc.admin.resources import require_unused_node
from svc.controllers.controller import Controller, Shared
from svc.controllers.node.host_remains import lacks_node, read_remains
from svc.controllers.nodes import read_kube_name, read_kube_node
from svc.controllers.settings import NODE
from svc.datastore.api import Conflict, Delete, Entry
from svc.model.errors import CallerError
from svc.model.host_endpoint import KIND as HOST_ENDPOINT
from svc.model.host_endpoint import is_automatic
from svc.model.keys import NodeClaimKey, ResourceKey
from svc.model.resource import Resource

_NODE: Final = "Node"

log = logging.getLogger("svc.controllers")


class NodeDeletion(Controller[str]):
    """Deletes Nodes, with their endpoints and blocks. The items are names in the datastore."""

    name = NODE

    def __init__(self, shared: Shared) -> None:
        tables = shared.tables
        self._store = shared.store
        self._nodes, self._kube_nodes, self._blocks = tables.nodes, tables.kube_nodes, tables.blocks
        self._host_endpoints, self._endpoints = tables.host_endpoints, tables.endpoints
        self._gone = tables.gone_nodes
        watched = (self._nodes, self._kube_nodes, self._blocks, tables.affinities[0], self._host_endpoints, self._endpoints)
        super().__init__(shared, watched)
        self._kube_nodes.on_change(self._note_nodes)

    def round_items(self) -> Iterable[str]:
        return [key.name for key in self._nodes.snapshot() if lacks_node(self.shared.tables, self.shared.names, key.name)]

    def settle(self, item: str) -> None:
        """Delete the Node if its node is gone and holds no address. Otherwise the next round looks again."""
        key = ResourceKey(_NODE, item)
        entry = self._store.find(key)  # first, so that a change after the judgement refuses the deletion
        claim = None if entry is None else self._gone.claim_if_gone(item)
        if entry is None or claim is None or self._has_addresses(item):
            return
        leftovers = list(self._leftovers(item))  # before the claim goes: what an agent writes later has another revision
        try:  # fails if the agent of the node has renewed its claim since
            delete_claim(self._store, item, claim)
        except Conflict:
            return
        self._gone.note_deleted_claim(item, claim)
        for found in leftovers:
            self._store.write([Delete(found.key, found.revision)], durable=True)
            log.info("controller %s: deleted %s, whose node %s is gone", self.name, _shown(found.key), item)
        remove_host(self._store, item, read_remains(self.shared.tables, self._store, item).affinities)
        if self._is_back(item):
            return
        self._store.write([Delete(key, entry.revision)], durable=True)
        log.info("controller %s: deleted the Node %s, because Kubernetes has no such node", self.name, item)

    def shown(self, item: str) -> str:
        return f"the Node {item}"

    def _note_nodes(self, names: Collection[str]) -> None:
        """Begin to observe the claims of deleted nodes."""
        if self.is_ready and any(self._kube_nodes.get(name) is None for name in names):
            self.add(self.round_items())

    def _has_addresses(self, name: str) -> bool:
        """Return whether workloads or tunnels of the node hold addresses. All blocks are read only if the table has none."""
        if any(addresses_of_node(entry.value, name) for entry in self._blocks.snapshot().values()):
            return True
        try:
            require_unused_node(self._store, name)
        except CallerError as error:
            log.debug("controller %s: %s: %s", self.name, self.shown(name), error)
            return True
        return False

    def _leftovers(self, name: str) -> Iterator[Entry[Resource]]:
        """Yield the endpoints of a node as they are now, without the automatic ones, which follow the Node."""
        rows = self._endpoints.snapshot()
        known: list[Any] = [key for key, row in rows.items() if row.node == name]
        known += [key for key, entry in self._host_endpoints.snapshot().items() if entry.value.spec.get("node") == name]
        for key in known:
            entry = self._store.find(key)
            if entry is not None and entry.value.spec.get("node") == name and not self._is_automatic(entry.value):
                yield entry

    def _is_automatic(self, found: Resource) -> bool:
        return found.kind == HOST_ENDPOINT and is_automatic(self.shared.names, found)

    def _is_back(self, name: str) -> bool:
        """Return whether the node exists again, or its agent has claimed its name."""
        if self._store.find(NodeClaimKey(name)) is not None:
            return True
        return read_kube_node(self.shared.client, read_kube_name(self.shared.names, self._store, name)) is not None


def _shown(key: Any) -> str:
    kind = "host endpoint" if key.kind == HOST_ENDPOINT else "endpoint"
    return f"{kind} {key.namespace}/{key.name}" if key.namespace else f"{kind} {key.name}"
