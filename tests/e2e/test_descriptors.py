"""A burst of calls, each of which holds descriptors of the agent: the soft limit at its start does not limit it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.node import BIN, Node
from harness.pod import Pod
from harness.state import faults, remains

pytestmark = pytest.mark.root

CALLS = 60


def test_burst_beyond_the_soft_limit_is_served(node: Node, own_pods: Callable[..., Pod]) -> None:
    """No call is refused because descriptors run out, and afterwards none is left open."""
    pods = [own_pods() for _ in range(CALLS)]
    node.stop_agent()
    node.start_agent("prlimit", "--nofile=60:4096", str(BIN / "svc-agent"))
    with ThreadPoolExecutor(CALLS) as callers:
        list(callers.map(Pod.add, pods))
        used = _descriptors(node)
        assert faults(node) == []
        list(callers.map(Pod.delete, pods))
        list(callers.map(Pod.add, pods))
        assert _descriptors(node) <= used + 35  # each worker and deleter keeps its own socket
        list(callers.map(Pod.delete, pods))
    assert remains(node) == []


def _descriptors(node: Node) -> int:
    return len(list(Path(f"/proc/{node.agent_pid}/fd").iterdir()))
