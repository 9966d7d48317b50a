"""The registration of a Kubernetes node in a datastore that keeps its own nodes, as etcd does. ADD needs it."""

from datetime import datetime

from svc.admin.resources import CLUSTER, CREATED, NODE, READY, UNCHANGED, retry
from svc.datastore.api import Backend, Check, Create, StoreError
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, new_uid, set_identity
from svc.names import Names


def register(backend: Backend, names: Names, node: str, kube_name: str, now: datetime) -> str:
    """Create the Node, with its name in Kubernetes; return what was done. A Node that exists stays as it is.

    Raise StoreError if the datastore is locked or fails."""
    key = ResourceKey(NODE, node)

    def step() -> str:
        if backend.find(key):
            return UNCHANGED
        cluster = backend.find(CLUSTER)
        if cluster and cluster.value.spec.get(READY) is False:
            raise StoreError("the datastore is locked for a migration", details="wait for its end")
        references = [
            {"nodeName": kube_name, "orchestrator": names.orchestrator}
        ]  # the controllers remove the Node with that node
        made = Resource(NODE, {"name": node}, {"orchRefs": references})
        set_identity(made, now, new_uid())
        backend.write([Create(key, made), *([Check(cluster.key, cluster.revision)] if cluster else [])], durable=True)
        return CREATED

    return retry(f"node {node!r}", step)
