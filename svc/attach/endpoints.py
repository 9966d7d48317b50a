"""Write, read, compare and delete the endpoint of an attachment, and create the policy profile of a network."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from svc._core.cidr import Address, Cidr
from svc.attach.record import Record
from svc.attach.sessions import DatastoreSession
from svc.datastore.api import Conflict, Contended, Create, Delete, Entry, NotFound, StoreError, Update
from svc.model.endpoint import KIND, PodFacts, Workload, endpoint, endpoint_key, has_endpoint
from svc.model.errors import Code
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource, new_uid, set_identity
from svc.retry import attempts
from svc.values import dataclass, replace

_ATTEMPTS = 6
_PROFILE = "Profile"


@dataclass(frozen=True, slots=True)
class StoredEndpoint:
    """The properties of an endpoint in the datastore that svc reads. `container` is empty if the endpoint names none."""

    resource: Resource

    @property
    def container(self) -> str:
        return str(self.resource.spec.get("containerID") or "")

    @property
    def profiles(self) -> list[str]:
        return list(self.resource.spec.get("profiles") or ())

    @property
    def network(self) -> str:
        """The network that created the endpoint of a bare container; empty if it is unknown."""
        return next(iter(self.profiles), "")

    @property
    def addresses(self) -> list[Address]:
        return [Cidr.masked(text).first for text in self.resource.spec.get("ipNetworks") or ()]

    def is_of(self, record: Record) -> bool:
        return self.container == record.id.container_id


def require_endpoint_support(session: DatastoreSession, workload: Workload) -> None:
    """Raise StoreError if the datastore cannot store the endpoint of a wired workload."""
    if session.settings["kind"] == "orch" and not workload.is_pod:
        details = "pass K8S_POD_NAME and K8S_POD_NAMESPACE in CNI_ARGS, or use another datastore"
        raise StoreError("a container that is not a pod has no place in the Kubernetes API", details=details)


def needs_endpoint(session: DatastoreSession, record: Record) -> bool:
    """Return whether the attachment must have an endpoint of its own."""
    return record.is_wired and has_endpoint(session.names, record.workload, record.id.ifname)


def endpoint_of(session: DatastoreSession, record: Record, addresses: Sequence[Address], facts: PodFacts) -> Resource:
    """Return the endpoint of an attachment with these addresses, without UID and creation time."""
    spec = {
        "ipNetworks": [str(address.host()) for address in addresses],
        "interfaceName": record.host_name,
        "mac": record.mac,
    }
    names, key = session.names, record.endpoint_key(session.names)
    return endpoint(names, key, record.node, record.workload, record.id.ifname, spec=spec, facts=facts)


def creation(resource: Resource) -> Create:
    """Return the write that creates the endpoint. Set its UID and creation time."""
    set_identity(resource, datetime.now(timezone.utc), new_uid())
    return Create(ResourceKey(KIND, resource.name, resource.namespace), resource)


def write_endpoint(session: DatastoreSession, resource: Resource) -> None:
    """Create the endpoint, or update that of an earlier sandbox. Raise StoreError, also if the pod does not exist."""
    create = creation(resource)
    for _ in attempts(_ATTEMPTS):
        try:
            session.backend.write([create])
            return
        except Conflict:
            pass
        except NotFound:  # in the Kubernetes API, the pod stores the endpoint
            raise StoreError(
                f"pod {resource.namespace}/{resource.spec.get('pod')} does not exist",
                details="if it was deleted, nothing is to be done; else compare CNI_ARGS and the kubeconfig's cluster",
                code=Code.ORCHESTRATOR,
            ) from None
        with suppress(Conflict, NotFound):
            present = session.backend.get(create.key)
            kept = {name: text for name, text in present.value.metadata.items() if name in ("uid", "creationTimestamp")}
            taken = Resource(resource.kind, resource.metadata | kept, resource.spec, extra=present.value.extra)
            session.backend.write([Update(present.key, taken, present.revision)])
            return
    raise Contended(create.key)


def delete_endpoint(session: DatastoreSession, record: Record) -> None:
    """Delete the endpoint unless another sandbox of the workload has it. Raise StoreError if the datastore fails."""
    key = record.endpoint_key(session.names)
    session.backend.update(key, lambda present: None if present and can_delete(present, record) else present)


def can_delete(resource: Resource, record: Record) -> bool:
    """Return whether the endpoint is of the record's container, or names none."""
    return StoredEndpoint(resource).container in (record.id.container_id, "")


def edit_profiles(session: DatastoreSession, record: Record, *, add: bool) -> None:
    """Add the network to the profiles of the shared endpoint, or remove it. Raise NotFound without an endpoint, StoreError."""
    key = record.endpoint_key(session.names)
    entry = session.backend.update(key, lambda present: present and _with_profiles(present, record, add=add))
    if entry is None or not StoredEndpoint(entry.value).is_of(record):
        raise NotFound(key)


def stored_endpoint(session: DatastoreSession, record: Record) -> StoredEndpoint | None:
    """Read the endpoint, of any container; None if it does not exist. Raise StoreError if the datastore fails."""
    entry = session.backend.find(record.endpoint_key(session.names))
    return None if entry is None else StoredEndpoint(entry.value)


def endpoint_matches(session: DatastoreSession, record: Record) -> bool:
    """Return whether the endpoint has this container and its addresses, or the interface needs none. Raise StoreError."""
    if not needs_endpoint(session, record):
        return True
    stored = stored_endpoint(session, record)
    networks = [str(address.host()) for address in record.address_list()]
    return stored is not None and stored.is_of(record) and stored.resource.spec.get("ipNetworks") == networks


def endpoints_of_node(session: DatastoreSession) -> Iterator[Entry[Resource]]:
    """Yield the endpoints of the session's node. Raise StoreError if the datastore fails."""
    entries = session.backend.list(ResourceQuery(KIND, node=session.node))
    return (entry for entry in entries if entry.value.spec.get("node") == session.node)


def is_named_by_svc(session: DatastoreSession, entry: Entry[Resource]) -> bool:
    """Return whether the endpoint has the orchestrator and the key that svc gives to an attachment of its container."""
    spec, container = entry.value.spec, StoredEndpoint(entry.value).container
    workload = Workload(container, str(spec.get("pod") or ""), entry.value.namespace)
    key = endpoint_key(session.names, session.node, workload, str(spec.get("endpoint") or ""))
    return bool(container) and entry.key == key and spec.get("orchestrator") == workload.orchestrator(session.names)


def drop_endpoints_of(session: DatastoreSession, container_id: str) -> None:
    """Delete the endpoints of a container on this node. Raise StoreError."""
    for entry in endpoints_of_node(session):
        if StoredEndpoint(entry.value).container == container_id:
            with suppress(NotFound):
                session.backend.write([Delete(entry.key, entry.revision)])


def is_wired_elsewhere(session: DatastoreSession, record: Record) -> bool:
    """Return whether the pod's endpoint is on another node. Only the Kubernetes API stores it in the pod. Raise StoreError."""
    if session.settings["kind"] != "orch":
        return False
    specs = [entry.value.spec for entry in session.backend.list(ResourceQuery(KIND, namespace=record.namespace))]
    return any((spec.get("pod"), spec.get("endpoint")) == (record.pod, record.id.ifname) for spec in specs)


def ensure_profile(session: DatastoreSession, network: str, *, pod: bool) -> None:
    """Create the policy profile of a network without a policy type, because policy agents block all traffic without it.

    It allows all egress. All endpoints may send to pods; only endpoints of the same network may send to other containers. Never
    change an existing profile, because users may edit it. Do nothing in the Kubernetes API, which derives profiles from
    namespaces. Raise StoreError if the datastore fails.
    """
    if network in session.profiles or session.settings["kind"] == "orch":
        return
    ingress: dict[str, Any] = {"action": "Allow"}
    if not pod:
        ingress["source"] = {"selector": f"has({network})"}
    spec = {"ingress": [ingress], "egress": [{"action": "Allow"}], "labelsToApply": {network: ""}}
    resource = Resource(_PROFILE, {"name": network}, spec)
    set_identity(resource, datetime.now(timezone.utc), new_uid())
    with suppress(Conflict):
        session.backend.write([Create(ResourceKey(_PROFILE, network), resource)])
    session.profiles.add(network)


def _with_profiles(resource: Resource, record: Record, *, add: bool) -> Resource:
    """Return the endpoint with or without the record's network; unchanged if it is of another container."""
    stored, network = StoredEndpoint(resource), record.id.network
    if not stored.is_of(record) or (network in stored.profiles) == add:
        return resource
    profiles = [*stored.profiles, network] if add else [each for each in stored.profiles if each != network]
    spec = {name: value for name, value in (resource.spec | {"profiles": profiles}).items() if value}
    return replace(resource, spec=spec)
