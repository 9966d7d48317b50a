"""Annotations of pods and namespaces, and what an attachment looks like that was made with them."""

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
TIMEOUT_SECONDS = 20.0  # seconds
_MERGE = "application/merge-patch+json"


def spelled(notes: Json) -> Json:
    """Return them with the prefix, unless they have one; everything but text and None becomes JSON."""
    return {
        name if "/" in name else f"{DEFAULT.annotation_prefix}/{name}": (
            text if text is None or isinstance(text, str) else json.dumps(text)
        )
        for name, text in notes.items()
    }


def annotate(kube: Kube, path: str, **notes: Any) -> None:
    kube.call("PATCH", path, {"metadata": {"annotations": spelled(notes)}}, _MERGE)


def endpoint(node: ClusterNode) -> Resource:
    """The only one."""
    with session(node.site) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(entry.value, Resource)
    return entry.value


def attach_within(pod: Pod, network: str) -> None:
    """Again and again, until the pod has an address that begins so: what is said of namespaces arrives within moments."""
    until = time.monotonic() + TIMEOUT_SECONDS
    pod.add()
    while not pod.addresses[0].startswith(network):
        assert time.monotonic() < until, pod.addresses
        pod.delete()
        pod.add()


def require_refused(pod: Pod, node: ClusterNode, code: int, *words: str) -> None:
    """With these words, and nothing is left of it."""
    refused(pod, code, *words)
    assert remains([node]) == []


def host_routes(pod: Pod) -> list[str]:
    """To single addresses, by the pod's own interface."""
    routes = [route for family in ("-4", "-6") for route in pod.node.netns.ip(family, "route", "show", "dev", pod.host_name)]
    return sorted(route["dst"] for route in routes if "/" not in route["dst"])
