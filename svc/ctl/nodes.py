"""What svcctl does with nodes: apply, list, delete. Plain functions on a datastore."""

import uuid
from collections.abc import Mapping
from datetime import datetime

from svc.ctl import release
from svc.ctl.retry import retry
from svc.datastore.api import Backend, Create, Delete, NotFound, Update
from svc.model.errors import CallerError
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource, name_fault, ordered, stamp

KIND = "Node"


def apply(backend: Backend, name: str, labels: Mapping[str, str], now: datetime) -> str:
    """Creates the node with these labels, or gives them to it in place of its own if there are any; what was done. CallerError
    for a bad name, StoreError."""
    for fault in name_fault(Resource(KIND, {"name": name})):
        raise CallerError(f"node: {fault}", details=fault.remedy)
    return retry(f"node {name!r}", lambda: _apply(backend, name, labels, now))


def get(backend: Backend, name: str = "") -> list[Resource]:
    """All nodes in the order of their names, or the one of this name. CallerError when it does not exist."""
    if name:
        return [_node(backend, name)]
    return [entry.value for entry in backend.list(ResourceQuery(KIND)) if isinstance(entry.value, Resource)]


def delete(backend: Backend, name: str) -> None:
    """Gives up the node's blocks, then removes it. CallerError while its workloads hold addresses."""
    _node(backend, name)
    used = sum(release.count_of_node(block, name) for block in release.blocks(backend))
    if used:
        raise CallerError(f"node {name!r} is in use: {used} addresses are held there", details="delete its workloads first")
    for key in release.affinities(backend):
        if key.kind == "host" and key.host == name:
            release.give_up(backend, key)
    backend.write([Delete(ResourceKey(KIND, name))], durable=True)


def _apply(backend: Backend, name: str, labels: Mapping[str, str], now: datetime) -> str:
    key = ResourceKey(KIND, name)
    try:
        entry = backend.get(key)
    except NotFound:
        fresh = Resource(KIND, {"name": name, "labels": dict(labels)}, status={})
        stamp(fresh, now, str(uuid.uuid4()))
        backend.write([Create(key, fresh)], durable=True)
        return "created"
    node = entry.value
    assert isinstance(node, Resource)
    if not labels or node.labels == labels:
        return "unchanged"
    node.metadata = ordered(node.metadata | {"labels": dict(labels)})
    backend.write([Update(key, node, entry.revision)], durable=True)
    return "updated"


def _node(backend: Backend, name: str) -> Resource:
    try:
        entry = backend.get(ResourceKey(KIND, name))
    except NotFound:
        raise CallerError(f"node {name!r} does not exist", details="see `svcctl node get`") from None
    assert isinstance(entry.value, Resource)
    return entry.value
