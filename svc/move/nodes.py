"""Names of nodes in the datastores of a move. A Node in etcd names the node of Kubernetes that it stands for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from svc.datastore.api import StoreError
from svc.model.ipam import Attribute, Block
from svc.model.keys import NODE, AffinityKey, Host, Key
from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass, replace

_OF_TUNNELS: Final = tuple(
    f"{tunnel}-tunnel-addr-" for tunnel in ("ipip", "vxlan", "vxlan-v6", "wireguard", "wireguard-v6")
)  # handles: the node's name follows
_OWNER: Final = "node"  # attribute of an allocation


@dataclass(frozen=True, slots=True)
class NodeNames:
    """The name of each node in the target, by its name in the source. Nodes without an entry have no Node in the source."""

    renamed: Mapping[str, str]

    def of(self, node: str) -> str:
        """Return the name in the target; the same one for a node that the source does not know."""
        return self.renamed.get(node, node)

    def key(self, key: AffinityKey) -> AffinityKey:
        return replace(key, host=self.of(key.host)) if key.kind == NODE else key

    def handle(self, handle: str) -> str:
        """Return the handle with the new name of a node, if it is that of a tunnel."""
        for head in _OF_TUNNELS:
            node = handle.removeprefix(head)
            if node != handle and node in self.renamed:
                return head + self.renamed[node]
        return handle

    def block(self, block: Block) -> Block:
        """Return a copy of the block with the new names in its affinity and in its attributes."""
        made, host = block.copy(), Host.of(block.affinity)
        if host is not None and host.kind == NODE:
            made.affinity = Host(self.of(host.name)).affinity
        if made.attributes is not None:
            made.attributes = list(map(self._attribute, made.attributes))
        return made

    def _attribute(self, attribute: Attribute) -> Attribute:
        return Attribute(
            attribute.handle_id and self.handle(attribute.handle_id),
            self._owner(attribute.secondary),
            self._owner(attribute.alternate),
            attribute.released_at,
            attribute.extra,
        )

    def _owner(self, owner: dict[str, str] | None) -> dict[str, str] | None:
        return owner | {_OWNER: self.of(owner[_OWNER])} if owner and _OWNER in owner else owner


def is_of_tunnel(handle: str) -> bool:
    """Return whether this is the handle of a tunnel's address."""
    return handle.startswith(_OF_TUNNELS)


def kubernetes_name(names: Names, node: Resource) -> str:
    """Return the name in Kubernetes that a Node has; empty if it has none."""
    references = node.spec.get("orchRefs")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict) and reference.get("orchestrator") == names.orchestrator and reference.get("nodeName"):
            return str(reference["nodeName"])
    return ""


def between(names: Names, source: Iterable[Resource], target: Iterable[Resource]) -> NodeNames:
    """Return the names for a move. A node without a counterpart in the target gets its name in Kubernetes.

    Raise StoreError if nodes of the source would get the same name."""
    known = {kube: node.name for node in target if (kube := kubernetes_name(names, node))}
    renamed = {}
    for node in source:
        kube = kubernetes_name(names, node)
        if kube:
            renamed[node.name] = known.get(kube, kube)
    if twice := [name for name, count in Counter(renamed.values()).items() if count > 1]:
        both = sorted(name for name, new in renamed.items() if new == twice[0])
        details = "delete the Node that is not in use, or correct its orchRefs"
        raise StoreError(f"nodes {' and '.join(map(repr, both))} are both node {twice[0]!r} of Kubernetes", details=details)
    return NodeNames(renamed)


def hosts_of(keys: Iterable[Key]) -> set[str]:
    """Return the nodes that have affinities."""
    return {key.host for key in keys if isinstance(key, AffinityKey) and key.kind == NODE}
