"""The registration of a Kubernetes node in etcd: it is created once, and a Node that has its name stays as it is."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone

import pytest

from harness.datastores import Site, session
from svc._core.cidr import Address
from svc.admin.node_registration import register
from svc.admin.resources import CLUSTER, CREATED, UNCHANGED, UPDATED
from svc.controllers.nodes import kube_name
from svc.datastore.api import StoreError
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.routes.own_node import OwnNode

pytestmark = pytest.mark.server

NODE = ResourceKey("Node", "node1")
NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def _empty(etcd_site: Site) -> Iterator[None]:
    etcd_site.clear()
    yield
    etcd_site.clear()


def set_readiness(site: Site, *, ready: bool) -> None:
    with session(site) as store:
        store.update(CLUSTER, lambda _: Resource(CLUSTER.kind, {"name": CLUSTER.name, "uid": "u"}, {"datastoreReady": ready}))


@pytest.mark.parametrize("is_initialised", [True, False])
def test_node_gets_its_name_in_kubernetes(etcd_site: Site, is_initialised: bool) -> None:
    """The controllers find the node of Kubernetes by it."""
    if is_initialised:
        set_readiness(etcd_site, ready=True)
    with session(etcd_site) as store:
        assert register(store, DEFAULT, "node1", "node1.example", NOW) == CREATED
        found = store.get(NODE)
        assert kube_name(DEFAULT, found.value) == "node1.example"
        assert found.value.metadata["creationTimestamp"] == "2026-01-31T00:00:00Z"
        assert found.value.metadata["uid"]
        assert register(store, DEFAULT, "node1", "node1.example", NOW) == UNCHANGED
        assert store.get(NODE).revision == found.revision


@pytest.mark.parametrize("orchestrator", [DEFAULT.orchestrator, "another"])
def test_node_that_exists_stays(etcd_site: Site, orchestrator: str) -> None:
    """Another program, or an administrator, has made it. It stays in a locked datastore too, without an error."""
    spec = {"bgp": {"asNumber": 1}, "orchRefs": [{"nodeName": "other", "orchestrator": orchestrator}]}
    with session(etcd_site) as store:
        store.update(NODE, lambda _: Resource("Node", {"name": "node1", "labels": {"rack": "a"}}, spec))
        found = store.get(NODE)
        set_readiness(etcd_site, ready=False)
        assert register(store, DEFAULT, "node1", "node1", NOW) == UNCHANGED
        assert store.get(NODE) == found


def test_node_that_svc_routes_has_made_gets_its_name_in_kubernetes(etcd_site: Site) -> None:
    """The programs start at the same time. Without the name, no label is copied, and the datastore cannot move."""
    set_readiness(etcd_site, ready=True)
    with session(etcd_site) as store:
        OwnNode(store, DEFAULT, "node1").register({4: Address("192.0.2.1")})
        before = store.get(NODE).value
        assert register(store, DEFAULT, "node1", "node1.example", NOW) == UPDATED
        found = store.get(NODE)
        assert kube_name(DEFAULT, found.value) == "node1.example"
        assert found.value.spec.items() > before.spec.items()
        assert register(store, DEFAULT, "node1", "node1.example", NOW) == UNCHANGED
        assert store.get(NODE).revision == found.revision


def test_node_in_a_locked_datastore_gets_no_name(etcd_site: Site) -> None:
    with session(etcd_site) as store:
        store.update(NODE, lambda _: Resource("Node", {"name": "node1"}, {"bgp": {"asNumber": 1}}))
        found = store.get(NODE)
        set_readiness(etcd_site, ready=False)
        with pytest.raises(StoreError, match="locked for a migration: wait for its end"):
            register(store, DEFAULT, "node1", "node1", NOW)
        assert store.get(NODE) == found


def test_locked_datastore_is_not_changed(etcd_site: Site) -> None:
    set_readiness(etcd_site, ready=False)
    with session(etcd_site) as store:
        with pytest.raises(StoreError, match="locked for a migration: wait for its end"):
            register(store, DEFAULT, "node1", "node1", NOW)
        assert store.find(NODE) is None


def test_several_processes_make_one_node(etcd_site: Site) -> None:
    """Two pods of a node overlap when it is drained by force. Each node is made once."""
    set_readiness(etcd_site, ready=True)
    outcomes: list[str] = []
    with ExitStack() as stack:
        stores = [stack.enter_context(session(etcd_site)) for _ in range(6)]
        start = threading.Barrier(len(stores))

        def run(number: int) -> None:
            start.wait()
            outcomes.append(register(stores[number], DEFAULT, f"node{number % 2}", f"node{number % 2}", NOW))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(outcomes) == [CREATED] * 2 + [UNCHANGED] * 4
    with session(etcd_site) as store:
        assert sorted(entry.value.name for entry in store.list(ResourceQuery("Node"))) == ["node0", "node1"]
