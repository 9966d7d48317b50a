"""svc-controllers in a large cluster, on each datastore: memory, time of a full round, time of the processor, change of the leader.

What the controllers do not have yet is not measured.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.measurement import Figure, Goal, Missing, Sample, at_most
from bench.memory import rss_mib
from bench.options import Options
from bench.scale_stage import Stage, etcd_stage, orch_stage
from harness.controllers import Process
from harness.orch import NODES
from svc.controllers.settings import CONTROLLERS
from svc.model.keys import PLURALS, HandleKey, ResourceKey, ResourceQuery

PERIOD_SECONDS = 100  # between full rounds: long enough for a rest before the second one
REST_SECONDS = 60.0
GRACE_SECONDS = 30
SETTLED_SECONDS = 10.0  # without the end of a round
MOST_SECONDS = 300.0  # for a wait
WHOLE = 1000  # nodes: goals do not apply to smaller clusters
CONFIGURATION = "KubeControllersConfiguration"
LABELLED = 10  # nodes whose label changes

_MERGE = "application/merge-patch+json"


def run(options: Options) -> Iterator[Figure]:
    for opened in (etcd_stage, orch_stage):
        with opened(options.scale_nodes, options.scale_pods) as stage:
            yield from _Measured(stage).figures()


class _Measured:
    """The figures of one cluster."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._nodes, self._pods = stage.size.nodes, stage.size.pods

    def figures(self) -> Iterator[Figure]:
        began = time.time()
        leader = self._start()
        if not self._has_parts(leader):
            raise Missing(f"no controller uses a datastore of kind {self._stage.kind}")
        _await(lambda: leader.rounds() and leader.quiet_seconds() > SETTLED_SECONDS)
        yield self._figure("fill", "s", leader.filled_at() - began, note=f"cluster made in {self._stage.made_seconds:.0f} s")
        yield self._figure("rss", "MiB", rss_mib(leader.pid), at_most(200), note=self._tables(leader))
        yield from self._rest_and_round(leader)
        yield self._figure("rss_peak", "MiB", rss_mib(leader.pid, "VmHWM"), at_most(200))
        yield from self._leaders(leader)

    def _start(self, **environment: str) -> Process:
        return self._stage.controllers.start(RECONCILER_PERIOD=f"{PERIOD_SECONDS}s", LOG_LEVEL="debug", **environment)

    def _has_parts(self, process: Process) -> bool:
        _await(lambda: process.text.count(" is enabled") + process.text.count(" is idle") >= len(CONTROLLERS))
        return " is enabled" in process.text

    def _figure(
        self, name: str, unit: str, value: float, goal: Goal | None = None, note: str = "", samples: Sample | None = None
    ) -> Figure:
        is_whole = self._nodes >= WHOLE
        name = f"scale_{self._stage.kind}_{name}"
        return Figure(name, unit, samples or Sample(value), self._pods, goal=goal if is_whole else None, note=note)

    def _tables(self, process: Process) -> str:
        return "; ".join(f"{rows} {what}" for what, rows in process.tables().items())

    def _rest_and_round(self, process: Process) -> Iterator[Figure]:
        first = {name: len(seconds) for name, seconds in process.rounds().items()}
        before, began = _cpu_seconds(process.pid), time.monotonic()
        time.sleep(REST_SECONDS)
        share = 100 * (_cpu_seconds(process.pid) - before) / (time.monotonic() - began)
        rounds = sum(map(len, process.rounds().values())) - sum(first.values())
        yield self._figure("rest", "% of a processor", share, at_most(2), note=f"{rounds} rounds in this time")
        lists = self._stage.lists()
        _await(lambda: all(len(process.rounds()[name]) > number for name, number in first.items()))
        asked = self._stage.lists() - lists
        latest = {name: seconds[-1] for name, seconds in process.rounds().items()}
        note = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in latest.items())
        yield self._figure("round", "s", max(latest.values()), at_most(5), note=note)
        note = ", ".join(f"{number} of {what}" for what, number in asked.items())
        yield self._figure("round_lists", "requests", asked.total(), at_most(0), note=note)

    def _leaders(self, leader: Process) -> Iterator[Figure]:
        second = self._waiting(leader)
        began = time.monotonic()
        leader.kill()
        _await(lambda: "this process leads" in second.text)
        yield self._figure("leader_after_kill", "s", time.monotonic() - began, at_most(20))
        yield from self._node_figures(second)
        third = self._waiting(second)
        began = time.monotonic()
        second.terminate()
        _await(lambda: "this process leads" in third.text)
        yield self._figure("leader_after_end", "s", time.monotonic() - began, at_most(3))

    def _waiting(self, leader: Process) -> Process:
        """Start a process that waits for the lead, with its tables filled."""
        process = self._start()
        _await(lambda: process.tables().keys() >= leader.tables().keys())
        return process

    # parts of the controller `node`

    def _node_figures(self, leader: Process) -> Iterator[Figure]:
        if "node" not in CONTROLLERS or CONFIGURATION not in PLURALS:
            return
        _await(lambda: self._stage.store.find(ResourceKey(CONFIGURATION, "default")) is not None)
        yield self._leak()
        yield from self._host_endpoints()
        yield self._figure("rss_host_endpoints", "MiB", rss_mib(leader.pid), at_most(200), note=self._tables(leader))

    def _leak(self) -> Figure:
        """Delete a pod whose node never sends the DEL."""
        self._configure(leakGracePeriod=f"{GRACE_SECONDS}s")
        began = time.monotonic()
        self._stage.kube.uproot(f"pods/default/{self._stage.size.pod_name(0, 0)}")
        handle = HandleKey(self._stage.size.handle(0, 0))
        _await(lambda: self._stage.store.find(handle) is None)
        note = f"grace period of {GRACE_SECONDS} s"
        return self._figure("leak_free", "s", time.monotonic() - began, at_most(GRACE_SECONDS + 60), note)

    def _host_endpoints(self) -> Iterator[Figure]:
        self._configure(hostEndpoint={"autoCreate": "Enabled"})
        began = time.monotonic()
        _await(lambda: len(self._stage.store.list(ResourceQuery("HostEndpoint"))) == self._nodes)
        yield self._figure("host_endpoints", "s", time.monotonic() - began, at_most(30))
        seconds = [self._label(node) for node in range(min(LABELLED, self._nodes))]
        yield self._figure("label", "s", 0, at_most(2), samples=Sample.of(seconds), note="of node to host endpoint")

    def _label(self, node: int) -> float:
        """Return the seconds from a node's label to its host endpoint."""
        key = ResourceKey("HostEndpoint", f"node{node}-auto-hep")
        began = time.monotonic()
        self._stage.kube.call("PATCH", f"{NODES}/node{node}", {"metadata": {"labels": {"scale": "yes"}}}, _MERGE)
        _await(lambda: (found := self._stage.store.find(key)) is not None and found.value.labels.get("scale") == "yes", 0.02)
        return time.monotonic() - began

    def _configure(self, **fields: object) -> None:
        """Change settings of the controller `node`."""
        key = ResourceKey(CONFIGURATION, "default")
        found = self._stage.store.get(key).value
        found.spec.setdefault("controllers", {}).setdefault("node", {}).update(fields)
        self._stage.store.update(key, lambda _: found)


def _await(condition: Callable[[], object], poll: float = 0.1) -> None:
    until = time.monotonic() + MOST_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("the controllers did not get there in time")
        time.sleep(poll)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
