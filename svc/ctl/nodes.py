"""What svcctl does with nodes: apply and delete. Plain functions on a datastore."""

import uuid
from collections.abc import Mapping
from datetime import datetime

from svc.ctl import release, resources
from svc.ctl.resources import CREATED, UNCHANGED, UPDATED, find, refuse
from svc.ctl.retry import retry
from svc.datastore.api import Backend, Create, Delete, NotFound, Update
from svc.ipam.affinities import forget_host
from svc.ipam.host import NODE
from svc.ipam.view import read_blocks
from svc.model.errors import CallerError, Code
from svc.model.keys import ResourceKey
from svc.model.labels import label_faults
from svc.model.resource import Resource, name_fault, ordered, stamp

KIND = "Node"


def apply(backend: Backend, name: str, labels: Mapping[str, str] | None, now: datetime) -> str:
    """Create the node with these labels, or replace those that it has; None keeps them. Return what was done.

    Raise CallerError for a bad name or label, StoreError."""
    found = [*name_fault(Resource(KIND, {"name": name})), *label_faults(labels or {})]
    refuse("node", [(name, f"{fault}: {fault.remedy}") for fault in found], Code.INVALID_NETCONF)
    return retry(f"node {name!r}", lambda: _apply(backend, name, labels, now))


def delete(backend: Backend, name: str) -> None:
    """Gives up the node's blocks, then removes it. CallerError while its workloads hold addresses."""
    find(backend, KIND, name)
    used = sum(release.count_of_node(block, name) for block in read_blocks(backend))
    if used:
        raise CallerError(f"node {name!r} is in use: {used} addresses are held there", details="delete its workloads first")
    retry(f"node {name!r}", lambda: _demand_ours(backend, name))
    for key in release.affinities(backend):
        if key.kind == "host" and key.host == name:
            release.give_up(backend, key)
    forget_host(backend, name)
    backend.write([Delete(ResourceKey(KIND, name))], durable=True)


def get(backend: Backend, name: str, own: str) -> list[Resource]:
    """Return all nodes in the order of their names, or the one of this name.

    A store that needs no registered nodes also has the node `own` and those with blocks. Raise CallerError if there is none."""
    if backend.needs_node:
        return resources.get(backend, KIND, name)
    hosts = {key.host for key in release.affinities(backend) if key.kind == NODE} | {own} - {""}
    known = {host: Resource(KIND, {"name": host}) for host in hosts}
    known |= {node.name: node for node in resources.get(backend, KIND)}
    if name and name not in known:
        find(backend, KIND, name)
    return [known[each] for each in sorted(known) if name in ("", each)]


def _demand_ours(backend: Backend, name: str) -> None:
    """A store whose nodes are the orchestrator's refuses the write, before anything is given up."""
    entry = find(backend, KIND, name)
    backend.write([Update(entry.key, entry.value, entry.revision)])


def _apply(backend: Backend, name: str, labels: Mapping[str, str] | None, now: datetime) -> str:
    key = ResourceKey(KIND, name)
    try:
        entry = backend.get(key)
    except NotFound:
        fresh = Resource(KIND, {"name": name, "labels": dict(labels or {})}, status={})
        stamp(fresh, now, str(uuid.uuid4()))
        backend.write([Create(key, fresh)], durable=True)
        return CREATED
    node = entry.value
    assert isinstance(node, Resource)
    if labels is None or node.labels == labels:
        return UNCHANGED
    node.metadata = ordered(node.metadata | {"labels": dict(labels)})
    backend.write([Update(key, node, entry.revision)], durable=True)
    return UPDATED
