"""Values of tunnels that other programs in a cluster share, and the links of this node."""

import os
from collections.abc import Mapping
from typing import Any, Final

from svc._core import netns, rtnl
from svc.dataplane.kernel import query
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6

ALIAS: Final = "svc-routes"  # of devices that svc-routes made
VNI: Final = 4096
PORT: Final = 4789
OVERHEAD: Final = {VXLAN_V4: 50, VXLAN_V6: 70, IPIP: 20}
"""Bytes that a tunnel adds to a packet."""

Link = dict[str, Any]
Links = Mapping[str, Link]
"""The links of this node by name, as `rtnl.unpack_link` describes them."""


class TunnelProblem(Exception):
    """A tunnel cannot be made. The text is a sentence for the user."""


def read_links(socket: netns.Socket) -> dict[str, Link]:
    """Return the links of the socket's namespace by name. Raise PeerError."""
    request = rtnl.Batch()
    request.dump_links()
    return {link["name"]: link for link in map(rtnl.unpack_link, query(socket, request))}


def reason(failure: OSError) -> str:
    """Return what the kernel says about a refused message."""
    name = os.strerror(failure.errno) if failure.errno else str(failure)
    text = getattr(failure, "message", "")
    return f"{name} ({text})" if text else name
