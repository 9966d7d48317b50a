"""Handle and attributes of a service of type LoadBalancer, for a controller with `Ipam(backend, LOAD_BALANCERS)`.

The handle is the one that Calico stores, so that svc finds the addresses of services in a deployment that it takes over.
"""

import base64
import hashlib

from svc.timestamps import to_nanoseconds


def handle_of(namespace: str, name: str, uid: str) -> str:
    """Return the handle of a service: at most 46 letters and digits, and one `-`."""
    digest = hashlib.sha256(f"{name}-{namespace}-{uid}".lower().encode()).digest()
    return "lb-" + base64.urlsafe_b64encode(digest).decode().translate({ord(sign): None for sign in "-_="})


def attributes_of(namespace: str, name: str, kind: str, now: int) -> dict[str, str]:
    """Return the attributes of the addresses of a service. They do not name a node. `now` is a Unix time in nanoseconds."""
    return {"service": name, "namespace": namespace, "type": kind, "timestamp": to_nanoseconds(now)}
