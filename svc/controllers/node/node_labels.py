"""The part of controller `node` that copies the labels of Kubernetes nodes to the Nodes of a datastore of its own.

An annotation lists the labels that were copied. So a label that Kubernetes loses goes, and those of other programs stay.
"""

import logging
from collections.abc import Collection, Iterable
from typing import Any, Final

import orjson

from svc.controllers.configuration import Labels
from svc.controllers.controller import Controller, Shared
from svc.controllers.nodes import known_kube_name, kube_name, read_kube_name, read_kube_node, read_node
from svc.controllers.settings import NODE
from svc.datastore.api import Update
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, ordered
from svc.values import replace

_NODE: Final = "Node"

log = logging.getLogger("svc.controllers")


class NodeLabels(Controller[str]):
    """Copies labels. The items are the names of Nodes."""

    name = NODE

    def __init__(self, shared: Shared) -> None:
        self._store = shared.store
        self._nodes, self._kube_nodes = shared.tables.nodes, shared.tables.kube_nodes
        self._copied = f"{shared.names.label_prefix}/kube-labels"
        super().__init__(shared, (self._nodes, self._kube_nodes))
        self._nodes.on_change(lambda keys: self._compare({key.name for key in keys}))
        self._kube_nodes.on_change(self._compare_nodes_of)
        shared.live.on_change(lambda _: self.begin_round())

    def round_items(self) -> Iterable[str]:
        return self._differing(key.name for key in self._nodes.snapshot())

    def settle(self, item: str) -> None:
        """Read the Node and its node of Kubernetes, and write the labels that differ."""
        if not self.shared.live.now.syncs_labels:
            return
        key = ResourceKey(_NODE, item)
        entry = self._store.find(key)
        name = "" if entry is None else read_kube_name(self.shared.names, self._store, item)
        node = read_kube_node(self.shared.client, name) if name else None
        if entry is None or node is None:
            return
        copied = with_labels(entry.value, read_node(node)[1].labels, self._copied)
        if copied is not None:
            self._store.write([Update(key, copied, entry.revision)], durable=True)
            log.info("controller %s: copied the labels of %s", self.name, self.shown(item))

    def shown(self, item: str) -> str:
        return f"node {item}"

    def _compare_nodes_of(self, names: Collection[str]) -> None:
        """Compare the Nodes of these nodes of Kubernetes. Most have the same name."""
        if all(self._node_named(name) for name in names):
            self._compare(names)
            return
        wanted, present = set(names), self._nodes.snapshot().items()
        self._compare([key.name for key, entry in present if known_kube_name(self.shared.names, entry.value) in wanted])

    def _node_named(self, name: str) -> bool:
        entry = self._nodes.get(ResourceKey(_NODE, name))
        return entry is not None and known_kube_name(self.shared.names, entry.value) == name

    def _compare(self, names: Iterable[str]) -> None:
        if self.is_ready:
            self.add(self._differing(names))

    def _differing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._differs(name)] if self.shared.live.now.syncs_labels else []

    def _differs(self, name: str) -> bool:
        entry = self._nodes.get(ResourceKey(_NODE, name))
        if entry is None:
            return False
        try:
            row = self._kube_nodes.get(kube_name(self.shared.names, entry.value))
        except ValueError:
            return True  # `settle` reports it
        return row is not None and with_labels(entry.value, row.labels, self._copied) is not None


def with_labels(node: Resource, labels: Labels, annotation: str) -> Resource | None:
    """Return the Node with the labels of Kubernetes in place of those that were copied last; None if it has them."""
    notes = node.metadata.get("annotations") or {}
    former = _loaded(notes.get(annotation))
    wanted = {name: text for name, text in node.labels.items() if name not in former or name in labels} | dict(labels)
    noted = orjson.dumps(dict(labels), option=orjson.OPT_SORT_KEYS).decode()
    if wanted == node.labels and notes.get(annotation) == noted:
        return None
    return replace(node, metadata=ordered(node.metadata | {"labels": wanted, "annotations": notes | {annotation: noted}}))


def _loaded(text: Any) -> dict[str, Any]:
    """Return the labels that an annotation lists; none if it is missing or malformed."""
    try:
        found = orjson.loads(text or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
