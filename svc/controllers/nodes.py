"""What the controllers know of each node: as Kubernetes has it, and as the datastore has it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

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
    """Return the name that a Node of the datastore has in Kubernetes; empty if it is none of Kubernetes.

    Raise ValueError if `spec.orchRefs` has another form.
    """
    for reference in node.spec.get("orchRefs") or ():
        if not isinstance(reference, dict):
            raise ValueError("spec.orchRefs has an item that is not an object")
        if reference.get("orchestrator") == names.orchestrator:
            return str(reference.get("nodeName") or "")
    return ""
