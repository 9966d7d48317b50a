"""Creation of tunnel devices by pyroute2. The only module that imports it, loaded only if a pool needs a tunnel."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyroute2 import IPRoute  # type: ignore[import-untyped]
from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped]

from svc.routes.tunnel_values import ALIAS, PORT, VNI, TunnelProblem
from svc.routes.wanted import IPIP, Tunnel


@contextmanager
def _kernel() -> Iterator[IPRoute]:
    """Yield an access of pyroute2 to the kernel. Raise TunnelProblem for a refusal in the block."""
    with IPRoute() as kernel:
        try:
            yield kernel
        except NetlinkError as refusal:
            raise TunnelProblem(f"the kernel refused: {refusal.args[1]}") from None


def create(tunnel: Tunnel, parent: int, mtu: int) -> None:
    """Create the device, down, with its alias. Raise TunnelProblem."""
    with _kernel() as kernel:
        try:
            kernel.link("add", **request(tunnel, parent, mtu))
        except NetlinkError as refusal:
            raise TunnelProblem(_sentence(tunnel, refusal)) from None
        for index in kernel.link_lookup(ifname=tunnel.name):
            _mark(kernel, index)


def request(tunnel: Tunnel, parent: int, mtu: int) -> dict[str, Any]:
    """Return the arguments of pyroute2 that create the device."""
    common = {"ifname": tunnel.name, "mtu": mtu}
    if tunnel.kind == IPIP:
        return {**common, "kind": "ipip", "ipip_link": parent, "ipip_local": str(tunnel.underlay)}
    local = "vxlan_local" if tunnel.underlay.version == 4 else "vxlan_local6"
    return {
        **common,
        "kind": "vxlan",
        "address": tunnel.mac.hex(":"),
        "vxlan_id": VNI,
        "vxlan_port": PORT,
        "vxlan_learning": 0,
        "vxlan_link": parent,
        local: str(tunnel.underlay),
    }


def mark(index: int) -> None:
    """Give the device the alias by which svc-routes knows its own. Raise TunnelProblem."""
    with _kernel() as kernel:
        _mark(kernel, index)


def set_mtu(index: int, mtu: int) -> None:
    """Change the MTU of a device. Raise TunnelProblem."""
    with _kernel() as kernel:
        kernel.link("set", index=index, mtu=mtu)


def has_settings(tunnel: Tunnel, index: int, parent: int) -> bool:
    """Return True if the device has the settings of the tunnel, apart from MTU, MAC and addresses. Raise TunnelProblem."""
    with _kernel() as kernel:
        found = kernel.get_links(index)
    if not found:
        return False
    info = found[0].get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else None
    data = info.get_attr("IFLA_INFO_DATA") if info else None
    if data is None or kind != ("ipip" if tunnel.kind == IPIP else "vxlan"):
        return False
    return _settings(data, tunnel) == _wanted(tunnel, parent)


def _mark(kernel: IPRoute, index: int) -> None:
    kernel.link("set", index=index, IFLA_IFALIAS=ALIAS)


def _settings(data: Any, tunnel: Tunnel) -> tuple[object, ...]:
    if tunnel.kind == IPIP:
        return data.get_attr("IFLA_IPIP_LINK"), data.get_attr("IFLA_IPIP_LOCAL"), data.get_attr("IFLA_IPIP_REMOTE")
    local = "IFLA_VXLAN_LOCAL" if tunnel.underlay.version == 4 else "IFLA_VXLAN_LOCAL6"
    names = ("IFLA_VXLAN_LINK", local, "IFLA_VXLAN_ID", "IFLA_VXLAN_PORT", "IFLA_VXLAN_LEARNING")
    return tuple(data.get_attr(name) for name in names)


def _wanted(tunnel: Tunnel, parent: int) -> tuple[object, ...]:
    if tunnel.kind == IPIP:
        return parent, str(tunnel.underlay), "0.0.0.0"  # noqa: S104  # any remote end
    return parent, str(tunnel.underlay), VNI, PORT, 0


def _sentence(tunnel: Tunnel, refusal: NetlinkError) -> str:
    number, text = refusal.args[0], refusal.args[1]
    if number == errno.EOPNOTSUPP:
        kind = "IPIP" if tunnel.kind == IPIP else "VXLAN"
        return f"this kernel has no {kind}: load its module, or choose another mode in the pools"
    if number == errno.EEXIST and tunnel.kind != IPIP:
        return f"another device has VNI {VNI} on port {PORT}: delete that of the former network"
    return f"the kernel refused: {text}"
