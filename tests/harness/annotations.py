"""Helpers for annotations of pods and namespaces, and for the attachments that they affect."""

import json
import time
from typing import Any

from harness.cluster_node import ClusterNode, remains
from harness.datastores import session
from harness.kube import Kube
from harness.pod import Pod, refused
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT

Json = dict[str, Any]

NAMESPACE = "/api/v1/namespaces/default"
POOL, UNAVAILABLE, ANNOTATION = 102, 103, 112
TIMEOUT_SECONDS = 20.0
_MERGE = "application/merge-patch+json"


def with_prefix(notes: Json) -> Json:
    """Return the annotations with the prefix, unless they have one. Values other than text and None become JSON."""
    return {
        name if "/" in name else f"{DEFAULT.annotation_prefix}/{name}": (
            text if text is None or isinstance(text, str) else json.dumps(text)
        )
        for name, text in notes.items()
    }


def annotate(kube: Kube, path: str, **notes: Any) -> None:
    kube.call("PATCH", path, {"metadata": {"annotations": with_prefix(notes)}}, _MERGE)


def endpoint(node: ClusterNode) -> Resource:
    """Return the only endpoint."""
    with session(node.site) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(entry.value, Resource)
    return entry.value


def attach_within(pod: Pod, network: str) -> None:
    """Repeat ADD and DEL until the pod gets an address that begins with `network`, because events of namespaces may be late."""
    until = time.monotonic() + TIMEOUT_SECONDS
    pod.add()
    while not pod.addresses[0].startswith(network):
        assert time.monotonic() < until, pod.addresses
        pod.delete()
        pod.add()


def require_refused(pod: Pod, node: ClusterNode, code: int, *words: str) -> None:
    """Require that an ADD fails with this code and these words, and leaves nothing on the node."""
    refused(pod, code, *words)
    assert remains([node]) == []


def host_routes(pod: Pod) -> list[str]:
    """Return the destinations of the host routes on the pod's host interface."""
    routes = [route for family in ("-4", "-6") for route in pod.node.netns.ip(family, "route", "show", "dev", pod.host_name)]
    return sorted(route["dst"] for route in routes if "/" not in route["dst"])
