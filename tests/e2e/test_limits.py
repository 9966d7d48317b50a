"""An agent that the system gives no further descriptor, or no further thread, while it runs: calls are answered, and when the
limit is lifted it goes on as before."""

import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.limits import confine, release, task_group
from harness.node import Called, Node
from harness.pod import Pod
from harness.state import faults, remains

pytestmark = pytest.mark.root

CALLS, ROUNDS = 40, 3
INTERNAL = 100


def burst(pods: list[Pod], verb: str) -> list[Called]:
    """All at once; the refusals, each of which says what is wanting."""
    with ThreadPoolExecutor(CALLS) as callers:
        answers = list(callers.map(lambda pod: pod.call(verb), pods))
    refusals = [called for called in answers if called.status]
    for called in refusals:
        assert set(called.output) == {"cniVersion", "code", "msg", "details"}, called
        assert called.output["code"] != INTERNAL, called
    return refusals


def go_on(node: Node, pods: list[Pod]) -> None:
    """Remains are cleared, every pod comes up, and nothing is left of any after its DEL."""
    with ThreadPoolExecutor(CALLS) as callers:
        list(callers.map(Pod.delete, pods))
        assert remains(node) == []
        list(callers.map(Pod.add, pods))
        assert faults(node) == []
        list(callers.map(Pod.delete, pods))
    assert remains(node) == []


def count(node: Node, what: str) -> int:
    return len(list(Path(f"/proc/{node.agent_pid}/{what}").iterdir()))


def test_want_of_descriptors_passes(node: Node, own_pods: Callable[..., Pod]) -> None:
    """Calls wait, or are refused; none keeps a descriptor. Each thread may have a socket of its own."""
    pods = [own_pods() for _ in range(CALLS)]
    go_on(node, pods)
    used = count(node, "fd")
    before = resource.prlimit(node.agent_pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.agent_pid, resource.RLIMIT_NOFILE, (used + 6, before[1]))
    for _ in range(ROUNDS):
        burst(pods, "ADD")
        burst(pods, "DEL")
    resource.prlimit(node.agent_pid, resource.RLIMIT_NOFILE, before)
    go_on(node, pods)
    assert count(node, "fd") <= used + count(node, "task")


@pytest.fixture
def group() -> Iterator[Path]:
    with task_group() as group:
        yield group


@pytest.fixture
def confined(node: Node, group: Path) -> Iterator[Callable[[], None]]:
    """From when it is called, the agent gets no further thread; the limit is lifted when the group's file says so."""
    yield lambda: confine(group, node.agent_pid)
    release(group, node.agent_pid)


def test_want_of_threads_passes(node: Node, own_pods: Callable[..., Pod], group: Path, confined: Callable[[], None]) -> None:
    """The existing threads carry out every ADD. Separate threads delete interfaces; they start at the first DEL."""
    pods = [own_pods() for _ in range(CALLS)]
    confined()
    assert burst(pods, "ADD") == []
    refusals = burst(pods, "DEL")
    assert {called.output["msg"] for called in refusals} == {"the system gives no further thread"}
    assert len(refusals) == CALLS
    (group / "pids.max").write_text("max")
    go_on(node, pods)


def test_threads_that_are_there_do_without_others(
    node: Node, own_pods: Callable[..., Pod], confined: Callable[[], None]
) -> None:
    pods = [own_pods() for _ in range(CALLS)]
    pods[0].add()
    pods[0].delete()
    confined()
    assert burst(pods, "ADD") == []
    go_on(node, pods)
