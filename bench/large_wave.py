"""A wave of lost nodes in a large cluster: svc-controllers, its own program, releases their addresses and blocks."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from bench.large_site import GrownCluster, LargeSite
from bench.server_counts import Counts, orch_requests, processor_seconds
from bench.testbed import Failed
from harness import short_times
from harness.controllers import Process, cluster
from harness.large_cluster import uproot_all
from svc.model.keys import AffinityKey, AffinityQuery, HandleKey, HandleQuery

QUIET_SECONDS = 1.0  # in place of 10 minutes, after which a node whose claim does not move is gone
ASKING_SECONDS = 5.0  # in place of a minute, between two questions whether a lost node is gone
TIMES = (
    f"svc.controllers.gone_nodes:QUIET_SECONDS={QUIET_SECONDS}",
    f"svc.controllers.node.addresses.part:_LOST_SECONDS={ASKING_SECONDS}",
)
PERIOD = "10s"  # of the rounds in place of 5 minutes; each looks at the whole cluster
MOST_SECONDS = 240.0
PARTS, ROUNDS = ("Addresses", "IpamHosts"), 2  # that must have ended before the loss
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Wave:
    """The cost of a wave: seconds from the loss until nothing is left, requests, and processor time of svc-controllers."""

    nodes: int
    pods: int
    seconds: float
    requests: Counts
    processor_seconds: float


def wave(site: LargeSite, grown: GrownCluster, lost: range) -> Wave:
    """Let a cluster with all its nodes and pods come to rest, lose nodes with their pods, and wait until nothing is left.

    Raise Failed if something is left.
    """
    grown.fill_pods(site.kube)
    with ExitStack() as stack:
        where = {"ETCD_ENDPOINTS": site.settings["etcd_endpoints"]} if site.kind == "etcd" else {"DATASTORE_TYPE": "kubernetes"}
        folder = site.folder / f"wave{grown.nodes}"
        folder.mkdir()
        quiet = {"HEALTH_ENABLED": "disabled", "RECONCILER_PERIOD": PERIOD, "ENABLED_CONTROLLERS": "node"}
        controllers = stack.enter_context(cluster(site.kube, folder, where | quiet))
        program = (sys.executable, short_times.__file__, ",".join(TIMES), "svc.controllers.main", "run")
        process = controllers.start(program=program, LOG_LEVEL="debug")
        _await(process, lambda: all(len(process.rounds().get(part, ())) >= ROUNDS for part in PARTS))
        return _lose(site, grown, lost, process)


def _lose(site: LargeSite, grown: GrownCluster, lost: range, process: Process) -> Wave:
    pods = [place for place in grown.pod_numbers() if place[0] in lost]
    keys = [f"minions/node{node}" for node in lost] + [f"pods/default/{grown.pod_name(*place)}" for place in pods]
    before, used, began = _requests(site), processor_seconds(process.pid), time.monotonic()
    uproot_all(site.kube, keys)
    gone = "deleted the Node node" if site.kind == "etcd" else " is gone: "
    _await(process, lambda: process.text.count(gone) >= len(lost))
    seconds = time.monotonic() - began
    found = Wave(len(lost), len(pods), seconds, _requests(site) - before, processor_seconds(process.pid) - used)
    hosts = {f"node{node}" for node in lost}
    blocks = [
        each.key for each in site.store.list(AffinityQuery()) if isinstance(each.key, AffinityKey) and each.key.host in hosts
    ]
    handles = {HandleKey(grown.handle(*place)) for place in pods}.intersection(
        each.key for each in site.store.list(HandleQuery())
    )
    if blocks or handles:
        raise Failed(f"of the lost nodes are left: {len(blocks)} blocks, and {len(handles)} handles")
    return found


def _requests(site: LargeSite) -> Counts:
    """Return the requests that the datastore and the Kubernetes API have got."""
    return site.requests() + (orch_requests(site.kube) if site.kind == "etcd" else Counts())


def _await(process: Process, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + MOST_SECONDS
    while not condition():
        if process.status is not None or time.monotonic() > until:
            raise Failed(f"svc-controllers did not release the lost nodes: {process.text[-2000:]}")
        time.sleep(POLL_SECONDS)
