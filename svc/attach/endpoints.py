"""Write, read, compare and delete the endpoint of an attachment."""

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

from svc._core.cidr import Cidr
from svc.attach.record import Record
from svc.attach.sessions import Session
from svc.datastore.api import Conflict, Contended, Create, Delete, Entry, Found, NotFound, StoreError, Update, entry_of
from svc.model.endpoint import KIND, Workload, has_endpoint
from svc.model.errors import Code
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource, new_uid, set_identity
from svc.retry import attempts

_ATTEMPTS = 6


def require_endpoint_support(session: Session, workload: Workload) -> None:
    """Raise StoreError if the datastore cannot store the endpoint of a wired workload."""
    if session.settings["kind"] == "orch" and not workload.is_pod:
        details = "pass K8S_POD_NAME and K8S_POD_NAMESPACE in CNI_ARGS, or use another datastore"
        raise StoreError("a container that is no pod has no place in the orchestrator's API", details=details)


def creation(resource: Resource) -> Create:
    """Return the write that creates the endpoint. Set its UID and creation time."""
    set_identity(resource, datetime.now(timezone.utc), new_uid())
    return Create(ResourceKey(KIND, resource.name, resource.namespace), resource)


def write_endpoint(session: Session, resource: Resource) -> None:
    """Create the endpoint, or update the one of an earlier sandbox of the same workload.

    Raise StoreError if the datastore fails, or if the pod does not exist.
    """
    create = creation(resource)
    key = ResourceKey(KIND, resource.name, resource.namespace)
    for _ in attempts(_ATTEMPTS):
        try:
            session.backend.write([create])
            return
        except Conflict:
            pass
        except NotFound:  # in the Kubernetes API, the pod stores the endpoint
            raise _pod_gone(resource) from None
        try:
            _take_over(session, session.backend.get(key), resource)
            return
        except (Conflict, NotFound):
            continue
    raise Contended(key)


def deletion(record: Record, found: Found[Resource]) -> Delete | None:
    """Return the write that deletes the endpoint at its revision.

    Return None if it does not exist, or another sandbox of the workload has it. Raise UndecodableEntry if it cannot be decoded.
    """
    entry = entry_of(found)
    if entry is None or not _is_own(entry.value, record):
        return None
    return Delete(entry.key, entry.revision)


def delete_endpoint(session: Session, record: Record) -> None:
    """Delete the endpoint unless another sandbox of the workload has it. Raise StoreError if the datastore fails."""
    session.backend.update(
        record.endpoint_key(session.names), lambda present: None if present and _is_own(present, record) else present
    )


def edit_profiles(session: Session, record: Record, *, add: bool) -> None:
    """Add the record's network to the profiles of the shared endpoint, or remove it.

    Raise NotFound if the container has no endpoint, StoreError if the datastore fails.
    """
    key = record.endpoint_key(session.names)
    entry = session.backend.update(key, lambda present: present and _with_profiles(present, record, add=add))
    if entry is None or _container(entry.value) != record.id.container_id:
        raise NotFound(key)


def has_profile(session: Session, record: Record) -> bool:
    """Return whether the shared endpoint is of the record's container and has its network.

    Raise StoreError if the datastore fails.
    """
    entry = session.backend.find(record.endpoint_key(session.names))
    if entry is None:
        return False
    return _container(entry.value) == record.id.container_id and record.id.network in _profiles(entry.value)


def endpoint_matches(session: Session, record: Record) -> bool:
    """Read whether the endpoint is of this container and has its addresses.

    Return True if the interface needs no endpoint. Raise StoreError if the datastore fails.
    """
    if not has_endpoint(session.names, record.workload, record.id.ifname):
        return True
    entry = session.backend.find(record.endpoint_key(session.names))
    if entry is None:
        return False
    networks = [str(address.host()) for address in record.address_list()]
    return _container(entry.value) == record.id.container_id and entry.value.spec.get("ipNetworks") == networks


def stored_endpoint(session: Session, record: Record) -> Resource | None:
    """Read the endpoint, of any container; None if it does not exist. Raise StoreError if the datastore fails."""
    entry = session.backend.find(record.endpoint_key(session.names))
    if entry is None:
        return None
    return entry.value


def endpoint_owner(session: Session, record: Record) -> tuple[str | None, str | None]:
    """Return the container and the first profile in the endpoint; None for a missing value or endpoint.

    For a bare container, the first profile is the network that created the endpoint.
    """
    entry = session.backend.find(record.endpoint_key(session.names))
    if entry is None:
        return None, None
    return _container(entry.value), next(iter(_profiles(entry.value)), None)


def endpoint_of_interface(session: Session, host_name: str) -> str | None:
    """Return the container whose endpoint on this node has the host interface, or None.

    Raise StoreError if the datastore fails.
    """
    for entry in session.backend.list(ResourceQuery(KIND)):
        spec = entry.value.spec
        if (spec.get("interfaceName"), spec.get("node")) == (host_name, session.node):
            return _container(entry.value)
    return None


def drop_endpoints_of(session: Session, container_id: str) -> None:
    """Delete the endpoints of a container on this node. Raise StoreError."""
    for entry in session.backend.list(ResourceQuery(KIND)):
        spec = entry.value.spec
        if (spec.get("containerID"), spec.get("node")) == (container_id, session.node):
            with suppress(NotFound):
                session.backend.write([Delete(entry.key, entry.revision)])


def is_wired_elsewhere(session: Session, record: Record) -> bool:
    """Return whether the pod has an endpoint on another node. Only the Kubernetes API stores endpoints in pods.

    Raise StoreError if the datastore fails.
    """
    if session.settings["kind"] != "orch":
        return False
    endpoints = (entry.value for entry in session.backend.list(ResourceQuery(KIND, namespace=record.namespace)))
    return any(isinstance(other, Resource) and _is_of_pod(other, record) for other in endpoints)


def _is_of_pod(other: Resource, record: Record) -> bool:
    return (other.spec.get("pod"), other.spec.get("endpoint")) == (record.pod, record.id.ifname)


def endpoint_addresses(session: Session, record: Record) -> list[str]:
    """Return the addresses in the endpoint; none if it is of another container. Raise StoreError if the datastore fails."""
    resource = stored_endpoint(session, record)
    if resource is None or resource.spec.get("containerID") != record.id.container_id:
        return []
    return [str(Cidr.masked(text).first) for text in resource.spec.get("ipNetworks") or ()]


def _take_over(session: Session, present: Entry[Resource], resource: Resource) -> None:
    kept = {name: present.value.metadata[name] for name in ("uid", "creationTimestamp") if name in present.value.metadata}
    taken = Resource(resource.kind, resource.metadata | kept, resource.spec, extra=present.value.extra)
    session.backend.write([Update(present.key, taken, present.revision)])


def _with_profiles(endpoint: Resource, record: Record, *, add: bool) -> Resource:
    """Return the endpoint with or without the record's network; unchanged if it is of another container."""
    present, network = _profiles(endpoint), record.id.network
    if _container(endpoint) != record.id.container_id or (network in present) == add:
        return endpoint
    profiles = [*present, network] if add else [each for each in present if each != network]
    spec = {name: value for name, value in (endpoint.spec | {"profiles": profiles}).items() if value}
    return replace(endpoint, spec=spec)


def _profiles(endpoint: Resource) -> list[str]:
    return list(endpoint.spec.get("profiles") or ())


def _is_own(endpoint: Resource, record: Record) -> bool:
    """Return whether the endpoint is of the record's container, or names none."""
    return _container(endpoint) in (record.id.container_id, None)


def _container(endpoint: Resource) -> str | None:
    return endpoint.spec.get("containerID") or None


def _pod_gone(resource: Resource) -> StoreError:
    return StoreError(
        f"pod {resource.namespace}/{resource.spec.get('pod')} does not exist",
        details="it has been deleted: nothing needs to be done. Or CNI_ARGS name another one",
        code=Code.ORCHESTRATOR,
    )
