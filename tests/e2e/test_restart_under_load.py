"""Restarts and kills of the agent under load: one-shot calls bridge the gap, and a kill fails only calls in flight."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, disagreements, remains
from harness.datastores import Site
from harness.netns import Netns
from harness.node import BIN, Called
from harness.pod import Pod
from harness.polling import wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.parametrize("site", ["embedded", "etcdv3", "orch"], indirect=True),
]

CALLERS = 6
ROUNDS = 3
CALLS_BETWEEN = 2 * CALLERS
LONGEST_SECONDS = 30.0  # the aim is 3 s (`python -m bench --only restarts`); tests share their processors
DEL_SECONDS = 60.0


@pytest.fixture
def base_node(site: Site, home: Path) -> Iterator[ClusterNode]:
    """A node for each test, because the tests end its agent."""
    with ClusterNode(home, "node1", site) as node:
        yield node


@dataclass(frozen=True)
class Ended:
    """A call with its times of the monotonic clock."""

    verb: str
    began: float
    ended: float
    called: Called

    @property
    def has_failed(self) -> bool:
        return self.called.status != 0

    def was_in_flight(self, kill: tuple[float, float]) -> bool:
        """Return whether the call ran at some time between the signal and the end of the agent."""
        return self.began <= kill[1] and kill[0] <= self.ended


class Runtime:
    """Callers that attach, check and delete containers until `over` is set."""

    def __init__(self) -> None:
        self.calls: list[Ended] = []
        self.over = threading.Event()

    def wait(self, number: int) -> None:
        goal = len(self.calls) + number
        wait_until(lambda: len(self.calls) >= goal)

    def run(self, pod: Pod, name: str) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            self._cycle(pod.copy(container=f"{name}-{number}"))

    def _cycle(self, pod: Pod) -> None:
        added = self._call("ADD", pod)
        if added.status == 0:
            self._call("CHECK", pod, prevResult=added.output)
        until = time.monotonic() + DEL_SECONDS
        while self._call("DEL", pod).status:  # as a runtime does, after a failed ADD too
            assert time.monotonic() < until, self.calls[-1]

    def _call(self, verb: str, pod: Pod, **changes: Any) -> Called:
        began = time.monotonic()
        called = pod.call(verb, **changes)
        self.calls.append(Ended(verb, began, time.monotonic(), called))
        return called


@contextmanager
def callers(node: ClusterNode, sandbox: Callable[[], Netns]) -> Iterator[Runtime]:
    """Run the callers. At the end require that each has deleted its last container."""
    runtime = Runtime()
    with ThreadPoolExecutor(CALLERS) as threads:
        running: list[Future[None]] = []
        for number in range(CALLERS):
            node.site.add_pod(f"web-{number}")
            pod = node.pod(sandbox(), args=f"K8S_POD_NAME=web-{number};K8S_POD_NAMESPACE=default")
            running.append(threads.submit(runtime.run, pod, f"c{number}"))
        try:
            yield runtime
        finally:
            runtime.over.set()
    for each in running:
        each.result()


def test_restarts_fail_no_call(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    cluster_node.restarts = True
    with callers(cluster_node, sandbox) as runtime:
        for _ in range(ROUNDS):
            runtime.wait(CALLS_BETWEEN)
            assert cluster_node.stop_agent() == 0
            cluster_node.start_agent(str(BIN / "svc-agent"), recovered=False)
        runtime.wait(CALLS_BETWEEN)
    cluster_node.restarts = False
    assert [call for call in runtime.calls if call.has_failed] == []
    assert max(call.ended - call.began for call in runtime.calls) < LONGEST_SECONDS
    assert disagreements([cluster_node]) == []
    assert remains([cluster_node]) == []


def test_kills_fail_only_calls_in_flight(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """They leave nothing after the DEL of the runtime."""
    dice, kills = random.Random(1), list[tuple[float, float]]()
    with callers(cluster_node, sandbox) as runtime:
        for _ in range(ROUNDS):
            runtime.wait(CALLS_BETWEEN)
            time.sleep(dice.random() / 20)
            began = time.monotonic()
            cluster_node.kill_agent()
            kills.append((began, time.monotonic()))
            cluster_node.start_agent(str(BIN / "svc-agent"), recovered=False)
        runtime.wait(CALLS_BETWEEN)
    failed = [call for call in runtime.calls if call.has_failed]
    assert [call for call in failed if not any(map(call.was_in_flight, kills))] == []
    wait_until(lambda: remains([cluster_node]) == [])
