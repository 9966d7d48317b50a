"""The interface of this node that other nodes reach: by name, by the address of the Node, or by the default route."""

import socket as sockets
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from svc._core import netns, rtnl
from svc._core.cidr import Address
from svc.dataplane.kernel import addresses_of, query
from svc.routes.inputs import is_usable
from svc.values import dataclass

_ELSEWHERE: Final = {4: (sockets.AF_INET, "192.0.2.1"), 6: (sockets.AF_INET6, "2001:db8::1")}  # documentation addresses
_PORT: Final = 9  # discard; nothing is sent


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface of this node with its MTU and its global addresses."""

    name: str
    mtu: int
    addresses: tuple[Address, ...] = ()


def read_interfaces() -> tuple[Interface, ...]:
    """Return all interfaces of the present network namespace. Raise PeerError."""
    socket = netns.Socket()
    try:
        request = rtnl.Batch()
        request.dump_links()
        links = [rtnl.unpack_link(message) for message in query(socket, request)]
        addresses = addresses_of(socket)
        return tuple(Interface(link["name"], link["mtu"], tuple(addresses.get(link["index"], ()))) for link in links)
    finally:
        socket.close()


def interface_with(interfaces: tuple[Interface, ...], address: Address) -> Interface | None:
    """Return the interface that has the address."""
    return next((interface for interface in interfaces if address in interface.addresses), None)


def own_addresses(interfaces: tuple[Interface, ...], name: str) -> dict[int, Address]:
    """Return an address of each IP version: of the named interface, otherwise the source of packets to the outside."""
    if not name:
        return {address.version: address for address in _sources() if is_usable(address)}
    found: dict[int, Address] = {}
    for interface in interfaces:
        for address in interface.addresses if interface.name == name else ():
            found.setdefault(address.version, address)
    return found


def _sources() -> Iterator[Address]:
    for family, target in _ELSEWHERE.values():
        with suppress(OSError), sockets.socket(family, sockets.SOCK_DGRAM) as probe:
            probe.connect((target, _PORT))
            yield Address(probe.getsockname()[0])
