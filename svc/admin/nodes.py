"""Nodes of the datastore: apply, delete and list."""

from collections.abc import Mapping
from datetime import datetime

from svc.admin import block_release, resources
from svc.admin.resources import UNCHANGED, change, problems, refuse, require, retry
from svc.datastore.api import Backend, Delete, Update
from svc.ipam.cache import read_blocks
from svc.model.errors import CallerError, Code
from svc.model.keys import NODE, ResourceKey
from svc.model.labels import label_faults
from svc.model.resource import Resource, name_fault

KIND = "Node"


def apply(backend: Backend, name: str, labels: Mapping[str, str] | None, now: datetime) -> str:
    """Create the node with these labels, or replace those that it has; None keeps them. Return what was done.

    Raise CallerError for a bad name or label, StoreError."""
    faults = [*name_fault(Resource(KIND, {"name": name})), *label_faults(labels or {})]
    refuse("node", problems(name, faults), Code.INVALID_NETCONF)
    return retry(f"node {name!r}", lambda: _apply(backend, name, labels, now))


def delete(backend: Backend, name: str) -> None:
    """Release the node's blocks, then delete the node. Raise CallerError while its workloads hold addresses."""
    require(backend, KIND, name)
    used = sum(block_release.count_of_node(block, name) for block in read_blocks(backend))
    if used:
        raise CallerError(f"node {name!r} is in use: {used} addresses are held there", details="delete its workloads first")
    retry(f"node {name!r}", lambda: _require_writable(backend, name))
    for key in block_release.affinities(backend):
        if key.kind == NODE and key.host == name:
            block_release.end_affinity(backend, key)
    block_release.remove_host_entries(backend, name)
    backend.write([Delete(ResourceKey(KIND, name))], durable=True)


def get(backend: Backend, name: str, own: str) -> list[Resource]:
    """Return all nodes in the order of their names, or the one of this name.

    A store that needs no registered nodes also has the node `own` and those with blocks. Raise CallerError if there is none."""
    if backend.requires_node:
        return resources.get(backend, KIND, name)
    hosts = {key.host for key in block_release.affinities(backend) if key.kind == NODE} | {own} - {""}
    known = {host: Resource(KIND, {"name": host}) for host in hosts}
    known |= {node.name: node for node in resources.get(backend, KIND)}
    if name and name not in known:
        require(backend, KIND, name)
    return [known[each] for each in sorted(known) if name in ("", each)]


def _require_writable(backend: Backend, name: str) -> None:
    """Write the node unchanged. A store whose nodes belong to Kubernetes refuses this, before a block is released."""
    entry = require(backend, KIND, name)
    backend.write([Update(entry.key, entry.value, entry.revision)])


def _apply(backend: Backend, name: str, labels: Mapping[str, str] | None, now: datetime) -> str:
    entry = backend.find(ResourceKey(KIND, name))
    if entry and (labels is None or entry.value.labels == labels):
        return UNCHANGED
    spec = entry.value.spec if entry else {}
    outcome, write = change(entry, Resource(KIND, {"name": name, "labels": dict(labels or {})}, spec, status={}), now)
    if write:
        backend.write([write], durable=True)
    return outcome
