"""The registration of a Kubernetes node in a datastore that keeps its own nodes, as etcd does. ADD needs it."""

from datetime import datetime
from typing import Final

from svc.admin.resources import CLUSTER, CREATED, NODE, READY, UNCHANGED, UPDATED, retry
from svc.datastore.api import Backend, Check, Create, Entry, StoreError, Update
from svc.model.keys import ResourceKey
from svc.model.resource import Json, Resource, new_uid, set_identity
from svc.names import Names
from svc.values import replace

_REFERENCES: Final = "orchRefs"  # which node of Kubernetes this is: controllers remove the Node with that, and a move needs it


def register(backend: Backend, names: Names, node: str, kube_name: str, now: datetime) -> str:
    """Create the Node, with its name in Kubernetes; return what was done. A Node that has references stays as it is.

    One without references gets the name: svc-routes writes the address of its node, and may be the first to write the Node.
    Raise StoreError if the datastore is locked or fails."""
    key = ResourceKey(NODE, node)
    named: Json = {_REFERENCES: [{"nodeName": kube_name, "orchestrator": names.orchestrator}]}

    def step() -> str:
        found = backend.find(key)
        if found and found.value.spec.get(_REFERENCES):
            return UNCHANGED
        cluster = backend.find(CLUSTER)
        if cluster and cluster.value.spec.get(READY) is False:
            raise StoreError("the datastore is locked for a migration", details="wait for its end")
        check = [Check(cluster.key, cluster.revision)] if cluster else []
        write = Update(key, _with(found, named), found.revision) if found else Create(key, _made(node, named, now))
        backend.write([write, *check], durable=True)
        return UPDATED if found else CREATED

    return retry(f"node {node!r}", step)


def _with(found: Entry[Resource], fields: Json) -> Resource:
    return replace(found.value, spec=found.value.spec | fields)


def _made(node: str, spec: Json, now: datetime) -> Resource:
    made = Resource(NODE, {"name": node}, spec)
    set_identity(made, now, new_uid())
    return made
