"""Host, handle and attributes of the addresses of services of type LoadBalancer, for a controller."""

import base64
import hashlib

from svc.model.keys import VIRTUAL, Host
from svc.timestamps import to_nanoseconds

LOAD_BALANCERS = Host("load-balancer", VIRTUAL)  # of the IPAM service that assigns service addresses


def handle_of(namespace: str, name: str, uid: str) -> str:
    """Return the handle of a service, at most 46 letters and digits and one `-`, as Calico stores it."""
    digest = hashlib.sha256(f"{name}-{namespace}-{uid}".lower().encode()).digest()
    return "lb-" + base64.urlsafe_b64encode(digest).decode().translate({ord(sign): None for sign in "-_="})


def attributes_of(namespace: str, name: str, kind: str, now: int) -> dict[str, str]:
    """Return the attributes of the addresses of a service. They do not name a node. `now` is a Unix time in nanoseconds."""
    return {"service": name, "namespace": namespace, "type": kind, "timestamp": to_nanoseconds(now)}
