"""Reads of the Kubernetes API just before a write: tables may be late."""

from typing import Any

from svc.datastore.orch.client import ApiError, Client, segment

Json = dict[str, Any]


def find_object(client: Client, path: str) -> Json | None:
    """Return an object as it is now; None if the API server says that it does not exist. Raise StoreError."""
    try:
        return client.get(path)
    except ApiError as error:
        if error.is_missing:
            return None
        raise


def find_pod(client: Client, namespace: str, name: str) -> Json | None:
    """Return a pod as `find_object` does."""
    return find_object(client, f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}")
