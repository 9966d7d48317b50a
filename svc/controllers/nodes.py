"""What the controllers know of each node: as Kubernetes has it, and as the datastore has it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from svc.controllers.live_reads import find_object
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client, segment
from svc.model.errors import PeerError
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import Names

Json = dict[str, Any]


class KubeNode(NamedTuple):
    """A node of Kubernetes."""

    uid: str
    labels: Mapping[str, str]
    internal_addresses: tuple[str, ...]


def read_node(node: Json) -> tuple[str, KubeNode]:
    """Return the name and the row of a node of Kubernetes."""
    metadata = node["metadata"]
    given = (node.get("status") or {}).get("addresses") or ()
    internal = tuple(str(each["address"]) for each in given if each.get("type") == "InternalIP")
    return metadata["name"], KubeNode(str(metadata["uid"]), metadata.get("labels") or {}, internal)


def kube_name(names: Names, node: Resource) -> str:
    """Return the name that a Node of the datastore has in Kubernetes; empty if Kubernetes never had it.

    Raise ValueError if `spec.orchRefs` has another form.
    """
    for reference in node.spec.get("orchRefs") or ():
        if not isinstance(reference, dict):
            raise ValueError("spec.orchRefs has an item that is not an object")
        if reference.get("orchestrator") == names.orchestrator:
            return str(reference.get("nodeName") or "")
    return ""


def known_kube_name(names: Names, node: Resource) -> str:
    """Return the name as `kube_name` does; empty also if the Node is malformed, which a live read reports."""
    try:
        return kube_name(names, node)
    except ValueError:
        return ""


def read_kube_name(names: Names, store: Backend, name: str) -> str:
    """Return the name that a node of the datastore has in Kubernetes; empty if Kubernetes never had it.

    A node without a Node in the datastore has the same name there. Raise StoreError, and PeerError if the Node is malformed.
    """
    node = store.find(ResourceKey("Node", name))
    try:
        return name if node is None else kube_name(names, node.value)
    except ValueError as error:
        remedy = "correct it with `svcctl node apply`"
        raise PeerError(f"Node {name!r} cannot be judged: {error}", details=remedy) from error


def read_kube_node(client: Client, name: str) -> Json | None:
    """Return a node of Kubernetes, read now; None if the API server says that it does not exist. Raise StoreError."""
    return find_object(client, f"/api/v1/nodes/{segment(name)}")
