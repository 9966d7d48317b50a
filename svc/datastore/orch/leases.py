"""Claims on the names of nodes, as Leases of the Kubernetes API.

The claim is a JSON document in an annotation. The spec of the Lease repeats it for users; svc does not read the spec.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

import orjson

from svc.datastore.api import Create, Delete, Entries, Entry, Forbidden, NotFound, StoreError, UndecodableEntry, Update
from svc.datastore.orch import resource_store
from svc.datastore.orch.client import ApiError, Client, segment
from svc.datastore.orch.collection import Collection, revision_of
from svc.model.claim import NodeClaim
from svc.model.keys import Key, NodeClaimKey, Query
from svc.names import Names

Json = dict[str, Any]
Answer = TypeVar("Answer")

NAMESPACE = "kube-system"
LEASE_SECONDS = 15  # after which another machine may take over a claim whose counter has stopped
_API_VERSION = "coordination.k8s.io/v1"
_LEASES = f"/apis/{_API_VERSION}/namespaces/{NAMESPACE}/leases"
_MAX_NAME = 253
_DIGITS = 11  # hexadecimal digits of the hash at the end of a shortened name


class LeaseStore:
    """Node claims of one deployment. Its methods raise Forbidden if the session may not use Leases."""

    def __init__(self, client: Client, names: Names) -> None:
        self._client = client
        self._prefix = names.plugin
        self._annotation = f"{names.label_prefix}/node-claim"

    def of(self, node: str) -> Entries[NodeClaim]:
        """Return the claim on a node's name; no entry if it does not exist."""
        key = NodeClaimKey(node)
        try:
            return Entries([self.get(key)])
        except NotFound:
            return Entries()

    def get(self, key: Key) -> Entry[NodeClaim]:
        data = _permitted(lambda: resource_store.present(self._client, self._path(key)))
        if data is None:
            raise NotFound(key)
        return self._entry(key, data)

    def source(self, query: Query) -> Collection:
        raise StoreError(f"{query} cannot be watched", details="read it")

    def create(self, write: Create) -> Entry:
        body = self._lease(write.key, write.value)
        send = partial(self._client.create, _LEASES, body)
        try:
            data = _permitted(lambda: resource_store.write_verified(write.key, send, partial(self._written, write.key, body)))
        except NotFound:
            raise Forbidden(f"namespace {NAMESPACE} does not exist", details="create it: node claims are kept there") from None
        return self._entry(write.key, data)

    def update(self, write: Update) -> Entry:
        body = self._lease(write.key, write.value, write.revision)
        send = partial(self._client.replace, self._path(write.key), body)
        return self._entry(
            write.key,
            _permitted(lambda: resource_store.write_verified(write.key, send, partial(self._written, write.key, body))),
        )

    def delete(self, write: Delete) -> None:
        preconditions = {} if write.revision is None else {"resourceVersion": write.revision}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        send = partial(self._client.delete, self._path(write.key), options)
        _permitted(lambda: resource_store.write_verified(write.key, send, lambda: None))

    def _written(self, key: Key, body: Json) -> Json | None:
        """Return the object if a write without an answer was applied, else None."""
        data = resource_store.present(self._client, self._path(key))
        return data if data is not None and _annotations(data) == _annotations(body) else None

    def _lease(self, key: Key, value: NodeClaim, revision: str | None = None) -> Json:
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
        metadata: Json = {"name": self._name(key), "namespace": NAMESPACE}
        metadata["annotations"] = {self._annotation: orjson.dumps(value.to_json()).decode()}
        if revision is not None:
            metadata["resourceVersion"] = revision
        spec = {
            "holderIdentity": f"{value.claimant.machine}/{value.claimant.boot}",
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
        }
        return {"apiVersion": _API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}

    def _entry(self, key: Key, data: Json) -> Entry[NodeClaim]:
        try:
            document = orjson.loads(_annotations(data)[self._annotation])
            return Entry(key, NodeClaim.from_json(document), revision_of(data))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"{self._path(key)} is not a node claim: annotation {self._annotation}: {error}"
            raise UndecodableEntry(message, details="delete the Lease") from error

    def _path(self, key: Key) -> str:
        return f"{_LEASES}/{segment(self._name(key))}"

    def _name(self, key: Key) -> str:
        assert isinstance(key, NodeClaimKey)
        return lease_name(self._prefix, key.node)


def lease_name(plugin: str, node: str) -> str:
    """Return the name of the Lease of a node; a name of more than 253 characters is cut and ends in a hash."""
    name = f"{plugin}-cni-{node}".lower()
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{name[: _MAX_NAME - _DIGITS - 1].rstrip('.-')}-{digest}"


def _annotations(data: Json) -> Json:
    return data["metadata"].get("annotations") or {}


def _permitted(step: Callable[[], Answer]) -> Answer:
    """Return the result of a step. Raise Forbidden if the session lacks the right, or the API server serves no Leases."""
    try:
        return step()
    except ApiError as error:
        if error.status in (403, 404):
            raise Forbidden(error.msg, details=error.details) from error
        raise
