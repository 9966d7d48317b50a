"""Server-side apply of objects, as `kubectl apply --server-side --force-conflicts` does it."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from svc.datastore.api import StoreError

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]

MANAGER = "svcctl"
SERVED_SECONDS = 30.0  # until a server serves a new definition
_POLL_SECONDS = 0.1


def apply(client: "Client", documents: Sequence[Json]) -> Iterator[str]:
    """Apply the objects, and yield the name of each; a definition is served then. Raise StoreError."""
    for document in documents:
        path = _path(document)
        client.apply(path, document, MANAGER)
        if document["kind"] == "CustomResourceDefinition":
            _await_established(client, path)
        yield str(document["metadata"]["name"])


def _path(document: Json) -> str:
    """Return the path of an object of a cluster-wide kind whose plural ends in s."""
    return f"/apis/{document['apiVersion']}/{document['kind'].lower()}s/{document['metadata']['name']}"


def _await_established(client: "Client", path: str) -> None:
    deadline = time.monotonic() + SERVED_SECONDS
    while not _is_established(client.get(path)):
        if time.monotonic() > deadline:
            details = "see its conditions: kubectl describe"
            raise StoreError(f"{path} is not served after {SERVED_SECONDS:.0f} seconds", details=details)
        time.sleep(_POLL_SECONDS)


def _is_established(definition: Json) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
