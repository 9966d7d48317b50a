"""A burst of calls that needs more descriptors than the soft limit with which the agent starts."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.node import BIN, Node
from harness.pod import Pod
from harness.state import disagreements, remains

pytestmark = pytest.mark.root

CALLS = 60


def test_burst_of_calls_beyond_the_soft_limit_succeeds(node: Node, own_pods: Callable[..., Pod]) -> None:
    """No call fails because descriptors run out, and the agent closes all descriptors after the burst."""
    pods = [own_pods() for _ in range(CALLS)]
    node.stop_agent()
    node.start_agent("prlimit", "--nofile=60:4096", str(BIN / "svc-agent"))
    with ThreadPoolExecutor(CALLS) as callers:
        list(callers.map(Pod.add, pods))
        used = _descriptors(node)
        assert disagreements(node) == []
        list(callers.map(Pod.delete, pods))
        list(callers.map(Pod.add, pods))
        assert _descriptors(node) <= used + 35  # each worker and deleter thread has a socket
        list(callers.map(Pod.delete, pods))
    assert remains(node) == []


def _descriptors(node: Node) -> int:
    return len(list(Path(f"/proc/{node.agent_pid}/fd").iterdir()))
