"""Pods on a real node with the Kubernetes API as the datastore: the network's share of the start time of a pod.

The API server and its etcd share the node's processors, which many pods keep busy. In a cluster they run on other machines, so
the benchmark gives them priority over the node's work.
"""

import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.idle_wait import wait_until_quiet
from bench.measurement import Figure, Missing, Sample, at_most
from bench.options import VERSIONS, Options
from harness import kube as kubes
from harness import kubelet_node
from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, furnish
from harness.installed import install
from harness.kube import Kube
from harness.kubelet_node import RealNode
from harness.workloads import clear_pods, is_ready, put_pod
from svc.names import DEFAULT

PODS = 30
ELSEWHERE = -10  # the nice value of the programs that run on other machines in a cluster
_ADD = re.compile(r" verb=ADD .*container=(\w+) .*\bok\b.* total=.*")
_PHASE = re.compile(r" (\w+)=(\d+\.\d+)(?= |$)")
_CONTAINER = f"{DEFAULT.annotation_prefix}/containerID"


@dataclass(frozen=True)
class Start:
    """Milliseconds from a pod's creation until it was ready, and those of the phases of its ADD."""

    ms: float
    phases: dict[str, float]

    @property
    def network_ms(self) -> float:
        """Return the time of the ADD. `total` does not include the queue."""
        return self.phases["queue"] + self.phases["total"]

    @property
    def share(self) -> float:
        """Return the share of the network in percent."""
        return self.network_ms / self.ms * 100


def run(options: Options) -> Iterator[Figure]:
    """Measure the starts. Raise Missing if such a node cannot run here."""
    try:
        with _node() as bench:
            bench.start(1)  # the second run finds warm caches
            yield from _figures("node_crowd", bench.start(PODS), f"{PODS} at once")
            alone = [start for _ in range(min(PODS, options.rounds)) for start in bench.start(1)]
            yield from _figures("node_pod", alone, "one at a time")
    except pytest.skip.Exception as what:
        raise Missing(str(what)) from None


def _figures(name: str, starts: list[Start], note: str) -> Iterator[Figure]:
    shares, times = Sample.of([start.share for start in starts]), Sample.of([start.ms for start in starts])
    network = Sample.of([start.network_ms for start in starts])
    n = len(starts)
    yield Figure(f"{name}_network_share", "% of a start", shares, n, goal=at_most(10), note=note, versions=VERSIONS)
    yield Figure(f"{name}_start", "ms until ready", times, n, note=note)
    phases = " ".join(f"{phase} {statistics.median(each.phases[phase] for each in starts):.1f}" for phase in starts[0].phases)
    yield Figure(f"{name}_network", "ms of ADD", network, n, note=phases)


class _Bench:
    """Starts and deletes pods."""

    def __init__(self, real: RealNode, kube: Kube, log: Path) -> None:
        self._real, self._kube, self._log = real, kube, log

    def start(self, number: int) -> list[Start]:
        created = {}
        with self._kube.watching("/api/v1/pods") as events:  # polling would cost the server more than the pods do
            for name in (f"pod-{n}" for n in range(number)):
                created[name] = time.monotonic()
                put_pod(self._kube, name)
            containers, ready = _await_ready(events, number)
        phases = self._phases()
        clear_pods(self._real, self._kube)
        return [Start((ready[name] - created[name]) * 1000, phases[containers[name]]) for name in created]

    def _phases(self) -> dict[str, dict[str, float]]:
        """Return the phases of each container's ADD, from the agent's log."""
        found = _ADD.finditer(self._log.read_text())
        return {line[1]: {name: float(ms) for name, ms in _PHASE.findall(line[0])} for line in found}


def _await_ready(events: Iterator[dict[str, Any]], number: int) -> tuple[dict[str, str], dict[str, float]]:
    """Return the sandbox of each pod, and the time of the event that it was ready."""
    containers, ready = dict[str, str](), dict[str, float]()
    while len(ready) < number:
        pod = next(events)["object"]
        metadata = pod["metadata"]
        if is_ready(pod) and metadata["name"] not in ready:
            ready[metadata["name"]] = time.monotonic()
            containers[metadata["name"]] = metadata["annotations"][_CONTAINER]
    return containers, ready


@contextmanager
def _node() -> Iterator[_Bench]:
    wait_until_quiet()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-bench-")))
        (folder / "kube").mkdir()
        kube = stack.enter_context(kubes.running(folder / "kube"))
        _prioritise(kube)
        site = OrchSite(kube, folder / "kube")
        furnish(site)
        node = stack.enter_context(ClusterNode(folder / "node", "node1", site))
        log = folder / "cni.log"
        conf_dir = install(folder, node, kube, log_file_path=str(log))
        real = stack.enter_context(kubelet_node.running(folder, node, kube, conf_dir))
        real.wait_ready()
        yield _Bench(real, kube, log)


def _prioritise(kube: Kube) -> None:
    """Give the process priority. Later threads inherit it from the existing ones."""
    for process in kube.processes.values():
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            with suppress(PermissionError, ProcessLookupError):  # the thread has ended, or a container lacks the right
                os.setpriority(os.PRIO_PROCESS, int(task.name), ELSEWHERE)
