"""A cluster of many nodes with their blocks on a real datastore, and one of its nodes in a network namespace."""

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest

from bench.measurement import Missing
from bench.testbed import Failed
from harness import etcd
from harness.datastores import EtcdSite, OrchSite, Site, set_ready
from harness.enter_netns import entered
from harness.ipam import put_pool, put_settings
from harness.kube import Kube, running
from harness.large_cluster import CLAIMED, named, node_pattern, plant, planted
from harness.netns import Netns
from svc._core import rtnl
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.datastore.api import Backend
from svc.datastore.etcd.messages import rpc
from svc.model.ipam import Affinity, Attribute, Block
from svc.model.keys import AffinityKey, BlockKey, Key, ResourceKey
from svc.model.kv_codec import Codec, Value
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.routes.planning import tunnel_mac
from svc.routes.wanted import VXLAN_V4

Json = dict[str, Any]

NODES, BLOCKS_OF_NODE, PODS_OF_BLOCK = 1000, 4, 8
BLOCKS = NODES * BLOCKS_OF_NODE
POOL, TUNNELS, LAN = Cidr("10.64.0.0/12"), Cidr("10.80.0.0/16"), Cidr("192.168.0.0/16")
OWN = "node0"
READY_SECONDS = 120.0

_IN_ONE, _PUT_SECONDS = 100, 30.0
_RECEIVE_BUFFER_FORCE, _BUFFER = 33, 32 << 20
_IPV4_ROUTES = 1 << 6  # RTNLGRP_IPV4_ROUTE

Document = tuple[Key, Value]


def network(number: int) -> Cidr:
    """Return the network of a block."""
    return POOL.block(number, 26)


def node_of(number: int) -> str:
    """Return the node that has a block."""
    return f"node{number // BLOCKS_OF_NODE}"


def affinity(number: int, claimed: Cidr | None = None) -> Document:
    """Return the affinity of the node that has a block to this block, or to another network."""
    return AffinityKey(node_of(number), claimed or network(number)), Affinity()


def block(number: int, pods: int = PODS_OF_BLOCK) -> Document:
    """Return a block with pods of its node."""
    host = node_of(number)
    found = Block(network(number), f"host:{host}", Ordinals(6), 1_000_000, CLAIMED, [])
    for pod in range(pods):
        owner = {"node": host, "timestamp": CLAIMED, "pod": f"pod-{number}-{pod}", "namespace": "default"}
        found.attributes = [*(found.attributes or ()), Attribute(f"net.{number:032x}{pod:032x}", owner)]
        found.ordinal_sequences[found.ordinals.allocate(pod)] = 1000 + pod
    return BlockKey(found.cidr), found


def documents() -> Iterator[Document]:
    """Yield the blocks and affinities of the cluster."""
    for number in range(BLOCKS):
        yield block(number)
        yield affinity(number)


class RoutedSite:
    """A datastore, with a session. Documents are put and deleted in etcd, so that no server is busy with their writes."""

    def __init__(self, site: Site, store: Backend, port: int, path: Callable[[Document], tuple[str, bytes]]) -> None:
        self.site = site
        self.store = store
        self._port = port
        self._path = path

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings of a session of svc-routes."""
        if isinstance(self.site, OrchSite):
            return {"kind": "orch", "kubeconfig": str(self.site.administrator)}
        return {"kind": "etcdv3", "etcd_endpoints": str(self.site.config["etcd_endpoints"])}

    def set_strict(self, *, strict: bool) -> None:
        put_settings(self.store, strict_affinity=strict)

    def set_pools(self, **spec: Any) -> None:
        put_pool(self.store, "pool", str(POOL), natOutgoing=True, **spec)
        put_pool(self.store, "tunnels", str(TUNNELS), **spec)

    @contextmanager
    def writer(self) -> Iterator["Writer"]:
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            yield Writer(rpc.KVStub(channel), self._path)


class Writer:
    """Changes of documents, without a check of what is there. Thread-safe."""

    def __init__(self, stub: Any, path: Callable[[Document], tuple[str, bytes]]) -> None:
        self._stub = stub
        self._path = path

    def put(self, document: Document) -> None:
        key, body = self._path(document)
        self._stub.Put(rpc.PutRequest(key=key.encode(), value=body), timeout=_PUT_SECONDS)

    def delete(self, document: Document) -> None:
        key, _ = self._path(document)
        self._stub.DeleteRange(rpc.DeleteRangeRequest(key=key.encode()), timeout=_PUT_SECONDS)

    def put_all(self, found: Iterator[Document]) -> None:
        operations = []
        for key, body in map(self._path, found):
            operations.append(rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=body)))
            if len(operations) == _IN_ONE:
                self._stub.Txn(rpc.TxnRequest(success=operations), timeout=_PUT_SECONDS)
                operations = []
        self._stub.Txn(rpc.TxnRequest(success=operations), timeout=_PUT_SECONDS)


@contextmanager
def etcd_site(folder: Path) -> Iterator[RoutedSite]:
    codec = Codec(DEFAULT)
    with required(), etcd.cluster(folder, durable=True) as member, closing(EtcdSite(member).open()) as store:
        found = RoutedSite(
            EtcdSite(member), store, member.members[0].ports[0], lambda each: (codec.path(each[0]), codec.encode(each[1]))
        )
        _fill(found, _etcd_nodes())
        yield found


@contextmanager
def orch_site(folder: Path) -> Iterator[RoutedSite]:
    def path(document: Document) -> tuple[str, bytes]:
        key, body = planted(document)
        return f"/registry/{key}", orjson.dumps(body)

    with required(), running(folder) as kube:
        site = OrchSite(kube, folder)
        with closing(site.open()) as store:
            plant(kube, _kube_nodes(kube))
            found = RoutedSite(site, store, kube.etcd_port, path)
            _fill(found, iter(()))
            yield found


SITES = {"orch": orch_site, "etcd": etcd_site}


@contextmanager
def routed_node() -> Iterator[Netns]:
    """Make the node: a namespace with an uplink in the network of all nodes. The thread is inside."""
    with Netns("routes") as node, entered(node):
        connect(node)
        yield node


def connect(node: Netns) -> None:
    """Give a namespace an interface in the network of all nodes, with the address of the own one."""
    for command in ("link set lo up", "link add up0 type veth peer name up1", "link set up0 up", "link set up1 up"):
        node.run("ip", *command.split())
    node.run("ip", "address", "add", f"{_address(0)}/{LAN.length}", "dev", "up0")
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")


class RouteMonitor:
    """The kernel's notifications about routes of svc-routes, each with the time at which it came."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, _BUFFER)
        self._socket.bind((0, _IPV4_ROUTES))
        self._socket.settimeout(0.5)
        self._closed = threading.Event()
        self.added: dict[tuple[bytes, int], float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._socket.close()

    def await_routes(self, number: int, seconds: float = READY_SECONDS) -> float:
        """Wait until so many networks have a route. Return when the last one came."""
        until = time.monotonic() + seconds
        while len(self.added) < number:
            if time.monotonic() > until:
                raise Failed(f"{len(self.added)} of {number} routes came within {seconds:g} s")
            time.sleep(0.002)
        return max(self.added.values())

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            now = time.monotonic()
            for kind, _, message in rtnl.split(data):
                route = rtnl.unpack_route(message)
                if route["protocol"] != DEFAULT.route_protocol:
                    continue
                key = (route["destination"], route["length"])
                if kind == rtnl.RTM_NEWROUTE:
                    self.added[key] = now
                else:
                    self.added.pop(key, None)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="svc-bench-") as name:
        yield Path(name)


def _fill(found: RoutedSite, nodes: Iterator[Document]) -> None:
    set_ready(found.store)
    found.set_strict(strict=True)
    found.set_pools()
    with found.writer() as writer:
        writer.put_all(nodes)
        writer.put_all(documents())


def _address(number: int) -> str:
    return str(LAN.address(number + 1))


def _tunnel(number: int) -> tuple[str, str]:
    """Return the address and the MAC of a node's tunnel."""
    return str(TUNNELS.address(number + 1)), tunnel_mac(f"node{number}", VXLAN_V4).hex(":")


def _etcd_nodes() -> Iterator[Document]:
    for number in range(NODES):
        name, (tunnel, mac) = f"node{number}", _tunnel(number)
        spec: Json = {"addresses": [{"address": _address(number), "type": "InternalIP"}]}
        if name != OWN:
            spec |= {"ipv4VXLANTunnelAddr": tunnel, "vxlanTunnelMACAddr": mac}
        yield ResourceKey("Node", name), Resource("Node", {"name": name, "uid": name}, spec)


def _kube_nodes(kube: Kube) -> Iterator[tuple[str, Json]]:
    pattern = node_pattern(kube)
    for number in range(NODES):
        name, (tunnel, mac) = f"node{number}", _tunnel(number)
        prefix = DEFAULT.label_prefix
        notes = {f"{prefix}/IPv4VXLANTunnelAddr": tunnel, f"{prefix}/VXLANTunnelMACAddr": mac}
        uid = f"{number:08x}-0000-4000-8000-{number:012x}"
        made = named(pattern, name, uid, annotations={} if name == OWN else notes)
        addresses = [{"type": "InternalIP", "address": _address(number)}, {"type": "Hostname", "address": name}]
        made["status"] = pattern["status"] | {"addresses": addresses}
        yield f"minions/{name}", made


@contextmanager
def required() -> Iterator[None]:
    try:
        yield
    except pytest.skip.Exception as what:
        raise Missing(str(what)) from None
