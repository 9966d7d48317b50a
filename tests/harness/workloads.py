"""Pods of an API server on a node with a real kubelet, and their state."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cluster_node import ClusterNode, audit, disagreements, remains
from harness.kube import Kube, Refused
from harness.kubelet_node import IMAGE, RealNode

Json = dict[str, Any]

NAMESPACES = "/api/v1/namespaces"
PAGE = "hello\n"  # the reply of a pod's web server
PORT = 8080
_AT_ONCE = "?gracePeriodSeconds=0"


def pods_path(namespace: str = "default") -> str:
    return f"{NAMESPACES}/{namespace}/pods"


def put_namespace(kube: Kube, name: str, annotations: dict[str, str] | None = None) -> None:
    metadata = {"name": name, "annotations": annotations or {}}
    kube.call("POST", NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def delete_namespace(kube: Kube, name: str) -> None:
    """Delete it with its pods, without waiting for kubelet. It may already be deleted."""
    with suppress(Refused):
        kube.call("DELETE", f"{NAMESPACES}/{name}")
        kube.call("DELETE", f"{pods_path(name)}{_AT_ONCE}")
    kube.await_gone(f"{NAMESPACES}/{name}")


def put_pod(
    kube: Kube, name: str, annotations: dict[str, str] | None = None, *, namespace: str = "default", host_port: int = 0
) -> None:
    """Create a pod that serves a page, and optionally maps a port of the host to it."""
    port = {"containerPort": PORT} | ({"hostPort": host_port} if host_port else {})
    container = {
        "name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": ["httpd", "-f", "-p", str(PORT), "-h", "/"],
        "ports": [port],
    }  # fmt: skip
    spec = {
        "nodeName": "node1", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }  # fmt: skip
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}
    kube.call("POST", pods_path(namespace), body)


def read_pod(kube: Kube, name: str, namespace: str = "default") -> Json | None:
    with suppress(Refused):
        return kube.call("GET", f"{pods_path(namespace)}/{name}")
    return None


def list_pods(kube: Kube) -> list[Json]:
    """Return the pods of all namespaces."""
    found: list[Json] = kube.call("GET", "/api/v1/pods")["items"]
    return found


def delete_pod(kube: Kube, name: str, *, at_once: bool = False) -> None:
    """Delete a pod. With `at_once` the server does not wait for kubelet."""
    kube.call("DELETE", f"{pods_path()}/{name}{_AT_ONCE if at_once else ''}")


def clear_pods(real: RealNode, kube: Kube) -> None:
    """Delete all pods, and wait until nothing is left of them.

    Kubelet ends them soon, but reports that only at its next cleanup, within a minute.
    """
    _delete_pods(kube)
    real.wait_none("nothing is left of the pods", lambda: remains([real.node]))
    _delete_pods(kube, _AT_ONCE)


def _delete_pods(kube: Kube, options: str = "") -> None:
    for namespace in {pod["metadata"]["namespace"] for pod in list_pods(kube)}:
        kube.call("DELETE", f"{pods_path(namespace)}{options}")


def addresses(pod: Json | None) -> list[str]:
    """Return the addresses of a ready pod, from the status that kubelet has written."""
    return [each["ip"] for each in pod["status"].get("podIPs", [])] if pod and is_ready(pod) else []


def is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def unready(kube: Kube) -> list[str]:
    return [f"{pod['metadata']['name']} is not ready" for pod in list_pods(kube) if not is_ready(pod)]


def sandboxes(node: ClusterNode) -> set[str]:
    """Return the sandboxes that have a network."""
    return {record.id.container_id for record in audit([node]).records}


def pod_disagreements(kube: Kube, node: ClusterNode) -> list[str]:
    """Return the contradictions between the records and the statuses of the pods, or among the records.

    Every pod must be on the node.
    """
    held = audit([node]).allocations.keys()
    reported = {address: pod["metadata"]["name"] for pod in list_pods(kube) for address in addresses(pod)}
    return [
        *(f"{address} belongs to no pod" for address in held - reported.keys()),
        *(f"{address} of {reported[address]} is not allocated" for address in reported.keys() - held),
        *disagreements([node]),
    ]


def events(kube: Kube, reason: str) -> list[str]:
    """Return the messages of the events with this reason."""
    found = kube.call("GET", f"/api/v1/events?fieldSelector=reason={reason}")["items"]
    return [event["message"] for event in found]


@dataclass(frozen=True)
class Inside:
    """The network namespace of a pod, through one of its processes."""

    path: str


def inside(node: ClusterNode, address: str) -> Inside:
    """Return the namespace of the pod with the address."""
    (wanted,) = (record.sandbox for record in audit([node]).records if address in record.addresses)
    for path in _namespaces():
        status = os.stat(path)
        if (status.st_dev, status.st_ino) == wanted:
            return Inside(path)
    raise LookupError(f"no process is in the namespace of {address}")


def _namespaces() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            path = f"{process}/ns/net"
            os.stat(path)
            yield path
