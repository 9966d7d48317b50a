"""Claims on the names of nodes, as Leases of the Kubernetes API.

The claim is a JSON document in an annotation. The spec of the Lease repeats it for users; svc does not read the spec.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import Any

import orjson

from svc.datastore.api import Create, Delete, Entries, Entry, Forbidden, NotFound, StoreError, UndecodableEntry, Update
from svc.datastore.orch.client import ApiError, segment
from svc.datastore.orch.resource_store import Collection, ResourceStore, revision_of, write_verified
from svc.model.claim import NodeClaim
from svc.model.keys import Key, NodeClaimKey, NodeClaimQuery, Query

Json = dict[str, Any]

NAMESPACE = "kube-system"
LEASE_SECONDS = 15  # after which another machine may take over a claim whose counter has stopped
API_VERSION = "coordination.k8s.io/v1"
LEASES = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/leases"
_MAX_NAME = 253
_DIGITS = 11  # hexadecimal digits of the hash at the end of a shortened name


@contextmanager
def _permitted() -> Iterator[None]:
    """Raise Forbidden if the session lacks the right, or if the API server serves no Leases."""
    try:
        yield
    except ApiError as error:
        if error.status in (403, 404):
            raise Forbidden(error.msg, details=error.details) from error
        raise


class LeaseStore(ResourceStore):
    """Node claims of one deployment. Its methods raise Forbidden if the session may not use Leases."""

    @_permitted()
    def get(self, key: Key) -> Entry[NodeClaim]:
        data = self._object(self._path(key))
        if data is None:
            raise NotFound(key)
        return self._entry(key, data)

    def list(self, query: Query) -> Entries[NodeClaim]:
        assert isinstance(query, NodeClaimQuery)
        try:
            return Entries([self.get(NodeClaimKey(query.node))])
        except NotFound:
            return Entries()

    def collection(self, query: Key | Query) -> Collection:
        raise StoreError(f"{query} cannot be watched", details="read it")

    @_permitted()
    def write(self, write: Create | Update | Delete) -> Entry | None:
        key, path = write.key, self._path(write.key)
        if isinstance(write, Delete):
            send = partial(self._client.delete, path, resourceVersion=write.revision)
            write_verified(key, send, lambda: None)
            return None
        revision = None if isinstance(write, Create) else write.revision
        body = self._lease(key, write.value, revision)
        send = partial(self._client.create, LEASES, body) if revision is None else partial(self._client.replace, path, body)
        try:
            return self._entry(key, write_verified(key, send, partial(self._written, path, body)))
        except NotFound:
            if revision is not None:
                raise
            raise Forbidden(f"namespace {NAMESPACE} does not exist", details="create it: node claims are kept there") from None

    def _written(self, path: str, body: Json) -> Json | None:
        """Return the object if a write without an answer was applied, else None."""
        data = self._object(path)
        return data if data is not None and _annotations(data) == _annotations(body) else None

    @property
    def _annotation(self) -> str:
        return f"{self._names.label_prefix}/node-claim"

    def _lease(self, key: Key, value: NodeClaim, revision: str | None) -> Json:
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
        return {"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}

    def _entry(self, key: Key, data: Json) -> Entry[NodeClaim]:
        try:
            document = orjson.loads(_annotations(data)[self._annotation])
            return Entry(key, NodeClaim.from_json(document), revision_of(data))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"{self._path(key)} is not a node claim: annotation {self._annotation}: {error}"
            raise UndecodableEntry(message, details="delete the Lease") from error

    def _path(self, key: Key) -> str:
        return f"{LEASES}/{segment(self._name(key))}"

    def _name(self, key: Key) -> str:
        """Return the name of the Lease of a node; a name of more than 253 characters is cut and ends in a hash."""
        assert isinstance(key, NodeClaimKey)
        name = f"{self._names.plugin}-cni-{key.node}".lower()
        if len(name) <= _MAX_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
        return f"{name[: _MAX_NAME - _DIGITS - 1].rstrip('.-')}-{digest}"


def _annotations(data: Json) -> Json:
    return data["metadata"].get("annotations") or {}
