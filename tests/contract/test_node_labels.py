"""The copy of node labels, on a real API server and a real etcd."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from harness.datastores import EtcdSite, session, set_ready
from harness.ipam import put
from harness.kube import Kube
from harness.orch import NODES, put_core_node
from harness.polling import wait_until
from harness.running_controller import Running, running
from svc.controllers.configuration import Configuration
from svc.controllers.node.host_endpoint_controller import HostEndpoints
from svc.controllers.node.node_labels import NodeLabels
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.server

KEY = ResourceKey("Node", "n1")
NOTE = f"{DEFAULT.label_prefix}/kube-labels"


@pytest.fixture
def store(etcd_site: EtcdSite) -> Iterator[Backend]:
    with session(etcd_site) as made:
        set_ready(made)
        yield made
    etcd_site.clear()


@pytest.fixture
def run(client: Client, kube: Kube, store: Backend, etcd_site: EtcdSite) -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:

        def start(configuration: Configuration | None = None, make: Any = NodeLabels) -> Running:
            own = stack.enter_context(session(etcd_site))
            return stack.enter_context(running(client, own, make, configuration=configuration))

        yield start
    kube.forget("minions/")


def register(store: Backend, name: str = "n1", of: str = "n1", references: Any = None, **labels: str) -> None:
    """Write a Node as its agent does, with a reference to its node of Kubernetes."""
    given = [{"orchestrator": DEFAULT.orchestrator, "nodeName": of}] if references is None else references
    put(store, ResourceKey("Node", name), Resource("Node", {"name": name, "labels": labels}, {"orchRefs": given}))


def label(kube: Kube, name: str = "n1", **labels: str | None) -> None:
    kube.call("PATCH", f"{NODES}/{name}", {"metadata": {"labels": labels}}, "application/merge-patch+json")


def labels_of(store: Backend, name: str = "n1") -> dict[str, str]:
    return store.get(ResourceKey("Node", name)).value.labels


def test_labels_follow_kubernetes(run: Callable[..., Running], kube: Kube, store: Backend) -> None:
    register(store, own="kept")
    put_core_node(kube, "n1", {"rack": "a", "zone": "z"})
    run()
    wait_until(lambda: labels_of(store) == {"own": "kept", "rack": "a", "zone": "z"})
    label(kube, rack="b", zone=None, more="m")
    wait_until(lambda: labels_of(store) == {"own": "kept", "rack": "b", "more": "m"})
    assert json.loads(store.get(KEY).value.metadata["annotations"][NOTE]) == {"rack": "b", "more": "m"}


def test_edit_of_a_copied_label_is_reverted(run: Callable[..., Running], kube: Kube, store: Backend) -> None:
    register(store)
    put_core_node(kube, "n1", {"rack": "a"})
    run()
    wait_until(lambda: labels_of(store) == {"rack": "a"})
    store.update(KEY, lambda node: node and replace(node, metadata=node.metadata | {"labels": {"rack": "z", "own": "x"}}))
    wait_until(lambda: labels_of(store) == {"rack": "a", "own": "x"})


def test_node_with_another_name_in_kubernetes(run: Callable[..., Running], kube: Kube, store: Backend) -> None:
    register(store, "other", of="n1")
    register(store, "n1", references=[])
    register(store, "bad", references=["x"])
    put_core_node(kube, "n1", {"rack": "a"})
    found = run()
    wait_until(lambda: labels_of(store, "other") == {"rack": "a"})
    label(kube, rack="b")
    wait_until(lambda: labels_of(store, "other") == {"rack": "b"})
    assert labels_of(store, "n1") == labels_of(store, "bad") == {}
    assert found.failures == []


def test_node_that_registers_later_gets_its_labels(run: Callable[..., Running], kube: Kube, store: Backend) -> None:
    put_core_node(kube, "n1", {"rack": "a"})
    part = run()
    wait_until(lambda: part.part.is_ready)
    register(store)
    wait_until(lambda: labels_of(store) == {"rack": "a"})


def test_labels_stay_when_the_node_of_kubernetes_goes(run: Callable[..., Running], kube: Kube, store: Backend) -> None:
    register(store)
    put_core_node(kube, "n1", {"rack": "a"})
    part = run()
    wait_until(lambda: labels_of(store) == {"rack": "a"})
    kube.call("DELETE", f"{NODES}/n1")
    wait_until(lambda: not part.shared.tables.kube_nodes.snapshot())
    part.part.settle("n1")
    assert labels_of(store) == {"rack": "a"}


def test_setting_turns_the_copy_off(run: Callable[..., Running], kube: Kube, store: Backend) -> None:
    register(store)
    put_core_node(kube, "n1", {"rack": "a"})
    part = run(Configuration(syncs_labels=False))
    wait_until(lambda: part.part.is_ready)
    part.part.settle("n1")
    assert labels_of(store) == {}
    part.live.replace(Configuration())
    wait_until(lambda: labels_of(store) == {"rack": "a"})


def test_labels_reach_the_host_endpoint(run: Callable[..., Running], kube: Kube, store: Backend) -> None:
    register(store)
    put_core_node(kube, "n1", {"rack": "a"})
    run()
    run(Configuration(creates_host_endpoints=True), HostEndpoints)
    key = ResourceKey("HostEndpoint", "n1-auto-hep")
    wait_until(lambda: (entry := store.find(key)) is not None and entry.value.labels.get("rack") == "a")
    began = time.monotonic()
    label(kube, rack="b")
    wait_until(lambda: store.get(key).value.labels["rack"] == "b")
    print(f"from the label of Kubernetes to the host endpoint: {time.monotonic() - began:.3f} s")
