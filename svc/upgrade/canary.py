"""A pod that proves ADD and DEL on one node after an upgrade: it gets an address, and its deletion ends."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from svc.datastore.orch.client import SMALL_PAGE
from svc.upgrade.bundle import container_of
from svc.upgrade.places import Place
from svc.upgrade.run_names import NAME, NAMESPACE
from svc.upgrade.writer import Changed, Writer

Json = dict[str, Any]

CANARY: Final = Place("v1", "Pod", NAMESPACE, f"{NAME}-canary")
CANARY_SECONDS = 120.0  # for an address, and for the end
_POLL_SECONDS = 0.5
_ATTEMPTS: Final = 5


def try_pod(writer: Writer, agent: Json, pause: Callable[[float], None]) -> list[str]:
    """Start a pod on a node of the agent, and delete it. Return why that failed; nothing if it did not, or if no node is there.

    The address is that of the sandbox: whether the container of the pod starts does not matter."""
    node = _node_of(writer, agent)
    if not node:
        return []
    if not is_gone(writer, CANARY, pause, CANARY_SECONDS):
        return [f"{CANARY} of an earlier run does not end: see the log of the agent on node {node}"]
    pod = _pod(node, container_of(agent)["image"])
    if not wait(lambda: _has_address(writer, pod), pause, CANARY_SECONDS):
        return [
            f"{CANARY} on node {node} has no address after {CANARY_SECONDS:.0f} s: see its events, and `svcctl status` there"
        ]
    if not is_gone(writer, CANARY, pause, CANARY_SECONDS):
        return [f"{CANARY} on node {node} does not end after {CANARY_SECONDS:.0f} s: see the log of the agent there"]
    return []


def _node_of(writer: Writer, agent: Json) -> str:
    """Return a node with a pod of the agent; empty if no pod runs."""
    selector = agent["spec"]["selector"].get("matchLabels") or {}
    path = writer.folder(Place("v1", "Pod", agent["metadata"]["namespace"], "any"))
    text = ",".join(f"{name}={value}" for name, value in selector.items())
    pods = writer.items(path, labelSelector=text, limit=str(SMALL_PAGE))
    found = (each for each in pods if (each.get("status") or {}).get("phase") == "Running")
    return next((str(each["spec"]["nodeName"]) for each in found), "")


def _has_address(writer: Writer, pod: Json) -> bool:
    """Return whether the pod has an address. Create it if it does not exist."""
    live = writer.find(CANARY)
    if live is None:
        with suppress(Changed):  # its answer may be lost
            writer.create(pod)
        return False
    return bool((live.get("status") or {}).get("podIP"))


def remove(writer: Writer, place: Place) -> None:
    """Delete a pod if it is there."""
    for _ in range(_ATTEMPTS):
        live = writer.find(place)
        if live is None or "deletionTimestamp" in live["metadata"]:
            return
        with suppress(Changed):  # kubelet reports its status at any time
            writer.delete(place, live)


def wait(condition: Callable[[], bool], pause: Callable[[float], None], seconds: float) -> bool:
    """Wait for a condition. Return whether it was met in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        pause(_POLL_SECONDS)
    return True


def is_gone(writer: Writer, place: Place, pause: Callable[[float], None], seconds: float) -> bool:
    """Delete a pod, and wait for its end. Return whether it has ended in time."""
    remove(writer, place)
    return wait(lambda: writer.find(place) is None, pause, seconds)


def _pod(node: str, image: str) -> Json:
    container = {"name": "canary", "image": image, "command": ["sleep", "600"]}
    spec = {
        "nodeName": node,
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": CANARY.name, "namespace": NAMESPACE}, "spec": spec}
