"""What a node needs to reach the pods of other nodes, as values: routes, tunnels and NAT."""

from collections.abc import Mapping
from typing import Final

from svc._core.cidr import Address, Cidr
from svc.values import dataclass

VXLAN_V4: Final = "vxlan-v4"
VXLAN_V6: Final = "vxlan-v6"
IPIP: Final = "ipip"


@dataclass(frozen=True, slots=True)
class Direct:
    """The way to a node on a connected subnet: via its address, on the device that the kernel uses for it."""

    gateway: Address


@dataclass(frozen=True, slots=True)
class Tunneled:
    """The way through a tunnel of the given kind: on-link to the tunnel's address of the other node."""

    kind: str
    gateway: Address


@dataclass(frozen=True, slots=True)
class Blackhole:
    """The end of the way: packets to addresses of an own block that no pod has."""


Way = Direct | Tunneled | Blackhole


@dataclass(frozen=True, slots=True)
class TunnelPeer:
    """Another node at the end of a tunnel: its underlay address, the tunnel's address there, and the MAC (VXLAN only)."""

    kind: str
    underlay: Address
    address: Address
    mac: bytes = b""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A tunnel device of this node. `mac` is empty for IPIP. `parent` is the name of the underlay's device."""

    kind: str
    name: str
    parent: str
    underlay: Address
    address: Address
    mtu: int
    mac: bytes = b""


@dataclass(frozen=True, slots=True)
class Nat:
    """Networks of all pools, and of those whose outgoing packets are masqueraded."""

    pools: frozenset[Cidr] = frozenset()
    masqueraded: frozenset[Cidr] = frozenset()


@dataclass(frozen=True, slots=True)
class Wanted:
    """All of it. A tunnel that no pool needs, and NAT if it is off, are absent."""

    routes: Mapping[Cidr, Way]
    peers: frozenset[TunnelPeer] = frozenset()
    tunnels: tuple[Tunnel, ...] = ()
    nat: Nat | None = None
