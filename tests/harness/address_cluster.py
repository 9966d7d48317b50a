"""A cluster whose leaked addresses the controllers release: a datastore, and a real API server with nodes and pods."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from harness.datastores import Site, session, set_ready
from harness.ipam import put, put_pool
from harness.kube import Kube, Refused
from harness.orch import NODES, PODS, put_core_node, put_pod
from harness.running_controller import Running, running
from svc._core.cidr import Address
from svc.controllers.configuration import Configuration
from svc.controllers.controller import Shared
from svc.controllers.node.addresses.part import Addresses
from svc.datastore.api import Backend, Create, Delete, NotFound
from svc.datastore.orch.client import Client
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.controllers_configuration import KEY
from svc.model.endpoint import KIND, PodFacts, Workload, endpoint, endpoint_key
from svc.model.keys import HandleKey, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.timestamps import to_nanoseconds

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
NETWORK = DEFAULT.network
POOL = "10.65.0.0/20"
GRACE = 0.3  # seconds


class AddressCluster:
    """The cluster. `store` is a session of the test itself, beside those of the controllers."""

    def __init__(self, site: Site, kube: Kube, store: Backend) -> None:
        self.site = site
        self.kube = kube
        self.store = store

    # nodes and pods

    def add_node(self, name: str) -> None:
        """Make a node of Kubernetes, and the Node of the datastore if that has its own."""
        put_core_node(self.kube, name)
        if self.store.atomic:
            references = [{"orchestrator": DEFAULT.orchestrator, "nodeName": name}]
            put(self.store, ResourceKey("Node", name), Resource("Node", {"name": name}, {"orchRefs": references}))

    def remove_node(self, name: str) -> None:
        self.kube.call("DELETE", f"{NODES}/{name}")

    def add_pod(self, name: str, node: str = "node1", **annotations: str) -> str:
        """Make a pod. Return its UID."""
        return str(put_pod(self.kube, name, node, annotations)["metadata"]["uid"])

    def remove_pod(self, name: str) -> None:
        """Delete a pod at once, as with `kubectl delete --force`: no DEL follows."""
        with suppress(Refused):
            self.kube.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", {"gracePeriodSeconds": 0})

    def set_status(self, name: str, **status: Any) -> None:
        self.kube.call("PATCH", f"{PODS}/{name}/status", {"status": status}, MERGE)

    def annotate_pod(self, pod: str, **notes: str) -> None:
        """Set annotations of a pod with the prefix of svc."""
        found = {f"{DEFAULT.annotation_prefix}/{name}": text for name, text in notes.items()}
        self.kube.call("PATCH", f"{PODS}/{pod}", {"metadata": {"annotations": found}}, MERGE)

    # what nodes do

    def assign(
        self, handle: str, pod: str = "", node: str = "node1", *, address: str = "", creation: Any = None, **attributes: str
    ) -> str:
        """Assign an address on a node. Return it."""
        owner = {"node": node, "timestamp": to_nanoseconds(time.time_ns())}
        owner |= {"pod": pod, "namespace": "default"} if pod else {}
        request = Assign(
            handle, owner | attributes, addresses=(Address(address),) if address else (), extra_write=creation, max_blocks=0
        )
        return str(IpamService(self.store, node).assign(request).addresses[0])

    def attach(
        self, pod: str, container: str, node: str = "node1", ifname: str = "eth0", network: str = NETWORK, address: str = ""
    ) -> str:
        """Assign an address to a pod that exists, and write its endpoint, as an ADD does. Return the address."""

        def creation(addresses: tuple[Address, ...]) -> Create:
            return Create(endpoint_key(DEFAULT, node, _workload(pod, container), ifname), made(addresses))

        def made(addresses: tuple[Address, ...]) -> Resource:
            return _endpoint(pod, container, addresses, node, ifname)

        extra = creation if self.store.atomic else None
        found = self.assign(f"{network}.{container}", pod, node, address=address, creation=extra)
        self.write_endpoint(pod, container, found, node=node, ifname=ifname)
        return found

    def write_endpoint(self, pod: str, container: str, *addresses: str, node: str = "node1", ifname: str = "eth0") -> None:
        """Write the endpoint of a pod, also over that of an earlier container."""
        key = endpoint_key(DEFAULT, node, _workload(pod, container), ifname)
        put(self.store, key, _endpoint(pod, container, tuple(map(Address, addresses)), node, ifname))

    def detach(self, pod: str, container: str, node: str = "node1", ifname: str = "eth0", network: str = NETWORK) -> None:
        """Delete the endpoint and release the addresses, as a DEL does."""
        key = endpoint_key(DEFAULT, node, _workload(pod, container), ifname)
        deletion = Delete(key) if self.store.find(key) else None
        if self.store.atomic:
            IpamService(self.store, node).release(Release(f"{network}.{container}", extra_write=deletion))
            return
        with suppress(NotFound):
            self.store.write([deletion] if deletion else [])
        IpamService(self.store, node).release(Release(f"{network}.{container}"))

    # what is stored

    def holder(self, address: str) -> str:
        """Return the handle that holds an address; empty if none does."""
        return IpamService(self.store, "node1").pool_and_handle(Address(address))[1]

    def has_handle(self, handle: str) -> bool:
        return self.store.find(HandleKey(handle)) is not None

    def endpoints(self) -> list[str]:
        """Return the names of the stored endpoints."""
        if not self.store.atomic:
            return []
        return [str(entry.value.name) for entry in self.store.list(ResourceQuery(KIND))]

    def release(self, handle: str) -> None:
        IpamService(self.store, "node1").release(Release(handle))

    # the settings of the controllers

    def settings(self) -> Resource:
        return self.store.get(KEY).value

    def annotations(self) -> dict[str, str]:
        """Return the annotations of the settings."""
        return dict(self.settings().metadata.get("annotations") or {})

    def annotate(self, name: str, text: str) -> None:
        """Give the settings an annotation with the prefix of svc."""
        metadata = self.settings().metadata | {"annotations": {f"{DEFAULT.label_prefix}/{name}": text}}
        put(self.store, KEY, replace(self.settings(), metadata=metadata))

    def delete_settings(self) -> None:
        self.store.write([Delete(KEY)])


def _workload(pod: str, container: str) -> Workload:
    return Workload(container, pod, "default")


def _endpoint(pod: str, container: str, addresses: tuple[Address, ...], node: str, ifname: str) -> Resource:
    workload = _workload(pod, container)
    key = endpoint_key(DEFAULT, node, workload, ifname)
    spec = {"ipNetworks": [str(address.host()) for address in addresses], "interfaceName": f"svc{container[:8]}", "mac": "x"}
    return endpoint(DEFAULT, key, node, workload, ifname, spec=spec, facts=PodFacts())


@contextmanager
def address_cluster(site: Site, kube: Kube) -> Iterator[AddressCluster]:
    """Yield a ready cluster with a pool, the settings of the controllers and `node1`. Delete everything at the end."""
    with session(site) as store:
        set_ready(store)
        put_pool(store, "pool4", POOL, blockSize=28)
        put(store, KEY, Resource(KEY.kind, {"name": KEY.name}, {}))
        made = AddressCluster(site, kube, store)
        made.add_node("node1")
        try:
            yield made
        finally:
            site.clear()
            kube.forget("minions/", "pods/default/")


@contextmanager
def collecting(
    cluster: AddressCluster,
    client: Client,
    *,
    grace: float = GRACE,
    leads: bool = True,
    make: Callable[[Shared], Addresses] = Addresses,
    store: Backend | None = None,
) -> Iterator[Running]:
    """Run the part that releases addresses, in a session of its own."""
    with session(cluster.site) as own:
        configuration = Configuration(leak_grace_seconds=grace)
        with running(client, store or own, make, leads=leads, configuration=configuration) as made:
            yield made
            assert made.failures == []
