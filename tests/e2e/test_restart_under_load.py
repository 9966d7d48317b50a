"""Restarts and kills of the agent under load: one-shot calls bridge the gap, and a kill fails only calls in flight.

On a host without Python, the executable bridges the gap by waiting for the next agent.
"""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
MANY_CALLERS = 16
GAP_SECONDS = 3.0  # without an agent: DELs are spooled after 2 s
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
def callers(node: ClusterNode, sandbox: Callable[[], Netns], number_of: int = CALLERS) -> Iterator[Runtime]:
    """Run the callers. At the end require that each has deleted its last container."""
    runtime = Runtime()
    with ThreadPoolExecutor(number_of) as threads:
        running: list[Future[None]] = []
        for number in range(number_of):
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


@pytest.fixture
def bare_node(cluster_node: ClusterNode) -> Iterator[ClusterNode]:
    """A node whose executables wait for an agent, and whose Python does not exist."""
    place = ("--bin-dir", str(cluster_node.bin_dir), "--socket", str(cluster_node.socket))
    cluster_node.prepare("install", *place, "--wait", "60")
    for record in cluster_node.bin_dir.glob("*.install"):
        record.write_text(re.sub("^python=.*", "python=/nonexistent", record.read_text(), flags=re.MULTILINE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_node, "begin", partial(cluster_node.begin, extra={"PATH": "/nonexistent"}))
        yield cluster_node
    cluster_node.prepare("install", *place, "--wait", "0")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_waiting_executables_fail_no_call(bare_node: ClusterNode, sandbox: Callable[[], Netns], end: str) -> None:
    """A DEL may be spooled. After a kill, a call is repeated as one whose connection was closed."""
    bare_node.restarts = True
    with callers(bare_node, sandbox, MANY_CALLERS) as runtime:
        for _ in range(ROUNDS):
            runtime.wait(2 * MANY_CALLERS)
            if end == "stop":
                assert bare_node.stop_agent() == 0
            else:
                bare_node.kill_agent()
            time.sleep(GAP_SECONDS)
            bare_node.start_agent(recovered=False)
        runtime.wait(2 * MANY_CALLERS)
    bare_node.restarts = False
    assert [call for call in runtime.calls if call.has_failed] == []
    wait_until(lambda: remains([bare_node]) == [])
    assert list(bare_node.state_dir.glob("spool/*")) == []
    assert disagreements([bare_node]) == []


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
