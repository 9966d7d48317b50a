"""What the controllers know of each stored endpoint."""

from sys import intern
from typing import NamedTuple

from svc.controllers.copies.endpoint_copies import digest_of_endpoint, follows_pod
from svc.datastore.api import Entry
from svc.model.keys import ResourceKey
from svc.model.mapped import allocated_form
from svc.model.resource import Resource
from svc.names import Names


class EndpointRow(NamedTuple):
    """A stored endpoint, in short form: a cluster has tens of thousands of them.

    `pod` is NAMESPACE/NAME, empty for a bare container; `is_unreadable` is whether fields are damaged. `copied` is the digest
    of what it has of its pod, empty if it does not follow one.
    """

    pod: str
    node: str
    container: str
    addresses: tuple[str, ...]
    is_unreadable: bool = False
    copied: bytes = b""


def read_endpoint(names: Names, entry: Entry[Resource]) -> EndpointRow:
    """Return the row of an endpoint. One whose fields cannot be read stands for anything of its pod."""
    assert isinstance(entry.key, ResourceKey)
    spec = entry.value.spec
    pod, node, container = (spec.get(name) or "" for name in ("pod", "node", "containerID"))
    owner = f"{entry.key.namespace}/{pod}" if pod else ""
    copied = digest_of_endpoint(names, entry.value) if follows_pod(names, entry.value) else b""
    try:
        networks = spec.get("ipNetworks") or ()
        addresses = tuple(str(allocated_form(text)) for text in networks)
        return EndpointRow(owner, intern(node), container, addresses, not isinstance(container, str), copied)
    except (TypeError, ValueError, AttributeError):
        return EndpointRow(owner, str(node), str(container), (), is_unreadable=True, copied=copied)
