"""svc-controllers in a large cluster on real servers, with each datastore: the servers, the processes, and their work."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from harness import etcd
from harness.controllers import Cluster, Process, cluster
from harness.datastores import EtcdSite, set_ready
from harness.kube import running
from harness.large_cluster import LargeCluster
from harness.orch import NODES, install, open_store
from svc.datastore.api import Backend
from svc.model.keys import HandleKey, ResourceKey, ResourceQuery

_SETTLED_SECONDS = 3.0  # without the end of a full round
_MOST_SECONDS = 300.0  # for a wait
_CONFIGURATION = ResourceKey("KubeControllersConfiguration", "default")
_MERGE = "application/merge-patch+json"
_RANGES = re.compile(r'^grpc_server_started_total\{grpc_method="Range",.*\} (\d+)', re.M)


@dataclass(frozen=True)
class LargeSite:
    """A large cluster. `lists` counts the lists that the servers were asked for so far, and with etcd its reads of any kind."""

    kind: str
    store: Backend
    size: LargeCluster
    controllers: Cluster
    lists: Callable[[], Counter[str]]

    def start(self, **environment: str) -> Process:
        return self.controllers.start(LOG_LEVEL="debug", **environment)

    def await_settled(self, process: Process) -> None:
        """Wait until the first full rounds have ended and nothing is left to do."""
        slow = {"Addresses"} | ({"Endpoints"} if self.kind == "etcd" else set())  # they read the largest tables
        await_condition(lambda: process.rounds().keys() >= slow and process.quiet_seconds() > _SETTLED_SECONDS)

    def await_tables(self, process: Process, like: Process) -> None:
        """Wait until a process has all tables that another one has."""
        await_condition(lambda: process.tables().keys() >= like.tables().keys())

    def await_round(self, process: Process, before: dict[str, list[float]]) -> dict[str, float]:
        """Wait until each part has had another full round. Return the seconds of the last one of each."""
        await_condition(lambda: all(len(process.rounds()[name]) > len(seconds) for name, seconds in before.items()))
        return {name: seconds[-1] for name, seconds in process.rounds().items()}

    def leak(self, grace_seconds: int) -> None:
        """Delete a pod whose node never sends the DEL, and wait until its address is free."""
        self._configure(leakGracePeriod=f"{grace_seconds}s")
        self.controllers.kube.uproot(f"pods/default/{self.size.pod_name(0, 0)}")
        handle = HandleKey(self.size.handle(0, 0))
        await_condition(lambda: self.store.find(handle) is None)

    def make_host_endpoints(self) -> None:
        """Wait until each node has a host endpoint."""
        self._configure(hostEndpoint={"autoCreate": "Enabled"})
        await_condition(lambda: len(self.store.list(ResourceQuery("HostEndpoint"))) == self.size.nodes, 0.5)

    def label(self, node: int) -> None:
        """Give a label to a node, and wait until its host endpoint has it."""
        key = ResourceKey("HostEndpoint", f"node{node}-auto-hep")
        self.controllers.kube.call("PATCH", f"{NODES}/node{node}", {"metadata": {"labels": {"scale": "yes"}}}, _MERGE)
        await_condition(lambda: (found := self.store.find(key)) is not None and "scale" in found.value.labels, 0.02)

    def _configure(self, **fields: object) -> None:
        """Change settings of controller `node`."""
        found = self.store.get(_CONFIGURATION).value
        found.spec.setdefault("controllers", {}).setdefault("node", {}).update(fields)
        self.store.update(_CONFIGURATION, lambda _: found)


@contextmanager
def etcd_site(folder: Path, size: LargeCluster, **environment: str) -> Iterator[LargeSite]:
    """Run the servers of a cluster whose datastore is etcd. Skip if their programs are missing."""
    with ExitStack() as stack:
        kube = stack.enter_context(running(folder))
        member = stack.enter_context(etcd.cluster(folder))
        store = stack.enter_context(closing(EtcdSite(member).open()))
        set_ready(store)
        size.fill_api(kube)
        size.fill_store(store)
        settings = {"ETCD_ENDPOINTS": member.endpoints, "HEALTH_ENABLED": "disabled"}  # a probe of the health would be counted
        controllers = stack.enter_context(cluster(kube, folder, settings | environment))
        metrics = f"http://127.0.0.1:{member.members[0].ports[2]}/metrics"
        yield LargeSite("etcd", store, size, controllers, lambda: kube.lists() + _ranges(metrics))


@contextmanager
def orch_site(folder: Path, size: LargeCluster, **environment: str) -> Iterator[LargeSite]:
    """Run the servers of a cluster whose datastore is the Kubernetes API. Skip if their programs are missing."""
    with ExitStack() as stack:
        kube = stack.enter_context(running(folder))
        install(kube)
        store = stack.enter_context(closing(open_store(kube, folder)))
        set_ready(store)
        size.fill_api(kube)
        size.fill_custom_resources(kube, store)
        controllers = stack.enter_context(cluster(kube, folder, {"DATASTORE_TYPE": "kubernetes", **environment}))
        yield LargeSite("orch", store, size, controllers, kube.lists)


def await_condition(condition: Callable[[], object], poll: float = 0.1) -> None:
    """Wait for minutes: a large cluster takes longer than other tests."""
    until = time.monotonic() + _MOST_SECONDS
    while not condition():
        assert time.monotonic() < until, "the controllers did not get there in time"
        time.sleep(poll)


def _ranges(metrics: str) -> Counter[str]:
    with urlopen(metrics) as reply:
        found = _RANGES.findall(reply.read().decode())
    return Counter({"reads of etcd": sum(map(int, found))})
