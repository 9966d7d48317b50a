"""Pods that wait at readiness gates, and the gates: servers on their node's loopback addresses."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from harness.gate_server import GateServer, serving
from harness.node import Node
from harness.pod import Pod
from harness.state import remains

Serve = Callable[..., GateServer]

LONG: Final = {"readiness_gates_timeout_seconds": 60}
SHORT: Final = {"readiness_gates_timeout_seconds": 1}


@contextmanager
def servers(node: Node) -> Iterator[Serve]:
    """Starts them, as long as the block lasts."""
    with ExitStack() as stack:
        yield lambda behaviour, **options: stack.enter_context(serving(behaviour, inside=node.netns, **options))


def refused(pod: Pod) -> dict[str, Any]:
    """The error of an ADD whose gates did not open; nothing is kept of it."""
    output = pod.failed("ADD").output
    assert output["code"] == 115
    assert remains(pod.node) == []
    assert pod.netns.links() == []
    return dict(output)
