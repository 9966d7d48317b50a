"""What the controllers know of each pod."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from svc.controllers.copies.endpoint_copies import digest_of_pod
from svc.model.mapped import allocated_form
from svc.model.pod_endpoint import attachments_of, is_finished, network_status_addresses
from svc.names import Names

Json = dict[str, Any]

_MOST_ADDRESSES = 256  # of one pod. Annotations have room for tens of thousands, and any user of the pod may write them


class PodRow(NamedTuple):
    """A pod that may have addresses, in short form: a cluster has tens of thousands of pods.

    `addresses` are those that its annotations and its status show for any interface; a finished pod has none. `containers` are
    those of its endpoints in the annotations, empty for an endpoint that names none, and the first `wired` addresses are
    theirs. Nothing is known of them if the pod `is_unreadable`. `copied` is the digest of what its stored endpoints should
    have.
    """

    uid: str
    node: str
    is_finished: bool
    addresses: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    is_unreadable: bool = False
    copied: bytes = b""
    wired: int = 0


def read_pod(names: Names, pod: Json) -> tuple[str, PodRow | None]:
    """Return NAMESPACE/NAME and the row of a pod; no row before it has a node, or if it uses the network of its node."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    key, node = f"{metadata['namespace']}/{metadata['name']}", spec.get("nodeName")
    if not node or spec.get("hostNetwork"):
        return key, None
    uid, copied = str(metadata["uid"]), digest_of_pod(names, pod)
    try:
        addresses, containers, wired = _attached(names, pod)
    except (ValueError, TypeError, AttributeError):
        return key, PodRow(uid, str(node), is_finished(pod), is_unreadable=True, copied=copied)
    return key, PodRow(uid, str(node), is_finished(pod), addresses, containers, copied=copied, wired=wired)


def _attached(names: Names, pod: Json) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return addresses and containers of a pod, and how many addresses are of its endpoints.

    Raise ValueError if an address is malformed, or if they are too many.

    IDs of containers have no dot. A text with one could stand for one network of a container, and against its other networks.
    """
    if is_finished(pod):
        return (), (), 0
    wired: list[str] = []
    containers: dict[str, None] = {}
    for container, networks in attachments_of(names, pod):
        containers["" if "." in container else container] = None
        wired += networks
    reported = [str(each["ip"]) for each in (pod.get("status") or {}).get("podIPs") or () if each.get("ip")]
    texts = [*wired, *reported, *network_status_addresses(pod)]
    if len(texts) > _MOST_ADDRESSES:
        raise ValueError(f"it shows {len(texts)} addresses")
    return tuple(_canonical(texts)), tuple(containers), len(_canonical(wired))


def _canonical(texts: Iterable[str]) -> dict[str, None]:
    """Return different addresses in their order."""
    return dict.fromkeys(str(allocated_form(text)) for text in texts)
