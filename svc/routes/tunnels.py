"""Tunnel devices of svc-routes: their settings, addresses and peers, brought to what is wanted.

A device of another program is never changed, also if it has the name of an own one.
"""

from collections.abc import Iterable
from typing import Final

from svc._core import netns, rtnl
from svc.dataplane.kernel import query
from svc.extras import install_command
from svc.model.errors import PeerError
from svc.names import Names
from svc.routes.tunnel_values import ALIAS, OVERHEAD, Link, Links, TunnelProblem, reason
from svc.routes.wanted import IPIP, VXLAN_V6, Tunnel

_LEAST_MTU: Final = {4: 68, 6: 1280}


class Tunnels:
    """The own tunnel devices of a namespace. For one thread."""

    def __init__(self, socket: netns.Socket, names: Names, *, has_ipv6: bool) -> None:
        self._socket = socket
        self._names = frozenset({names.vxlan_device, names.vxlan6_device, names.ipip_device})
        self._has_ipv6 = has_ipv6
        self._verified: dict[str, tuple[Tunnel, int, int]] = {}  # by name: settings, index of the device and of its parent

    def bring(self, tunnels: Iterable[Tunnel], links: Links) -> tuple[dict[str, int], list[str]]:
        """Make or correct the devices. Return their indexes by kind, and a sentence for each that is not ready."""
        indexes: dict[str, int] = {}
        problems = []
        for tunnel in tunnels:
            try:
                indexes[tunnel.kind] = self._device(tunnel, links)
            except (TunnelProblem, PeerError, OSError, ImportError) as failure:
                problems.append(f"tunnel {tunnel.name!r} is not ready: {_sentence(failure)}")
        return indexes, problems

    def delete(self, links: Links, *, except_for: Iterable[str] = ()) -> list[str]:
        """Delete own devices except those with these names. Return a sentence for each that cannot be deleted."""
        kept, problems = set(except_for), []
        for name, link in links.items():
            if link["alias"] != ALIAS or name in kept:
                continue
            self._verified.pop(name, None)
            batch = rtnl.Batch()
            batch.delete_link(link["index"])
            problems += [
                f"tunnel {name!r} cannot be deleted: {reason(refusal)}" for refusal in self._socket.execute_each(batch)
            ]
        return problems

    def _device(self, tunnel: Tunnel, links: Links) -> int:
        parent = links.get(tunnel.parent)
        if parent is None:
            raise TunnelProblem(f"interface {tunnel.parent!r} does not exist")
        if tunnel.kind == VXLAN_V6 and not self._has_ipv6:
            raise TunnelProblem("this kernel has no IPv6")
        mtu = _mtu(tunnel, parent)
        link = self._usable(tunnel, parent, links.get(tunnel.name))
        if link is None:
            self._delete_renamed(links)
            link = self._created(tunnel, parent, mtu)
        self._verified[tunnel.name] = (tunnel, link["index"], parent["index"])
        self._correct(tunnel, link, mtu)
        return int(link["index"])

    def _usable(self, tunnel: Tunnel, parent: Link, link: Link | None) -> Link | None:
        """Return the device if it is an own one with these settings; delete an own one with others."""
        from svc.routes import devices  # loads pyroute2

        if link is None:
            return None
        if self._verified.get(tunnel.name) == (tunnel, link["index"], parent["index"]) and link["alias"] == ALIAS:
            return link
        is_same = devices.has_settings(tunnel, link["index"], parent["index"])
        if link["alias"] != ALIAS:
            # a kill between the creation and the alias leaves such a device
            if not (is_same and not link["alias"] and not link["up"] and link["mac"] == (tunnel.mac or link["mac"])):
                raise TunnelProblem("a device of this name exists, and svc-routes did not make it: delete or rename it")
            devices.mark(link["index"])
            return link
        if is_same:
            return link
        batch = rtnl.Batch()
        batch.delete_link(link["index"])
        self._socket.execute(batch)
        return None

    def _delete_renamed(self, links: Links) -> None:
        """Delete own devices under other names: the kernel allows no second one with the same numbers."""
        self.delete({name: link for name, link in links.items() if name not in self._names})

    def _created(self, tunnel: Tunnel, parent: Link, mtu: int) -> Link:
        from svc.routes import devices  # loads pyroute2

        devices.create(tunnel, parent["index"], mtu)
        request = rtnl.Batch()
        request.get_link(name=tunnel.name)
        (message,) = query(self._socket, request)
        return rtnl.unpack_link(message)

    def _correct(self, tunnel: Tunnel, link: Link, mtu: int) -> None:
        if link["mtu"] != mtu:
            from svc.routes import devices  # loads pyroute2

            devices.set_mtu(link["index"], mtu)
        batch = rtnl.Batch()
        other_mac = tunnel.mac if tunnel.mac and link["mac"] != tunnel.mac else b""
        if not link["up"] and self._has_ipv6 and tunnel.kind != IPIP:
            batch.set_link(link["index"], no_link_local=True)
        if other_mac or not link["up"]:
            batch.set_link(link["index"], up=True, mac=other_mac)
        self._correct_address(batch, tunnel, link["index"])
        if len(batch):
            self._socket.execute(batch)

    def _correct_address(self, batch: rtnl.Batch, tunnel: Tunnel, index: int) -> None:
        present = set()
        request = rtnl.Batch()
        request.dump_addresses(index)
        for item in map(rtnl.unpack_address, query(self._socket, request)):
            if item["index"] == index and item["scope"] == rtnl.SCOPE_GLOBAL:
                present.add((item["address"], item["length"]))
        wanted = (tunnel.address.packed, tunnel.address.bits)
        if wanted not in present:
            batch.add_address(index, *wanted, nodad=tunnel.address.version == 6)
        for address, length in sorted(present - {wanted}):
            batch.delete_address(index, address, length)


def _sentence(failure: Exception) -> str:
    if isinstance(failure, ImportError):
        return f"{failure.name or failure} is not installed: install the extra routes: {install_command('routes')}"
    return reason(failure) if isinstance(failure, OSError) else str(failure)


def _mtu(tunnel: Tunnel, parent: Link) -> int:
    mtu = tunnel.mtu or int(parent["mtu"]) - OVERHEAD[tunnel.kind]
    least = _LEAST_MTU[tunnel.address.version]
    if mtu < least:
        raise TunnelProblem(f"interface {tunnel.parent!r} has MTU {parent['mtu']}, which leaves {mtu} of the necessary {least}")
    return mtu
