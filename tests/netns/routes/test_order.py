"""The order in which the kernel gets what belongs together, and what is loaded for it."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from harness.netns import Netns
from netns.routes.test_kernel_routes import BLOCK, FIRST, OTHER, told
from netns.routes.test_kernel_routes import apply as apply_routes
from netns.routes.test_tunnels import apply as apply_tunnels
from svc._core import rtnl
from svc.routes.kernel_part import KernelPart

pytestmark = pytest.mark.root

_GROUPS = 1 << 2 | 1 << 6 | 1 << 10  # RTNLGRP_NEIGH, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE
LOADED = """
import sys
from svc._core.cidr import Address, Cidr
from svc.names import DEFAULT
from svc.routes import main, program
from svc.routes.kernel_part import KernelPart
from svc.routes.wanted import VXLAN_V4, Direct, Tunnel, Wanted

part = KernelPart(DEFAULT)
block, mac = Cidr("10.65.0.0/26"), bytes.fromhex("660000000001")
assert part.apply(Wanted({block: Direct(Address("192.168.0.2"))}), may_delete=True).routes
part.clean()
print("pyroute2" in sys.modules)
tunnel = Tunnel(VXLAN_V4, "vxlan.svc", "up0", Address("192.168.0.1"), Address("10.65.9.1"), 0, mac)
assert not part.apply(Wanted({}, tunnels=(tunnel,)), may_delete=True).problems
print("pyroute2" in sys.modules)
"""


@contextmanager
def written() -> Iterator[list[str]]:
    """Yield a list that gets the own additions of both families in their order."""
    found: list[str] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE) as groups:
        groups.bind((0, _GROUPS))
        yield found
        with suppress(BlockingIOError):
            while True:
                found += filter(None, (_word(kind, message) for kind, _, message in rtnl.split(groups.recv(65536))))


def _word(kind: int, message: bytes) -> str:
    if kind == rtnl.RTM_NEWNEIGH:
        entry = rtnl.unpack_neighbour(message)
        is_own = entry["state"] & rtnl.NUD_PERMANENT and entry["mac"] == bytes.fromhex("660000000002")
        return ("entry" if entry["family"] == rtnl.AF_BRIDGE else "neighbour") if is_own else ""
    is_own = kind == rtnl.RTM_NEWROUTE and rtnl.unpack_route(message)["protocol"] == 83
    return "route" if is_own else ""


def test_a_route_through_a_tunnel_comes_after_its_peer(part: KernelPart) -> None:
    """For each family a neighbour, then an fdb entry; routes at the end. No packet of a route finds no way in the tunnel."""
    with written() as words:
        apply_tunnels(part)
    assert words == ["neighbour", "entry"] * 2 + ["route"] * 2


def test_routes_are_added_before_others_are_deleted(part: KernelPart) -> None:
    apply_routes(part, {BLOCK: FIRST})
    with told() as messages:
        apply_routes(part, {OTHER: FIRST})
    assert messages == [(False, OTHER), (True, BLOCK)]


def test_pyroute2_is_loaded_for_tunnels_only(node: Netns) -> None:
    """It needs 20 MiB and 0.6 s. Modules of the whole program are loaded."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True"], done.stderr
