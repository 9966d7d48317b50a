"""An agent that reaches its limit of descriptors or threads: it answers calls, and recovers when the limit is lifted."""

import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.limits import confine, release, task_group
from harness.node import Called, Node
from harness.pod import Pod
from harness.state import disagreements, remains

pytestmark = pytest.mark.root

CALLS, ROUNDS = 40, 3
INTERNAL = 100


def burst(pods: list[Pod], verb: str) -> list[Called]:
    """Run the calls concurrently and return those that failed. None may fail with an internal error."""
    with ThreadPoolExecutor(CALLS) as callers:
        answers = list(callers.map(lambda pod: pod.call(verb), pods))
    failures = [called for called in answers if called.status]
    for called in failures:
        assert set(called.output) == {"cniVersion", "code", "msg", "details"}, called
        assert called.output["code"] != INTERNAL, called
    return failures


def require_recovery(node: Node, pods: list[Pod]) -> None:
    """Require that DEL removes what is left, that each ADD then succeeds, and that its DEL leaves nothing."""
    with ThreadPoolExecutor(CALLS) as callers:
        list(callers.map(Pod.delete, pods))
        assert remains(node) == []
        list(callers.map(Pod.add, pods))
        assert disagreements(node) == []
        list(callers.map(Pod.delete, pods))
    assert remains(node) == []


def count(node: Node, what: str) -> int:
    return len(list(Path(f"/proc/{node.agent_pid}/{what}").iterdir()))


def test_agent_recovers_from_a_lack_of_descriptors(node: Node, own_pods: Callable[..., Pod]) -> None:
    """Calls wait or fail, and none keeps a descriptor. Each thread may keep one socket."""
    pods = [own_pods() for _ in range(CALLS)]
    require_recovery(node, pods)
    used = count(node, "fd")
    before = resource.prlimit(node.agent_pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.agent_pid, resource.RLIMIT_NOFILE, (used + 6, before[1]))
    for _ in range(ROUNDS):
        burst(pods, "ADD")
        burst(pods, "DEL")
    resource.prlimit(node.agent_pid, resource.RLIMIT_NOFILE, before)
    require_recovery(node, pods)
    assert count(node, "fd") <= used + count(node, "task")


@pytest.fixture
def group() -> Iterator[Path]:
    with task_group() as group:
        yield group


@pytest.fixture
def confined(node: Node, group: Path) -> Iterator[Callable[[], None]]:
    """Return a function that stops the agent from starting threads, until `pids.max` of the group is changed."""
    yield lambda: confine(group, node.agent_pid)
    release(group, node.agent_pid)


def test_agent_recovers_from_a_lack_of_threads(
    node: Node, own_pods: Callable[..., Pod], group: Path, confined: Callable[[], None]
) -> None:
    """The existing threads carry out every ADD. Separate threads delete interfaces; they start at the first DEL."""
    pods = [own_pods() for _ in range(CALLS)]
    confined()
    assert burst(pods, "ADD") == []
    failures = burst(pods, "DEL")
    assert {called.output["msg"] for called in failures} == {"the system gives no further thread"}
    assert len(failures) == CALLS
    (group / "pids.max").write_text("max")
    require_recovery(node, pods)


def test_existing_threads_serve_all_calls(node: Node, own_pods: Callable[..., Pod], confined: Callable[[], None]) -> None:
    pods = [own_pods() for _ in range(CALLS)]
    pods[0].add()
    pods[0].delete()
    confined()
    assert burst(pods, "ADD") == []
    require_recovery(node, pods)
