"""What svcctl does with nodes: apply and delete. Plain functions on a datastore."""

import uuid
from collections.abc import Mapping
from datetime import datetime

from svc.ctl import release
from svc.ctl.resources import CREATED, UNCHANGED, UPDATED, find
from svc.ctl.retry import retry
from svc.datastore.api import Backend, Create, Delete, NotFound, Update
from svc.ipam.affinities import forget_host
from svc.ipam.view import read_blocks
from svc.model.errors import CallerError
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, name_fault, ordered, stamp

KIND = "Node"


def apply(backend: Backend, name: str, labels: Mapping[str, str], now: datetime) -> str:
    """Creates the node with these labels, or gives them to it in place of its own if there are any; what was done. CallerError
    for a bad name, StoreError."""
    for fault in name_fault(Resource(KIND, {"name": name})):
        raise CallerError(f"node: {fault}", details=fault.remedy)
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


def _demand_ours(backend: Backend, name: str) -> None:
    """A store whose nodes are the orchestrator's refuses the write, before anything is given up."""
    entry = find(backend, KIND, name)
    backend.write([Update(entry.key, entry.value, entry.revision)])


def _apply(backend: Backend, name: str, labels: Mapping[str, str], now: datetime) -> str:
    key = ResourceKey(KIND, name)
    try:
        entry = backend.get(key)
    except NotFound:
        fresh = Resource(KIND, {"name": name, "labels": dict(labels)}, status={})
        stamp(fresh, now, str(uuid.uuid4()))
        backend.write([Create(key, fresh)], durable=True)
        return CREATED
    node = entry.value
    assert isinstance(node, Resource)
    if not labels or node.labels == labels:
        return UNCHANGED
    node.metadata = ordered(node.metadata | {"labels": dict(labels)})
    backend.write([Update(key, node, entry.revision)], durable=True)
    return UPDATED
