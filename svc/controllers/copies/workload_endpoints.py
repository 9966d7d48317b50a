"""The controller `workloadendpoint`: stored endpoints follow the labels and the service account of their pods.

It creates and deletes no endpoint: ADD and DEL do. The worker reads the endpoint, then its pod, and its write compares the
revision of the endpoint. So it can neither restore an endpoint that a DEL has deleted, nor overwrite that of a newer ADD.

An endpoint is of the pod if both name the same node, and if no annotation of the pod states another container for the
interface. A pod that was created again on another node does not change the endpoint of the earlier one.
"""

import logging
import threading
from collections.abc import Collection, Iterable
from typing import Any

from svc.controllers.controller import Controller, Shared, Unsettled
from svc.controllers.copies.endpoint_copies import copied, follows_pod, states_another_container
from svc.controllers.live_reads import find_pod
from svc.controllers.nodes import kube_name
from svc.controllers.settings import WORKLOAD
from svc.datastore.api import Entry
from svc.model.keys import ResourceKey
from svc.model.resource import Resource

Json = dict[str, Any]

log = logging.getLogger("svc.controllers")


class Endpoints(Controller[ResourceKey]):
    """The controller. An item is the key of an endpoint."""

    def __init__(self, shared: Shared) -> None:
        self.name = WORKLOAD
        self._names = shared.names
        tables = shared.tables
        self._pods, self._nodes, self._stored = tables.pods, tables.nodes, tables.endpoints
        self._of_pod: dict[str, tuple[ResourceKey, ...]] = {}  # a set would take four times as much memory
        self._pod_of: dict[ResourceKey, str] = {}
        self._indexing = threading.Lock()
        super().__init__(shared, (self._pods, self._nodes, self._stored))
        self._stored.on_change(self._on_endpoints)
        self._pods.on_change(self._on_pods)

    def round_items(self) -> Iterable[ResourceKey]:
        return [key for key in self._stored.snapshot() if self._differs(key)]

    def settle(self, item: ResourceKey) -> None:
        """Copy what differs. Read the endpoint before its pod, so that another leader's write makes this one fail."""
        found: list[Resource] = []

        def change(endpoint: Resource | None) -> Resource | None:
            wanted = endpoint and self._wanted(endpoint)
            found[:] = [wanted] if wanted is not None and wanted is not endpoint else []
            return wanted

        self.shared.store.update(item, change, durable=True)
        if found:
            log.info("controller %s: updated %s", self.name, self.shown(item))

    def shown(self, item: ResourceKey) -> str:
        return f"{item.namespace}/{item.name}"

    def _wanted(self, endpoint: Resource) -> Resource:
        """Return what the endpoint should be; the same object if it is that, or is not of the present pod of its name."""
        if not follows_pod(self._names, endpoint):
            return endpoint
        pod = self._pod(endpoint)
        if pod is None or states_another_container(self._names, pod, endpoint):
            return endpoint
        node, place = str(endpoint.spec.get("node") or ""), str((pod.get("spec") or {}).get("nodeName") or "")
        if node != place and self._kube_name(self.shared.store.find(ResourceKey("Node", node)), node) != place:
            return endpoint
        return copied(self._names, pod, endpoint)

    def _pod(self, endpoint: Resource) -> Json | None:
        return find_pod(self.shared.client, endpoint.namespace, str(endpoint.spec["pod"]))

    def _on_endpoints(self, keys: Collection[ResourceKey]) -> None:
        with self._indexing:
            for key in keys:
                self._index(key)
        self._add_differing(keys)

    def _index(self, key: ResourceKey) -> None:
        row, before = self._stored.get(key), self._pod_of.pop(key, None)
        if before is not None:
            others = tuple(other for other in self._of_pod.pop(before) if other != key)
            if others:
                self._of_pod[before] = others
        if row is not None and row.copied:
            self._pod_of[key] = row.pod
            self._of_pod[row.pod] = (*self._of_pod.get(row.pod, ()), key)

    def _on_pods(self, pods: Collection[str]) -> None:
        with self._indexing:
            keys = [key for pod in pods for key in self._of_pod.get(pod, ())]
        self._add_differing(keys)

    def _add_differing(self, keys: Iterable[ResourceKey]) -> None:
        if self.is_ready:
            self.add([key for key in keys if self._differs(key)])

    def _differs(self, key: ResourceKey) -> bool:
        row = self._stored.get(key)
        if row is None or not row.copied:  # it follows no pod
            return False
        pod = self._pods.get(row.pod)
        if pod is None or row.copied == pod.copied:
            return False
        return row.node == pod.node or self._is_named_otherwise(row.node, pod.node)

    def _is_named_otherwise(self, node: str, place: str) -> bool:
        """Return whether a Node of the datastore has another name in Kubernetes, and this one."""
        try:
            return self._kube_name(self._nodes.get(ResourceKey("Node", node)), node) == place
        except Unsettled:
            return True  # `settle` reports it

    def _kube_name(self, node: Entry[Resource] | None, name: str) -> str:
        try:
            return "" if node is None else kube_name(self._names, node.value)
        except ValueError as error:
            raise Unsettled(f"Node {name!r}: {error}: correct it with `svcctl apply`") from None
