"""Pods whose readiness gates stay closed."""

from typing import Any

from harness.pod import Pod
from harness.state import remains


def refused(pod: Pod) -> dict[str, Any]:
    """The error of an ADD whose gates did not open; nothing is kept of it."""
    output = pod.failed("ADD").output
    assert output["code"] == 115
    assert remains(pod.node) == []
    assert pod.netns.links() == []
    return dict(output)
