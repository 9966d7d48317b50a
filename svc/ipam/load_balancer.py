"""What a controller says when it assigns addresses to services of type LoadBalancer, with `Ipam(backend, LOAD_BALANCERS)`.

The handle is that of the deployments that users migrate from: whoever takes one over finds what its services hold.
"""

import base64
import hashlib

from svc.times import to_nanoseconds


def handle_of(namespace: str, name: str, uid: str) -> str:
    """Who holds the addresses of a service: 46 characters at most, each a letter or a digit but for one `-`."""
    digest = hashlib.sha256(f"{name}-{namespace}-{uid}".lower().encode()).digest()
    return "lb-" + base64.urlsafe_b64encode(digest).decode().translate({ord(sign): None for sign in "-_="})


def attributes_of(namespace: str, name: str, kind: str, now: int) -> dict[str, str]:
    """What is said of them: they are on no node. `kind` is the service's type, `now` a Unix time in nanoseconds."""
    return {"service": name, "namespace": namespace, "type": kind, "timestamp": to_nanoseconds(now)}
