"""The datastores of a cluster, with real servers on the node's loopback: etcd and the Kubernetes API.

Calls alternate with those on the embedded store in the same agent. The server counts the requests of svc.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import programs
from bench.measurement import Figure, Goal, Missing, Sample, at_least, at_most
from bench.memory import rss_mib
from bench.options import AT_ONCE, VERSIONS, Options
from bench.orch_requests import requests_of_add
from bench.runtime import Outcome, wall_ms
from bench.sequential import AFTER_DELETION, TURN
from bench.server_counts import Counts, etcd_requests, orch_requests
from bench.testbed import Plugin, Pod, Stage
from harness.enter_netns import entered
from harness.etcd import cluster
from harness.kube import running
from harness.orch import PODS, install, put_core_node, put_pod
from harness.proxy import Proxy, proxy
from svc.datastore.api import Create, Update
from svc.datastore.etcd.store import EtcdStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey
from svc.names import DEFAULT

TRANSACTIONS = 200
CONCURRENT_PODS = 100
POOLS = {"pool4": "10.66.0.0/16", "pool6": "fd66::/112"}  # the pools of the node's embedded store differ
ADD_GOALS = {"etcd": 0.35, "orch": 0.7}  # of the time of ptp
DELAY = 0.1  # seconds; far longer than the few milliseconds that a late reply costs in addition
SETTLE = 0.5  # seconds for the start of watches


@dataclass(frozen=True)
class Server:
    """One datastore: its plugin, the requests so far, and the objects that a pod needs before its ADD."""

    kind: str
    plugin: Plugin
    detour: Plugin  # the same through the proxy
    proxy: Proxy
    counts: Callable[[], Counts]
    prepare: Callable[[list[Pod]], None] = lambda _pods: None


@dataclass
class Found:
    """Milliseconds by competitor and verb, and the server's requests for the calls of svc, by verb."""

    ms: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    calls: dict[str, Counts] = field(default_factory=dict)
    adds: int = 0

    def sample(self, name: str, verb: str = "ADD") -> Sample:
        return Sample.of(self.ms[name, verb])


def run_etcd(options: Options) -> Iterator[Figure]:
    with node_stage() as stage, etcd_server(stage) as (server, transaction):
        found = _one_at_a_time(stage, server, options.rounds)
        embedded, etcd = found.sample("embedded").p50, found.sample("etcd").p50
        note = f"ADD {etcd:.2f} ms, with the embedded store {embedded:.2f} ms; one transaction {transaction:.2f} ms"
        yield Figure(
            "etcd_add_extra", "ms", Sample(etcd - embedded), options.rounds, peer=Sample(transaction),
            peer_name="one transaction", goal=at_most(3), note=note, versions=VERSIONS,
        )  # fmt: skip
        yield from _common(stage, server, found, options, trips=2, burst_calls=1.5, memory=60)


def run_orch(options: Options) -> Iterator[Figure]:
    with node_stage() as stage, orch_server(stage) as server:
        found = _one_at_a_time(stage, server, options.rounds)
        yield _orch_extra(stage, server, found, options.rounds)
        yield from _common(stage, server, found, options, trips=4, burst_calls=4, memory=80)
        yield from _concurrent_adds(stage, server)


def _orch_extra(stage: Stage, server: Server, found: Found, rounds: int) -> Figure:
    """Return what an ADD costs more than on the embedded store, beside the same requests without svc."""
    pods = stage.pods(TURN)
    server.prepare(pods)
    paths = [f"{PODS}/{pod_name(pod)}" for pod in pods]
    bare = Sample.of(requests_of_add(server.plugin.netconf["orch"]["kubeconfig"], DEFAULT.crd_api_version, paths, rounds))
    embedded, orch = found.sample("embedded").p50, found.sample("orch").p50
    note = f"ADD {orch:.2f} ms, with the embedded store {embedded:.2f} ms; GET, POST, PUT and PATCH alone {bare.p50:.2f} ms"
    return Figure("orch_add_extra", "ms", Sample(orch - embedded), rounds, peer=bare, peer_name="four bare requests", note=note)


def _common(
    stage: Stage, server: Server, found: Found, options: Options, *, trips: float, burst_calls: float, memory: float
) -> Iterator[Figure]:
    kind, n = server.kind, options.rounds
    for verb in ("ADD", "DEL"):
        peer = found.sample("ptp", verb) if ("ptp", verb) in found.ms else None
        goals = (at_most(0.6), at_most(ADD_GOALS[kind])) if verb == "ADD" else (None, None)
        yield Figure(
            f"{kind}_{verb.lower()}", "ms", found.sample(kind, verb), n, peer=peer, peer_name="ptp + host-local",
            goal=goals[0], then=goals[1], note=programs.require_ptp(), versions=VERSIONS,
        )  # fmt: skip
    yield _trips(stage, server, trips)
    for verb in ("ADD", "DEL"):
        yield _calls(f"{kind}_{verb.lower()}_calls", found.calls[verb], found.adds, None)
    yield from _burst(stage, server, found, options, burst_calls)
    yield from _memory(stage, server, options, memory)


def _one_at_a_time(stage: Stage, server: Server, rounds: int) -> Found:
    plugins = {"embedded": stage.svc_plugin(), server.kind: server.plugin}
    if ptp := stage.ptp():
        plugins["ptp"] = ptp
    pods = {name: stage.pods(TURN) for name in plugins}
    server.prepare(pods[server.kind])
    found = Found()
    for number in range(-1, -(-rounds // TURN)):
        if number == 0:
            found = Found()
        for name, plugin in plugins.items():
            before = server.counts()
            _note(found, name, "ADD", (stage.execute(plugin, "ADD", pod) for pod in pods[name]))
            if name == server.kind:
                _count(found, "ADD", server.counts() - before)
                found.adds += TURN
        for name, plugin in plugins.items():
            before = server.counts()
            _note(found, name, "DEL", (_deleted(stage, plugin, pod) for pod in pods[name]))
            if name == server.kind:
                _count(found, "DEL", server.counts() - before)
    return found


def _count(found: Found, verb: str, counts: Counts) -> None:
    found.calls[verb] = found.calls.get(verb, Counter()) + counts


def _deleted(stage: Stage, plugin: Plugin, pod: Pod) -> Outcome:
    outcome = stage.execute(plugin, "DEL", pod)
    time.sleep(AFTER_DELETION)
    return outcome


def _note(found: Found, name: str, verb: str, outcomes: Iterator[Outcome]) -> None:
    found.ms.setdefault((name, verb), []).extend(outcome.ms for outcome in outcomes)


def _trips(stage: Stage, server: Server, most: float) -> Figure:
    """Return the number of round trips of an ADD: its extra time in units of the delay of a reply."""
    pods = stage.pods(TURN)
    server.prepare(pods)
    times = dict[float, list[float]]()
    for delay in (0.0, DELAY, 0.0, DELAY):
        server.proxy.delay = delay
        times.setdefault(delay, []).extend(stage.execute(server.detour, "ADD", pod).ms for pod in pods)
        server.proxy.delay = 0.0
        stage.execute_all(server.detour, "DEL", pods, AT_ONCE)
    extra = Sample.of(times[DELAY]).p50 - Sample.of(times[0.0]).p50
    note = f"{extra:.1f} ms more with every reply {DELAY * 1000:.0f} ms late"
    trips = Sample(round(extra / 1000 / DELAY))
    return Figure(f"{server.kind}_add_trips", "trips", trips, TURN, goal=at_most(most), note=note)


def _synchronise_sessions(stage: Stage, server: Server) -> None:
    """Let the agent's direct session see the changes of its session through the proxy."""
    pods = stage.pods(1)
    server.prepare(pods)
    for verb in ("ADD", "DEL"):
        stage.execute_all(server.plugin, verb, pods, 1)


def _burst(stage: Stage, server: Server, found: Found, options: Options, calls: float) -> Iterator[Figure]:
    number = options.burst_pods
    pods = stage.pods(number)
    server.prepare(pods)
    _synchronise_sessions(stage, server)
    before = server.counts()
    ms = wall_ms(stage.execute_all(server.plugin, "ADD", pods, AT_ONCE))
    asked = server.counts() - before
    stage.execute_all(server.plugin, "DEL", pods, AT_ONCE)
    alone = 1000 / found.sample(server.kind).p50
    yield Figure(
        f"{server.kind}_burst_add", "pods/s", Sample(number / ms * 1000), number, peer=Sample(alone),
        peer_name="one at a time", goal=at_least(4) if server.kind == "etcd" else None, versions=VERSIONS,
    )  # fmt: skip
    yield _calls(f"{server.kind}_burst_calls", asked, number, at_most(calls))


def _memory(stage: Stage, server: Server, options: Options, most: float) -> Iterator[Figure]:
    pods = stage.pods(options.memory_pods)
    server.prepare(pods)
    stage.execute_all(server.plugin, "ADD", pods, AT_ONCE)
    yield Figure(f"{server.kind}_rss", "MiB", Sample(rss_mib(stage.node.agent_pid)), len(pods), goal=at_most(most))
    stage.execute_all(server.plugin, "DEL", pods, AT_ONCE)


def _concurrent_adds(stage: Stage, server: Server) -> Iterator[Figure]:
    pods = stage.pods(CONCURRENT_PODS)
    server.prepare(pods)
    _synchronise_sessions(stage, server)
    before = server.counts()
    ms = wall_ms(stage.execute_all(server.plugin, "ADD", pods, CONCURRENT_PODS))
    asked = server.counts() - before
    stage.execute_all(server.plugin, "DEL", pods, AT_ONCE)
    yield Figure(f"{server.kind}_crowd", "s until the last address", Sample(ms / 1000), CONCURRENT_PODS, goal=at_most(5))
    writes = sum(number for what, number in asked.items() if what in ("POST ipamblocks", "PUT ipamblocks"))
    yield Figure(f"{server.kind}_crowd_block_writes", "writes", Sample(writes), CONCURRENT_PODS, goal=at_most(10))


def _calls(name: str, counts: Counts, adds: int, goal: Goal | None) -> Figure:
    note = ", ".join(f"{what} {number / adds:.2f}" for what, number in sorted(counts.items()))
    return Figure(name, "calls each", Sample(counts.total() / adds), adds, goal=goal, note=note)


# servers


def pod_name(pod: Pod) -> str:
    return f"pod-{pod.container[:8]}"


@contextmanager
def node_stage() -> Iterator[Stage]:
    """Set up the stage. The thread is on the node, and so are the servers that it starts and its requests to them."""
    with Stage.open() as stage, entered(stage.node.netns):
        yield stage


@contextmanager
def etcd_server(stage: Stage) -> Iterator[tuple[Server, float]]:
    """Run etcd with its data on disk, as in production. Return also the milliseconds of a transaction."""
    folder = _folder(stage, "etcd")
    with _required(lambda: cluster(folder, durable=True)) as etcd:
        settings = {"datastore_type": "etcdv3", "etcd_endpoints": etcd.endpoints}
        with proxy(etcd.members[0].ports[0]) as delaying:
            detour = stage.svc_plugin(datastore_type="etcdv3", etcd_endpoints=f"http://{delaying.authority}")
            server = Server("etcd", stage.svc_plugin(**settings), detour, delaying, partial(etcd_requests, etcd))
            _register(stage, server.plugin.netconf)
            yield server, _transaction(EtcdStore({"kind": "etcdv3", "etcd_endpoints": etcd.endpoints}, DEFAULT))


@contextmanager
def orch_server(stage: Stage) -> Iterator[Server]:
    folder = _folder(stage, "orch")
    with _required(lambda: running(folder)) as kube:
        install(kube)
        put_core_node(kube, os.uname().nodename.lower())
        direct = kube.kubeconfig(folder / "kubeconfig")

        def prepare(pods: list[Pod]) -> None:
            for pod in pods:
                pod.args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod_name(pod)}"
                put_pod(kube, pod_name(pod), os.uname().nodename.lower())

        with proxy(kube.port) as delaying:
            around = folder / "kubeconfig-around"
            around.write_text(direct.read_text().replace(kube.url, f"https://{delaying.authority}"))
            plugin, detour = (_orch_plugin(stage, kubeconfig) for kubeconfig in (direct, around))
            server = Server("orch", plugin, detour, delaying, partial(orch_requests, kube), prepare)
            _register(stage, server.plugin.netconf, node=False)
            yield server
        kube.call("DELETE", f"{PODS}?gracePeriodSeconds=0")


def _orch_plugin(stage: Stage, kubeconfig: Path) -> Plugin:
    settings: dict[str, Any] = {"policy": {"type": "orch"}, "orch": {"kubeconfig": str(kubeconfig)}}
    return stage.svc_plugin(datastore_type="orch", **settings)


def _transaction(store: EtcdStore) -> float:
    times = []
    try:
        (entry,) = store.write([Create(HandleKey("bench"), Handle({"10.0.0.0/26": 1}))])
        for number in range(TRANSACTIONS):
            assert entry is not None
            started = time.perf_counter()
            (entry,) = store.write([Update(entry.key, Handle({"10.0.0.0/26": number + 2}), entry.revision)])
            times.append((time.perf_counter() - started) * 1000)
    finally:
        store.close()
    return Sample.of(times).p50


def _register(stage: Stage, netconf: Mapping[str, Any], *, node: bool = True) -> None:
    file = stage.directory / "cluster.json"
    file.write_text(json.dumps(netconf))
    stage.node.svcctl("--netconf", str(file), "clusterinfo", "init")
    if node:
        stage.node.svcctl("--netconf", str(file), "node", "apply", os.uname().nodename.lower())
    for name, cidr in POOLS.items():
        pool = {"apiVersion": DEFAULT.api_version, "kind": "IPPool", "metadata": {"name": name}, "spec": {"cidr": cidr}}
        stage.node.svcctl("--netconf", str(file), "pool", "apply", "-f", "-", stdin=json.dumps(pool))
    time.sleep(SETTLE)


def _folder(stage: Stage, name: str) -> Path:
    folder = stage.directory / name
    folder.mkdir()
    return folder


@contextmanager
def _required(open_server: Callable[[], Any]) -> Iterator[Any]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(open_server())
        except pytest.skip.Exception as what:
            raise Missing(str(what)) from None
        yield server
