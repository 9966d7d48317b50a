"""Host, handle and attributes of the addresses of services of type LoadBalancer, for a controller."""

import base64
import hashlib
from collections.abc import Iterator

from svc._core.cidr import Address
from svc.ipam import blocks
from svc.model.ipam import Block
from svc.model.keys import VIRTUAL, Host
from svc.timestamps import to_nanoseconds
from svc.values import dataclass

LOAD_BALANCERS = Host("load-balancer", VIRTUAL)  # of the IPAM service that assigns service addresses

_PREFIX = "lb-"  # of the handles of services


def handle_of(namespace: str, name: str, uid: str) -> str:
    """Return the handle of a service, at most 46 letters and digits and one `-`, as Calico stores it."""
    digest = hashlib.sha256(f"{name}-{namespace}-{uid}".lower().encode()).digest()
    return _PREFIX + base64.urlsafe_b64encode(digest).decode().translate({ord(sign): None for sign in "-_="})


def attributes_of(namespace: str, name: str, kind: str, now: int) -> dict[str, str]:
    """Return the attributes of the addresses of a service. They do not name a node. `now` is a Unix time in nanoseconds."""
    return {"service": name, "namespace": namespace, "type": kind, "timestamp": to_nanoseconds(now)}


@dataclass(frozen=True, slots=True)
class Served:
    """An address of a service (NAMESPACE/NAME), as its block records it."""

    service: str
    handle: str
    address: Address


def served_in(block: Block) -> Iterator[Served]:
    """Yield the addresses of services in a block. Those in cooldown, and those that name no service, do not count."""
    if not any((attribute.handle_id or "").startswith(_PREFIX) for attribute in block.attributes or ()):
        return
    for attribute, address in blocks.allocations(block):
        handle, owner = attribute.handle_id or "", attribute.secondary or {}
        name, namespace = owner.get("service"), owner.get("namespace")
        if handle.startswith(_PREFIX) and name and namespace and not attribute.released_at:
            yield Served(f"{namespace}/{name}", handle, address)
