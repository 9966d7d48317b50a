"""Pods that wait for readiness gates, and the gates, which are servers on loopback addresses of their node."""

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
    """Return a function that starts servers, which run until the end of the `with` block."""
    with ExitStack() as stack:
        yield lambda behaviour, **options: stack.enter_context(serving(behaviour, inside=node.netns, **options))


def refused(pod: Pod) -> dict[str, Any]:
    """Return the error of an ADD whose gates were not ready. Require that nothing is left of the ADD."""
    output = pod.failed("ADD").output
    assert output["code"] == 115
    assert remains(pod.node) == []
    assert pod.netns.links() == []
    return dict(output)
