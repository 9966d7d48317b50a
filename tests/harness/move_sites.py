"""An etcd with everything that a move copies, and the Kubernetes API that it moves to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.datastores import EtcdSite, OrchSite, session, set_ready
from harness.ipam import block_of, put, put_pool, put_reservation, put_settings
from harness.ipam_check import attributes, put_endpoint
from svc.admin.ipam_check.observation import Place
from svc.admin.resources import CLUSTER
from svc.datastore.api import Backend
from svc.datastore.orch.store import OrchStore
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.ipam import Attribute
from svc.model.keys import AffinityQuery, BlockKey, HandleKey, ResourceKey
from svc.model.kv_codec import Codec
from svc.model.resource import Resource
from svc.move import marks, steps
from svc.move.snapshot import Snapshot, take
from svc.names import Names

NETWORK = "net"
PODS = ("web", "db-0", "api")
NODES = {"node-a.etcd": "node1", "node-b.etcd": "node2"}  # name in etcd: name in Kubernetes
ETCD_NODE, KUBE_NODE = "node-a.etcd", "node1"


@dataclass
class Sites:
    """Sessions with both datastores, and their places for a move. `run` moves from etcd, `back` moves to it."""

    etcd: Place
    kube: Place
    folder: Path

    @property
    def archive(self) -> Path:
        return self.folder / "archive.jsonl"


@contextmanager
def open_sites(etcd_site: EtcdSite, orch_site: OrchSite, folder: Path) -> Iterator[Sites]:
    """Open both datastores, both of them empty. Delete everything later."""
    try:
        with sessions(etcd_site, orch_site, folder) as made:
            yield made
    finally:
        etcd_site.clear()
        orch_site.clear()


@contextmanager
def sessions(etcd_site: EtcdSite, orch_site: OrchSite, folder: Path) -> Iterator[Sites]:
    """Open both datastores, as a process does."""
    with session(etcd_site) as etcd, session(orch_site) as kube:
        assert isinstance(kube, OrchStore)
        wired = frozenset({NETWORK})
        yield Sites(
            Place(etcd, etcd_site.names, kube.client, wired_networks=wired),
            Place(kube, orch_site.names, kube.client, pods_are_endpoints=True, wired_networks=wired),
            folder,
        )


def add_nodes(store: Backend, orch_site: OrchSite) -> None:
    """Register the nodes in both datastores. Those in etcd name their nodes of Kubernetes."""
    for number, (name, kube) in enumerate(NODES.items()):
        orch_site.add_node(kube, zone=f"z{number}")
        spec: dict[str, Any] = {"orchRefs": [{"nodeName": kube, "orchestrator": "k8s"}]}
        put(store, ResourceKey("Node", name), Resource("Node", {"name": name, "uid": f"uid-{name}", "labels": {}}, spec, {}))


def add_pod(etcd_site: EtcdSite, orch_site: OrchSite, store: Backend, name: str, node: str = ETCD_NODE) -> str:
    """Create a pod, and give it an address and an endpoint in etcd. Return the address."""
    orch_site.add_pod(name, NODES[node])
    container = f"c-{name}"
    owner = attributes(name, node) | {"timestamp": "2036-01-02 03:04:05.5 +0000 UTC"}  # later than its pod
    (address,) = IpamService(store, node).assign(Assign(f"{NETWORK}.{container}", owner)).addresses
    put_endpoint(etcd_site, store, name, container, str(address), node=node)
    return str(address)


def furnish(etcd_site: EtcdSite, orch_site: OrchSite, store: Backend, pods: Sequence[str] = PODS) -> dict[str, str]:
    """Write documents of all kinds to etcd, with unknown fields, and the nodes and pods to the Kubernetes API.

    Return the address of each pod."""
    put_settings(store, max_blocks_per_host=9, cooldown_seconds=600, extra={"later": {"deep": [1, "two"]}})
    put_pool(store, "pool4", "10.65.0.0/24", blockSize=28, natOutgoing=True, allowedUses=["Workload"])
    put_pool(store, "off", "10.70.0.0/24", blockSize=28, disabled=True)
    put_pool(store, "tunnels", "10.66.0.0/24", blockSize=28, allowedUses=["Tunnel"])
    put_pool(store, "balancer", "10.67.0.0/24", blockSize=28, allowedUses=["LoadBalancer"])
    put_reservation(store, "kept", "10.65.0.240/28")
    add_nodes(store, orch_site)
    host = Resource("HostEndpoint", {"name": "hep", "labels": {"a": "b"}}, {"node": ETCD_NODE, "interfaceName": "eth1"})
    put(store, ResourceKey("HostEndpoint", "hep"), host)
    nodes = [*NODES]
    given = {pod: add_pod(etcd_site, orch_site, store, pod, nodes[number % 2]) for number, pod in enumerate(pods)}
    add_tunnel(store)
    _cool_down(store)
    _add_unknown_fields(store, given["web"])
    set_ready(store)
    put(store, CLUSTER, Resource(CLUSTER.kind, {"name": "default", "uid": "uid-c"}, _CLUSTER))
    return given


_CLUSTER = {"clusterGUID": "0123456789abcdef", "clusterType": "cni", "datastoreReady": True}


def add_tunnel(store: Backend) -> None:
    """Give the tunnel of a node its address, with its handle."""
    owner = {"node": ETCD_NODE, "type": "vxlanTunnelAddress"}
    request = Assign(f"vxlan-tunnel-addr-{ETCD_NODE}", owner, pools={4: ("tunnels",)}, use="Tunnel")
    (address,) = IpamService(store, ETCD_NODE).assign(request).addresses
    key = ResourceKey("Node", ETCD_NODE)
    node = store.get(key).value
    put(store, key, replace(node, spec=node.spec | {"ipv4VXLANTunnelAddr": str(address)}))


def _cool_down(store: Backend) -> None:
    ipam = IpamService(store, ETCD_NODE)
    ipam.assign(Assign(f"{NETWORK}.gone", attributes("gone", ETCD_NODE)))
    ipam.release(Release(f"{NETWORK}.gone"))


def _add_unknown_fields(store: Backend, address: str) -> None:
    block = block_of(store, address)
    first, *others = block.attributes or []
    first = Attribute(first.handle_id, first.secondary, {"node": ETCD_NODE}, None, {"later": 1})
    put(store, BlockKey(block.cidr), replace(block, attributes=[first, *others], extra={"newer": {"a": None}}))
    key = HandleKey(f"{NETWORK}.c-web")
    put(store, key, replace(store.get(key).value, extra={"newer": [1]}))
    entry = next(iter(store.list(AffinityQuery())))
    put(store, entry.key, replace(entry.value, extra={"newer": True}))


def move(source: Place, target: Place, run: str, archive: Path, connections: int = 4) -> None:
    """Take all steps of a move, as the procedure does."""
    if marks.has_arrived(target, run):
        return
    marks.lock(source, target, run)
    marks.wait_for_calls(source, run)
    steps.admit(source, target, run, archive)
    documents = steps.export_at_one_revision(source).decoded(source.names)
    steps.import_(documents, target, connections)
    steps.move_endpoints(documents, target, connections)
    steps.require_equal(documents, target)
    steps.enable_pools(documents, target)
    steps.finish(source, target, run)


def contents(place: Place) -> dict[str, Any]:
    """Return all documents of a datastore by path, without the marks of moves."""
    return without_marks(place.names, take(place))


def without_marks(names: Names, taken: Snapshot) -> dict[str, Any]:
    """Return the documents of a snapshot in a form to compare."""
    codec, found = Codec(names), dict[str, Any]()
    for key, value in taken.decoded(names).items():
        if key == CLUSTER and isinstance(value, Resource):
            value = marks.with_mark(names, value, None, {"datastoreReady": True})
        found[codec.path(key)] = value.to_json(names.api_version) if isinstance(value, Resource) else value.to_json()
    return found
