"""Places of objects in a cluster."""

from typing import Any

from svc.values import dataclass

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """API version, kind, namespace (empty for objects of the cluster) and name of an object."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return "/".join(filter(None, (self.kind, self.namespace, self.name)))


def place_of(document: Json) -> Place:
    """Return the place of a document, which must have kind and name."""
    metadata = document["metadata"]
    return Place(document["apiVersion"], document["kind"], str(metadata.get("namespace") or ""), metadata["name"])
