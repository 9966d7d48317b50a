"""A large cluster on real servers: nodes, their pods as an ADD leaves them, and the documents of their addresses.

Objects of Kubernetes are written into the etcd of the API server, because the server itself creates only some hundred a second.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import grpc
import orjson

from harness.ipam import put_pool, write_all
from harness.kube import Kube
from harness.orch import NODES, PODS
from svc._core.bitmap import Ordinals
from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend, Create, Write
from svc.datastore.etcd.messages import rpc
from svc.model.custom_resources import CustomResourceCodec, kind_plural
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key, host_interface
from svc.model.ipam import Affinity, Attribute, Block, Handle
from svc.model.keys import AffinityKey, BlockKey, HandleKey, Key, ResourceKey
from svc.model.kv_codec import Value
from svc.model.object_metadata import ApiGroup
from svc.model.pod_endpoint import policy_facts, wired_annotations
from svc.model.resource import Resource, new_uid
from svc.names import DEFAULT

Json = dict[str, Any]

POOL, BLOCK_LENGTH = Cidr("10.64.0.0/12"), 26
CREATED, CLAIMED = "2026-01-02 03:04:05 +0000 UTC", "2026-01-02T03:04:05Z"
NETWORK = "net"
PADDING = "x" * 3000  # a pod of a cluster has about as much more in its specification and its managed fields

_IN_ONE, _PLANT_SECONDS = 100, 30.0  # objects in a transaction: etcd accepts 128 operations and 1.5 MB
_RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "startTime": CLAIMED}


class LargeCluster:
    """The objects of a cluster with `nodes` nodes of `pods_of_node` pods each. Nodes and pods are numbered."""

    def __init__(self, nodes: int, pods_of_node: int) -> None:
        self.nodes = nodes
        self.pods_of_node = pods_of_node

    @property
    def pods(self) -> int:
        return self.nodes * self.pods_of_node

    def fill_api(self, kube: Kube) -> None:
        """Write the nodes and pods."""
        self.fill_nodes(kube)
        self.fill_pods(kube)

    def fill_nodes(self, kube: Kube) -> None:
        pattern = node_pattern(kube)
        names = ((f"node{number}", _uid(number, 0xFFFF), _node_labels(number)) for number in range(self.nodes))
        plant(kube, ((f"minions/{name}", named(pattern, name, uid, labels=labels)) for name, uid, labels in names))

    def fill_pods(self, kube: Kube) -> None:
        pattern = _pod_pattern(kube)
        plant(kube, (self._pod(pattern, *place) for place in self.pod_numbers()))

    def fill_store(self, store: Backend) -> None:
        """Write the documents of all nodes and addresses to a datastore with transactions."""
        put_pool(store, "pool4", str(POOL))
        write_all(store, [*self.node_documents(), *self._endpoints()])
        write_all(store, [Create(key, value) for key, value in self._documents()])

    def fill_custom_resources(self, kube: Kube, store: Backend) -> None:
        """Write the documents of all addresses, if the API server is the datastore."""
        put_pool(store, "pool4", str(POOL))
        plant(kube, map(planted, self._documents()))

    def pod_name(self, node: int, number: int) -> str:
        return f"pod-{node}-{number}"

    def handle(self, node: int, number: int) -> str:
        return f"{NETWORK}.{self._workload(node, number).container_id}"

    def block(self, node: int) -> Cidr:
        return POOL.block(node, BLOCK_LENGTH)

    def _workload(self, node: int, number: int) -> Workload:
        return Workload(f"{node:032x}{number:032x}", self.pod_name(node, number), "default")

    def address(self, node: int, number: int) -> Address:
        """Return the address of a pod."""
        return self.block(node).address(number)

    def pod_numbers(self) -> Iterator[tuple[int, int]]:
        """Yield the node of each pod, and its number there."""
        return (divmod(number, self.pods_of_node) for number in range(self.pods))

    def endpoint_at(self, node: int, number: int, address: Address, facts: PodFacts) -> tuple[ResourceKey, Resource]:
        """Return the endpoint of a pod with this address."""
        host, workload = f"node{node}", self._workload(node, number)
        interface = host_interface(DEFAULT, workload, "eth0")
        spec = {"ipNetworks": [str(address.host())], "interfaceName": interface, "mac": "ee:ee:ee:ee:ee:ee"}
        key = endpoint_key(DEFAULT, host, workload, "eth0")
        return key, endpoint(DEFAULT, key, host, workload, "eth0", spec=spec, facts=facts)

    def _wired(self, node: int, number: int, facts: PodFacts) -> tuple[ResourceKey, Resource]:
        return self.endpoint_at(node, number, self.address(node, number), facts)

    # objects of Kubernetes

    def _pod(self, pattern: Json, node: int, number: int) -> tuple[str, Json]:
        name, address = self.pod_name(node, number), str(self.address(node, number))
        notes = wired_annotations(DEFAULT, "eth0", self._wired(node, number, PodFacts())[1]) | {"padding": PADDING}
        pod = named(pattern, name, _uid(node, number), annotations=notes)
        pod["spec"] = pattern["spec"] | {"nodeName": f"node{node}"}
        pod["status"] = pattern["status"] | {"podIP": address, "podIPs": [{"ip": address}]}
        return f"pods/default/{name}", pod

    # documents of the datastore

    def node_documents(self) -> Iterator[Write]:
        """Yield the creations of the Nodes, of a datastore that keeps them itself."""
        for node in range(self.nodes):
            name = f"node{node}"
            metadata = {"name": name, "uid": _uid(node, 0xFFFF), "creationTimestamp": CLAIMED, "labels": _node_labels(node)}
            address = f"192.168.{node // 250}.{node % 250 + 1}"
            spec = {
                "bgp": {"ipv4Address": f"{address}/16"},
                "addresses": [{"address": address, "type": "InternalIP"}],
                "orchRefs": [{"orchestrator": DEFAULT.orchestrator, "nodeName": name}],
            }
            yield Create(ResourceKey("Node", name), Resource("Node", metadata, spec))

    def _endpoints(self) -> Iterator[Write]:
        facts = policy_facts(DEFAULT, {"metadata": {"namespace": "default", "labels": {"app": "web"}}, "spec": {}})
        for place in self.pod_numbers():
            yield Create(*self._wired(*place, facts))

    def _documents(self) -> Iterator[tuple[Key, Value]]:
        """Yield the blocks, affinities and handles."""
        for node in range(self.nodes):
            host, cidr = f"node{node}", self.block(node)
            block = Block(cidr, f"host:{host}", Ordinals(32 - BLOCK_LENGTH), 1_000_000, CLAIMED, [])
            for number in range(self.pods_of_node):
                owner = {"node": host, "timestamp": CREATED, "pod": self.pod_name(node, number), "namespace": "default"}
                block.attributes = [*(block.attributes or ()), Attribute(self.handle(node, number), owner)]
                block.ordinal_sequences[block.ordinals.allocate(number)] = 1000 + number
                yield HandleKey(self.handle(node, number)), Handle({str(cidr): 1})
            yield BlockKey(cidr), block
            yield AffinityKey(host, cidr), Affinity()


def plant(kube: Kube, objects: Iterable[tuple[str, Json]]) -> None:
    """Write objects to their keys in the server's etcd. The server does not check them, and its watches report them."""
    puts = (rpc.PutRequest(key=f"/registry/{key}".encode(), value=orjson.dumps(body)) for key, body in objects)
    _apply(kube, (rpc.RequestOp(request_put=put) for put in puts))


def uproot_all(kube: Kube, keys: Iterable[str]) -> None:
    """Delete the objects at keys from the server's etcd. Its watches report the deletions."""
    deletions = (rpc.DeleteRangeRequest(key=f"/registry/{key}".encode()) for key in keys)
    _apply(kube, (rpc.RequestOp(request_delete_range=deletion) for deletion in deletions))


def _apply(kube: Kube, operations: Iterable[Any]) -> None:
    rest = iter(operations)
    with grpc.insecure_channel(f"127.0.0.1:{kube.etcd_port}") as channel:
        stub = rpc.KVStub(channel)
        while part := list(islice(rest, _IN_ONE)):
            stub.Txn(rpc.TxnRequest(success=part), timeout=_PLANT_SECONDS)


def node_pattern(kube: Kube) -> Json:
    status = {
        "addresses": [{"type": "InternalIP", "address": "192.168.0.1"}, {"type": "Hostname", "address": "pattern"}],
        "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "images": [{"names": [f"registry.example/image{each}:v1"], "sizeBytes": 100_000_000} for each in range(50)],
    }
    return _made(kube, NODES, {"metadata": {"name": "pattern"}}, status, "minions/pattern")


def _pod_pattern(kube: Kube) -> Json:
    spec = {
        "nodeName": "node0",
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "x", "ports": [{"name": "http", "containerPort": 8080}]}],
    }
    metadata = {"name": "pattern", "labels": {"app": "web"}}
    return _made(kube, PODS, {"metadata": metadata, "spec": spec}, _RUNNING, "pods/default/pattern")


def _made(kube: Kube, path: str, body: Json, status: Json, key: str) -> Json:
    """Return an object as the server stores it, with its defaults. It exists only during the call."""
    kube.call("POST", path, body)
    place = f"{path}/{body['metadata']['name']}"
    kube.call("PATCH", f"{place}/status", {"status": status}, "application/merge-patch+json")
    found = kube.call("GET", place)
    kube.uproot(key)
    for name in ("resourceVersion", "selfLink"):
        found["metadata"].pop(name, None)
    return found


def named(pattern: Json, name: str, uid: str, **metadata: Json) -> Json:
    """Return an object like the pattern, with a name of its own."""
    return pattern | {"metadata": pattern["metadata"] | {"name": name, "uid": uid, **metadata}}


def _node_labels(node: int) -> Json:
    zone, host = f"zone{node % 3}", f"node{node}"
    return {"kubernetes.io/hostname": host, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": zone}


def _uid(node: int, number: int) -> str:
    return f"{node:08x}-0000-4000-8000-{number:012x}"


def planted(document: tuple[Key, Value]) -> tuple[str, Json]:
    """Return the custom resource of a document, with the identity that the server would give to it."""
    group = ApiGroup(DEFAULT, DEFAULT.crd_api_version)
    codec = CustomResourceCodec(group)
    made = codec.encode(*document)
    name, place = made["metadata"]["name"], f"{group.api_version.partition('/')[0]}/{kind_plural(made['kind'])}"
    identity = {"uid": new_uid(), "creationTimestamp": CLAIMED, "generation": 1}
    return f"{place}/{name}", made | {"metadata": made["metadata"] | identity}
