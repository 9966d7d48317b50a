"""Kubernetes pods that wait until their policy is set up, and the status files of the policy agent."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

from harness.node import Called, Calling
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import audit
from svc.attach.record import ADDED

MakePod = Callable[..., Pod]

LONG: Final = 60  # seconds
SHORT: Final = 1

_numbers = count()


def make(pods: MakePod, directory: Path, seconds: int = LONG, *, name: str = "", **config: Any) -> Pod:
    """Return a function that makes a Kubernetes pod whose network waits for policy."""
    name = name or f"web-{next(_numbers)}"
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=name-space;K8S_POD_NAME={name}"
    return pods(args=args, policy_setup_timeout_seconds=seconds, endpoint_status_dir=str(directory), **config)


def file_of(pod: Pod, directory: Path) -> Path:
    return directory / f"k8s name-space%2F{pod.args.rpartition('=')[2]} {pod.ifname}"


def begin(pod: Pod) -> Calling:
    """Start an ADD, and wait until it waits for policy."""
    calling = pod.begin("ADD")
    wait_until(lambda: _state(pod) == ADDED)
    assert not calling.is_over
    return calling


def _state(pod: Pod) -> str:
    return "".join(record.state for record in audit(pod.node).records if record.id.container_id == pod.container)


def is_set_up(called: Called) -> bool:
    """Return whether the pod started with its policy. Require that it starts in any case."""
    assert called.status == 0, called
    assert " policy=" in called.stderr
    return "starts without" not in called.stderr
