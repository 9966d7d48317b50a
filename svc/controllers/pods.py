"""What the controllers know of each pod."""

from typing import Any, NamedTuple

from svc.controllers.endpoint_copies import digest_of_pod
from svc.names import Names

Json = dict[str, Any]

_FINISHED = ("Failed", "Succeeded", "Completed")


class PodRow(NamedTuple):
    """A pod that may have addresses, in short form: a cluster has tens of thousands of pods."""

    uid: str
    node: str
    is_finished: bool
    copied: bytes  # digest of what its stored endpoints should have


def read_pod(names: Names, pod: Json) -> tuple[str, PodRow | None]:
    """Return NAMESPACE/NAME and the row of a pod; no row before it has a node, or if it uses the network of its node."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    key, node = f"{metadata['namespace']}/{metadata['name']}", spec.get("nodeName")
    if not node or spec.get("hostNetwork"):
        return key, None
    return key, PodRow(str(metadata["uid"]), str(node), status.get("phase") in _FINISHED, digest_of_pod(names, pod))
