"""A part of svc-controllers whose rounds a test makes one by one, with a clock that the test moves. It has no thread."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.datastores import Site, session, set_ready
from harness.ipam import put_pool, put_settings
from harness.kube import Kube
from harness.orch import put_core_node
from harness.polling import wait_until
from harness.running_controller import END_SECONDS, Clock
from svc._core.cidr import Address
from svc.controllers.assembly import Part
from svc.controllers.conditions import Conditions
from svc.controllers.configuration import Configuration, Live
from svc.controllers.controller import Shared
from svc.controllers.guarded_store import guarded
from svc.controllers.tables import Tables
from svc.datastore.api import Backend, Create, Delete, Update
from svc.datastore.orch.client import Client
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.leader.election import Election
from svc.model.claim import Claimant, NodeClaim, NodeFence
from svc.model.keys import (
    HOST_KINDS,
    AffinityQuery,
    BlockQuery,
    HandleQuery,
    NodeClaimKey,
    NodeFenceKey,
    ResourceKey,
    ResourceQuery,
)
from svc.model.resource import Resource
from svc.names import DEFAULT

NODES = "/api/v1/nodes"
Make = Callable[[Shared, Clock], Part]


@dataclass
class Driven:
    """A part, and what it shares."""

    part: Part
    shared: Shared
    clock: Clock
    failures: list[str] = field(default_factory=list)

    def round(self, after: float = 0.0) -> list[Any]:
        """Make a full round, with tables that are current, and return the items that it settled. Errors are raised."""
        self.clock.now += after
        self.await_tables()
        done, todo = [], list(self.part.round_items())
        while todo:
            for item in todo:
                self.part.settle(item)
            done += todo
            todo = list(iter(lambda: self.part._queue.take(math.inf), None))
        return done

    def await_tables(self) -> None:
        """Wait until the tables show what is stored."""
        wait_until(lambda: self.part.is_ready and all(self._is_current(*each) for each in self._tables()))

    def _tables(self) -> Iterator[tuple[Any, Any]]:
        tables, made = self.shared.tables, self.shared.tables.__dict__
        queries: dict[str, Any] = {"blocks": BlockQuery(), "handles": HandleQuery()}
        queries |= {"nodes": ResourceQuery("Node"), "pools": ResourceQuery("IPPool"), "kube_nodes": None}
        yield from ((made[name], query) for name, query in queries.items() if name in made)
        if "affinities" in made:
            yield from zip(tables.affinities, (AffinityQuery(kind=kind) for kind in HOST_KINDS), strict=True)

    def _is_current(self, table: Any, query: Any) -> bool:
        if query is None:
            uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in self.shared.client.list(NODES).items}
            return uids == {name: row.uid for name, row in table.snapshot().items()}
        stored = {entry.key: entry.revision for entry in self.shared.store.list(query)}
        return stored == {key: entry.revision for key, entry in table.snapshot().items()}


@contextmanager
def driven(client: Client, store: Backend, make: Make, configuration: Configuration | None = None) -> Iterator[Driven]:
    """Yield a part that leads, and end its tables. None may have failed because of a bug."""
    election, clock, failures = Election("test", Clock()), Clock(1000.0), list[str]()
    election.renewed(0.0)
    writable = guarded(store, election)
    tables, live = Tables(client, writable, failures.append, clock=clock), Live(configuration or Configuration())
    shared = Shared(client, writable, tables, DEFAULT, election, live, Conditions(), failures.append)
    made = Driven(make(shared, clock), shared, clock, failures)
    tables.start()
    try:
        yield made
    finally:
        tables.stop()
        for table in tables._made:
            table._thread.join(END_SECONDS)
            assert not table._thread.is_alive()
    assert failures == []


class World:
    """A cluster of Kubernetes with a datastore: nodes, claims, pools and addresses."""

    def __init__(self, site: Site, kube: Kube, client: Client, store: Backend) -> None:
        self.site, self.kube, self.client, self.store = site, kube, client, store
        set_ready(store)

    @property
    def has_etcd(self) -> bool:
        return self.store.atomic

    def add_node(self, name: str, kube_name: str = "", **labels: str) -> None:
        """Create a node of Kubernetes, and its Node in a datastore that keeps Nodes itself."""
        put_core_node(self.kube, kube_name or name, labels)
        if self.has_etcd:
            self.register(name, kube_name or name)

    def add_core_node(self, name: str) -> None:
        """Create a node of Kubernetes that the datastore knows already."""
        put_core_node(self.kube, name, {})

    def register(self, name: str, kube_name: str, orchestrator: str = "k8s") -> None:
        spec = {"orchRefs": [{"orchestrator": orchestrator, "nodeName": kube_name}]}
        self.store.write([Create(ResourceKey("Node", name), Resource("Node", {"name": name, "uid": name}, spec))])

    def delete_node(self, kube_name: str) -> None:
        self.kube.call("DELETE", f"{NODES}/{kube_name}")

    def claim(self, node: str) -> None:
        """Claim the name of a node as its agent does, or renew the claim."""
        key, value = NodeClaimKey(node), NodeClaim(Claimant("m", "b", "/s"))
        entry = self.store.find(key)
        if entry is not None:
            self.store.write([Update(key, entry.value.renewed(), entry.revision)])
        else:
            self.store.write([Create(key, value), *([Create(NodeFenceKey(node), NodeFence())] if self.has_etcd else [])])

    def is_claimed(self, node: str) -> bool:
        if self.has_etcd and self.store.find(NodeFenceKey(node)) is not None:
            return True
        return self.store.find(NodeClaimKey(node)) is not None

    def take(self, node: str, handle: str, at: str = "", **owner: str) -> str:
        """Assign an address to a handle, with the attributes of its owner, and return it."""
        ipam = IpamService(self.store, node)
        request = Assign(handle, {"node": node, **owner}, addresses=(Address(at),) if at else ())
        return str(ipam.assign(request).allocations[0].address)

    def free(self, node: str, handle: str) -> None:
        IpamService(self.store, node).release(Release(handle))

    def set_cooldown(self, seconds: int) -> None:
        put_settings(self.store, cooldown_seconds=seconds)

    def lock(self) -> None:
        set_ready(self.store, ready=False)

    def unlock(self) -> None:
        set_ready(self.store)

    def clear(self) -> None:
        """Delete everything, also what a test without the API server as its datastore has there."""
        with_claims = [Delete(key) for node in ("node1", "node2", "n1") for key in (NodeClaimKey(node), NodeFenceKey(node))]
        for write in with_claims if self.has_etcd else ():
            if self.store.find(write.key) is not None:
                self.store.write([write])
        self.site.clear()
        self.kube.forget("minions/", "leases/kube-system/")


@contextmanager
def a_world(site: Site, kube: Kube, client: Client) -> Iterator[World]:
    """Yield a cluster with a node and a pool, and delete everything at the end."""
    with session(site) as store:
        made = World(site, kube, client, store)
        put_pool(store, "p", "10.66.0.0/24", blockSize=26)
        made.add_node("node1")
        yield made
        made.clear()


@pytest.fixture
def world(site: Site, kube: Kube, client: Client) -> Iterator[World]:
    """Return a cluster with a node and a pool, on each kind of shared datastore in turn."""
    with a_world(site, kube, client) as made:
        yield made
