"""Automatic host endpoints of a large cluster: the time to create them, and from the label of a node to its host endpoint."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from bench.measurement import Figure, Missing, Sample, at_most
from bench.options import VERSIONS, Options
from harness.datastores import EtcdSite, OrchSite, Site, session, set_ready
from harness.etcd import cluster
from harness.kube import Kube
from harness.kube import running as run_kube
from harness.large_cluster import LargeCluster
from harness.orch import NODES
from harness.running_controller import Running, running
from svc.controllers.assembly import Part
from svc.controllers.configuration import Configuration
from svc.controllers.controller import Shared
from svc.controllers.host_endpoint_controller import HostEndpoints
from svc.controllers.node_labels import NodeLabels
from svc.datastore.api import Backend
from svc.datastore.open import open_client
from svc.model.keys import ResourceKey

_LABELS = 20  # nodes that get a label
_SECONDS = 300.0  # for each wait
_CREATION_GOAL, _LABEL_GOAL = 30, 2  # seconds


def run(options: Options) -> Iterator[Figure]:
    nodes = 1000 if options.memory_pods >= 500 else 100
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            for name in ("kube", "etcd"):
                (folder / name).mkdir()
            kube = stack.enter_context(run_kube(folder / "kube"))
            etcd = stack.enter_context(cluster(folder / "etcd", durable=True))
        except pytest.skip.Exception as what:
            raise Missing(str(what)) from None
        large = LargeCluster(nodes, 0)
        large.fill_api(kube)
        for name, site in ("etcdv3", EtcdSite(etcd)), ("orch", OrchSite(kube, folder)):
            yield from _measure(name, site, kube, large)


def _measure(name: str, site: Site, kube: Kube, large: LargeCluster) -> Iterator[Figure]:
    with ExitStack() as stack:
        store = stack.enter_context(session(site))
        set_ready(store)
        kubeconfig = str(kube.kubeconfig(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "kubeconfig"))

        def start(make: Callable[[Shared], Part]) -> Running:
            client = stack.enter_context(closing(open_client({"kubeconfig": kubeconfig})))
            made = stack.enter_context(running(client, stack.enter_context(session(site)), make))
            _wait(lambda: made.part.is_ready)
            return made

        if store.atomic:
            large.fill_store(store)
            labels = start(NodeLabels)
            copied = f"{site.names.label_prefix}/kube-labels"
            nodes = labels.shared.tables.nodes
            _wait(lambda: all(copied in each.value.metadata.get("annotations", ()) for each in nodes.snapshot().values()))
        endpoints = start(HostEndpoints)
        began = time.monotonic()
        endpoints.live.replace(Configuration(creates_host_endpoints=True))
        _wait(lambda: len(endpoints.shared.tables.host_endpoints) == large.nodes)
        created = Sample(time.monotonic() - began)
        delays = [_delay(store, kube, f"node{node}") for node in range(min(_LABELS, large.nodes))]
    goal = at_most(_CREATION_GOAL) if large.nodes >= 1000 else None
    yield Figure(f"host_endpoints_{name}", "s", created, large.nodes, goal=goal, versions=VERSIONS)
    yield Figure(
        f"host_endpoint_label_{name}", "s", Sample.of(delays), len(delays), goal=at_most(_LABEL_GOAL), versions=VERSIONS
    )


def _delay(store: Backend, kube: Kube, node: str) -> float:
    """Return the time from the label of a node of Kubernetes to that of its host endpoint."""
    began = time.monotonic()
    kube.call("PATCH", f"{NODES}/{node}", {"metadata": {"labels": {"bench": "x"}}}, "application/merge-patch+json")
    _wait(partial(_is_labelled, store, ResourceKey("HostEndpoint", f"{node}-auto-hep")))
    return time.monotonic() - began


def _is_labelled(store: Backend, key: ResourceKey) -> bool:
    return store.get(key).value.labels.get("bench") == "x"


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < until, "the controllers did not finish in time"
        time.sleep(0.005)
