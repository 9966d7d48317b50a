"""The Lease of the leader in the Kubernetes API."""

from datetime import datetime, timezone
from typing import Any

from svc import deadline
from svc.datastore.orch.client import ApiError, Client, segment
from svc.datastore.orch.leases import API_VERSION, LEASES, NAMESPACE
from svc.datastore.orch.resource_store import revision_of
from svc.leader.election import LEASE_SECONDS, Election, Holding

Json = dict[str, Any]

_ATTEMPT_SECONDS = 4.0  # so that a leader can try twice before it must stop
_CONFLICT = 409
_MISSING = 404


class LeaderLease:
    """The Lease of this name. One thread uses it."""

    def __init__(self, client: Client, name: str, election: Election) -> None:
        self._client = client
        self._name = name
        self._election = election
        self._path = f"{LEASES}/{segment(name)}"

    def attempt(self) -> None:
        """Take the Lease if it is free or has expired, or renew it. Raise StoreError if that fails."""
        began = self._election.clock()
        with deadline.limit(_ATTEMPT_SECONDS):
            lease = self._find()
            if self._election.observe(None if lease is None else _holding(lease)) and self._write(
                lease, self._election.identity
            ):
                self._election.renewed(began)

    def release(self) -> None:
        """End the lead, so that another process can take the Lease at once. Raise StoreError if the API server fails."""
        self._election.resign()
        with deadline.limit(_ATTEMPT_SECONDS):
            lease = self._find()
            if lease is not None and _holding(lease).holder == self._election.identity:
                self._write(lease, "")

    def _find(self) -> Json | None:
        try:
            return self._client.get(self._path)
        except ApiError as error:
            if error.status == _MISSING and error.reason == "NotFound":
                return None
            raise

    def _write(self, lease: Json | None, holder: str) -> bool:
        """Create the Lease, or replace it if it is unchanged. Return False if another process was faster."""
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before: Json = {} if lease is None else lease.get("spec") or {}
        spec = before | {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        if before.get("holderIdentity") != holder:
            spec |= {"acquireTime": now, "leaseTransitions": int(before.get("leaseTransitions") or 0) + bool(holder)}
        try:
            if lease is None:
                metadata = {"name": self._name, "namespace": NAMESPACE}
                self._client.create(LEASES, {"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec})
            else:
                self._client.replace(self._path, lease | {"spec": spec})
        except ApiError as error:
            if error.status == _CONFLICT:
                return False
            raise
        return True


def _holding(lease: Json) -> Holding:
    spec = lease.get("spec") or {}
    seconds = float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
    return Holding(str(spec.get("holderIdentity") or ""), seconds, revision_of(lease))
