"""A large cluster on real servers for the measurement of svc-controllers, on each datastore."""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from bench.measurement import Missing
from harness import etcd
from harness.controllers import Cluster, cluster
from harness.datastores import EtcdSite, set_ready
from harness.kube import Kube, running
from harness.large_cluster import LargeCluster
from harness.orch import install, open_store
from svc.datastore.api import Backend

Counts = Counter[str]

_RANGES = re.compile(r'^grpc_server_started_total\{grpc_method="Range",.*\} (\d+)', re.M)


@dataclass(frozen=True)
class Stage:
    """A large cluster. `lists` returns the lists that the servers were asked for so far, on etcd all reads of a key or a list."""

    kind: str
    kube: Kube
    store: Backend
    size: LargeCluster
    controllers: Cluster
    made_seconds: float
    lists: Callable[[], Counts]


@contextmanager
def etcd_stage(nodes: int, pods: int) -> Iterator[Stage]:
    with ExitStack() as stack:
        folder, kube = _servers(stack)
        member = stack.enter_context(etcd.cluster(folder))
        store = stack.enter_context(closing(EtcdSite(member).open()))
        set_ready(store)
        size, began = LargeCluster(nodes, pods // nodes), time.monotonic()
        size.fill_api(kube)
        size.fill_store(store)
        made = time.monotonic() - began
        controllers = stack.enter_context(cluster(kube, folder, {"ETCD_ENDPOINTS": member.endpoints}))
        metrics = f"http://127.0.0.1:{member.members[0].ports[2]}/metrics"
        yield Stage("etcd", kube, store, size, controllers, made, lambda: kube.lists() + _ranges(metrics))


@contextmanager
def orch_stage(nodes: int, pods: int) -> Iterator[Stage]:
    with ExitStack() as stack:
        folder, kube = _servers(stack)
        install(kube)
        store = stack.enter_context(closing(open_store(kube, folder)))
        set_ready(store)
        size, began = LargeCluster(nodes, pods // nodes), time.monotonic()
        size.fill_api(kube)
        size.fill_custom_resources(kube, store)
        made = time.monotonic() - began
        controllers = stack.enter_context(cluster(kube, folder, {"DATASTORE_TYPE": "kubernetes"}))
        yield Stage("orch", kube, store, size, controllers, made, kube.lists)


def _servers(stack: ExitStack) -> tuple[Path, Kube]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    try:
        return folder, stack.enter_context(running(folder))
    except pytest.skip.Exception as what:
        raise Missing(str(what)) from None


def _ranges(metrics: str) -> Counts:
    with urlopen(metrics) as reply:
        found = _RANGES.findall(reply.read().decode())
    return Counter({"reads of etcd": sum(map(int, found))})
