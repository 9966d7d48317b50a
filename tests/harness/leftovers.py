"""Clusters in which svc-controllers have something to do, and what they look like when it is done."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.address_cluster import MERGE, NETWORK, AddressCluster
from harness.audit import IpamAudit
from harness.ipam import put, put_pool, put_settings
from harness.orch import NODES
from svc.datastore.api import Backend, Create, Update
from svc.ipam.requests import Release
from svc.ipam.service import IpamService
from svc.model.claim import Claimant, NodeClaim, NodeFence
from svc.model.controllers_configuration import KEY
from svc.model.host_endpoint import KIND as HOST_ENDPOINT
from svc.model.keys import (
    HOST_KINDS,
    AffinityQuery,
    BlockQuery,
    HandleKey,
    HandleQuery,
    NodeClaimKey,
    NodeClaimQuery,
    NodeFenceKey,
    ResourceKey,
    ResourceQuery,
)
from svc.model.pool import LOAD_BALANCER
from svc.model.resource import Resource
from svc.names import DEFAULT

Json = dict[str, Any]

PATIENCE = {  # constants of the program that are minutes in production
    "svc.controllers.node.addresses.part:_LOOK_SECONDS": 0.1,
    "svc.controllers.node.addresses.part:_LOST_SECONDS": 0.2,
    "svc.controllers.gone_nodes:QUIET_SECONDS": 0.5,
    "svc.controllers.node.ipam_handles:CONFIRM_SECONDS": 0.3,
    "svc.controllers.node.ipam_blocks:CONFIRM_SECONDS": 0.3,
    "svc.controllers.controller:_POLL_SECONDS": 0.05,
    "svc.controllers.retry_queue:MAX_BACKOFF": 1.0,
}
HANDLE_OF_LIVE = f"{NETWORK}.live"


def prepare(cluster: AddressCluster, *, host_endpoints: bool = False) -> str:
    """Set short periods, and give a live pod its address. Return the address."""
    node = {"leakGracePeriod": "300ms", "hostEndpoint": {"autoCreate": "Enabled" if host_endpoints else "Disabled"}}
    put(cluster.store, KEY, replace(cluster.settings(), spec={"controllers": {"node": node}}))
    put_settings(cluster.store, cooldown_seconds=0)
    cluster.add_pod("live")
    return cluster.attach("live", "live")


# work: each function leaves something to do


def leaked_addresses(cluster: AddressCluster) -> None:
    """Let two pods go whose addresses are left: one with an interface, one with two addresses of one handle."""
    cluster.add_pod("web")
    cluster.attach("web", "c1")
    cluster.remove_pod("web")
    for _ in range(2):
        cluster.assign(f"{NETWORK}.c2", "gone")


def lost_node(cluster: AddressCluster) -> None:
    """Delete a node of Kubernetes that has a pod, a tunnel, a claim and blocks."""
    cluster.add_node("node2")
    cluster.store.write([Create(NodeClaimKey("node2"), NodeClaim(Claimant("m", "b", "/s")))])
    if cluster.store.atomic:
        cluster.store.write([Create(NodeFenceKey("node2"), NodeFence())])
    cluster.add_pod("web", "node2")
    cluster.attach("web", "c1", "node2")
    cluster.assign("vxlan-tunnel-addr-node2", node="node2", type="vxlanTunnelAddress")
    cluster.remove_pod("web")
    cluster.remove_node("node2")


def wrong_handles(cluster: AddressCluster) -> None:
    """Leave a handle without an address, and one that counts too many, as killed calls do."""
    cluster.assign(f"{NETWORK}.c1", "live")
    entry = cluster.store.get(HandleKey(HANDLE_OF_LIVE))
    ((cidr, count),) = entry.value.blocks.items()
    cluster.store.write([Update(entry.key, replace(entry.value, blocks={cidr: count + 1}), entry.revision)])
    cluster.store.write([Create(HandleKey(f"{NETWORK}.empty"), replace(entry.value, blocks={cidr: 1}))])


def idle_blocks(cluster: AddressCluster) -> None:
    """Leave blocks without addresses, and an address whose cooldown will be over."""
    handles = {f"{NETWORK}.c1": "", f"{NETWORK}.c2": "10.65.8.1", f"{NETWORK}.c3": "10.65.9.1"}
    for handle, address in handles.items():
        cluster.assign(handle, "live", address=address)
    put_settings(cluster.store, cooldown_seconds=1)
    for handle in handles:
        IpamService(cluster.store, "node1").release(Release(handle))


def host_endpoints(cluster: AddressCluster) -> None:
    """Lack a host endpoint, and have one that somebody has edited and one whose node does not exist."""
    cluster.add_node("node3")
    label = {f"{DEFAULT.label_prefix}/created-by": DEFAULT.controllers}
    for node, interface in (("node3", "eth0"), ("former", "*")):
        name = f"{node}-auto-hep"
        spec = {"node": node, "interfaceName": interface}
        put(cluster.store, ResourceKey(HOST_ENDPOINT, name), Resource(HOST_ENDPOINT, {"name": name, "labels": label}, spec))


def node_labels(cluster: AddressCluster) -> None:
    """Give a node of Kubernetes labels."""
    cluster.kube.call("PATCH", f"{NODES}/node1", {"metadata": {"labels": {"zone": "a", "disk": "fast"}}}, MERGE)


NODE_WORK: tuple[Callable[[AddressCluster], None], ...] = (
    leaked_addresses,
    lost_node,
    wrong_handles,
    idle_blocks,
    host_endpoints,
    node_labels,
)


def add_pools_of_services(cluster: AddressCluster) -> None:
    put_pool(cluster.store, "lb4", "10.66.0.0/28", blockSize=30, allowedUses=[LOAD_BALANCER])
    put_pool(cluster.store, "lb6", "fd66::/124", blockSize=126, allowedUses=[LOAD_BALANCER])


# what is stored


def contents(store: Backend) -> Json:
    """Return everything that controllers write, without times, revisions and sequence numbers."""
    audit = IpamAudit.read(store)
    affinities = [entry for kind in HOST_KINDS for entry in store.list(AffinityQuery(kind=kind))]
    found: Json = {
        "addresses": audit.allocations,
        "handles": audit.handles,
        "endpoints": audit.endpoints,
        "blocks": {str(entry.value.cidr): (entry.value.affinity, _cooling(entry.value)) for entry in store.list(BlockQuery())},
        "documents of handles": {entry.key: entry.value.blocks for entry in store.list(HandleQuery())},
        "affinities": {entry.key: entry.value.state for entry in affinities},
        "claims": [str(entry.key) for entry in store.list(NodeClaimQuery("node2"))],
    }
    for kind in ("Node", HOST_ENDPOINT):
        entries = store.list(ResourceQuery(kind))
        found[kind] = {entry.value.name: (entry.value.labels, entry.value.spec) for entry in entries}
    return found


def contradictions(store: Backend) -> list[str]:
    """Return where handles and blocks differ, and the endpoints without an allocation."""
    audit = IpamAudit.read(store)
    found = list(audit._handle_disagreements())
    for name, networks in audit.endpoints.items():
        found += [f"{name} has {each}, which is free" for each in networks if each.split("/")[0] not in audit.allocations]
    return found


def _cooling(block: Any) -> int:
    return sum(1 for each in block.attributes or () if each.released_at)
