"""The kernel state of an attachment, as netlink batches and sysctls. No I/O.

The sandbox has one interface, a veth, with its addresses as /32 and /128. Its routes use a link-local next hop that the host
side answers for. For IPv4 this is 169.254.1.1 by proxy ARP, for IPv6 the host side's own link-local address. The host has a
route for each address. So pods share no subnet, and the host forwards all traffic.
"""

from svc._core import rtnl
from svc._core.cidr import Address, Cidr
from svc.values import dataclass

HOST_MAC = bytes.fromhex("eeeeeeeeeeee")
GATEWAY4 = Address("169.254.1.1")
GATEWAY6 = Address("fe80::ecee:eeff:feee:eeee")  # the link-local address derived from HOST_MAC
DEFAULT_MTU = 1500  # ETH_DATA_LEN, the kernel's default for a veth
SECOND_METRIC = 1024  # plus the interface's index: the metric of routes that an earlier interface also has
_IPV6_MIN_MTU = 1280  # RFC 8200: the kernel enables no IPv6 on an interface with a smaller MTU


@dataclass(frozen=True, slots=True)
class VethSpec:
    """The desired state of an attachment.

    `mtu` 0 means the kernel's default. `queues` counts each direction. `routes` are destinations out of the sandbox; None means
    the default routes. Routes of a family without an address are left out.
    """

    host_name: str
    ifname: str
    mac: bytes  # of the sandbox side
    addresses: tuple[Address, ...]
    mtu: int = 0
    queues: int = 1
    allow_ip_forwarding: bool = False
    routes: tuple[Cidr, ...] | None = None

    def has(self, version: int) -> bool:
        return version in [address.version for address in self.addresses]


def host_batch(wiring: VethSpec, index: int, peer_index: int, ns_fd: int, kernel_has_ipv6: bool) -> rtnl.Batch:
    """Return the batch that creates the pair and configures the host side and its routes.

    The caller chooses the host side's index, so that it need not be read back. If the index is taken, later messages would
    change another interface. Therefore the socket sends nothing after a refused creation.

    The kernel's automatic link-local address is disabled. IPv6 pods get one explicitly, without duplicate address detection,
    and IPv4 pods need none. On a node with a thousand pods this saves 1 ms.
    """
    batch = rtnl.Batch()
    batch.create_veth(
        wiring.host_name, index, HOST_MAC, wiring.mtu, wiring.queues, wiring.ifname, peer_index, wiring.mac, ns_fd
    )
    has_ipv6 = kernel_has_ipv6 and effective_mtu(wiring.mtu) >= _IPV6_MIN_MTU
    devconf = {rtnl.DEVCONF_FORWARDING: 1, rtnl.DEVCONF_PROXY_ARP: 1, rtnl.DEVCONF_ROUTE_LOCALNET: 1}
    batch.set_link(index, up=True, devconf=devconf if wiring.has(4) else None, no_link_local=has_ipv6)
    if wiring.has(4):
        batch.set_proxy_delay(index, 0)
    if wiring.has(6):
        batch.add_address(index, GATEWAY6.packed, 64, scope=rtnl.SCOPE_LINK, nodad=True)
    for address in wiring.addresses:
        scope = rtnl.SCOPE_LINK if address.version == 4 else rtnl.SCOPE_GLOBAL
        batch.add_route(index, address.packed, address.bits, scope=scope)
    return batch


def sandbox_batch(wiring: VethSpec, index: int) -> rtnl.Batch:
    """Return the batch that brings up the sandbox side: addresses first, because the routes need them."""
    batch = rtnl.Batch()
    batch.set_link(index, up=True)
    for address in wiring.addresses:
        batch.add_address(index, address.packed, address.bits, nodad=address.version == 6)
    for route in sandbox_routes(wiring):
        route.pack(batch, index)
    return batch


def sandbox_routes(wiring: VethSpec) -> list["SandboxRoute"]:
    """Return the routes to and through the next hop of each family, in the order that the kernel requires."""
    routes = _SANDBOX_ROUTES if wiring.routes is None else (_LINK_ROUTE, *map(_by_next_hop, wiring.routes))
    return [route for route in routes if wiring.has(route.version)]


@dataclass(frozen=True, slots=True)
class SandboxRoute:
    """One route out of the sandbox. Addresses are packed; an empty gateway means that the destination is on-link."""

    destination: bytes
    length: int
    gateway: bytes

    @property
    def version(self) -> int:
        return 4 if len(self.destination) == 4 else 6

    def pack(self, batch: rtnl.Batch, index: int, metric: int = 0) -> None:
        scope = rtnl.SCOPE_GLOBAL if self.gateway else rtnl.SCOPE_LINK
        batch.add_route(index, self.destination, self.length, gateway=self.gateway, scope=scope, metric=metric)

    def __str__(self) -> str:
        return f"{Address.from_packed(self.destination)}/{self.length}"


_LINK_ROUTE = SandboxRoute(GATEWAY4.packed, 32, b"")
_SANDBOX_ROUTES = (_LINK_ROUTE, SandboxRoute(bytes(4), 0, GATEWAY4.packed), SandboxRoute(bytes(16), 0, GATEWAY6.packed))


def _by_next_hop(destination: Cidr) -> SandboxRoute:
    gateway = GATEWAY4 if destination.version == 4 else GATEWAY6
    return SandboxRoute(destination.first.packed, destination.length, gateway.packed)


def host_sysctls(wiring: VethSpec) -> list[tuple[str, str]]:
    """Return the host side's settings that netlink cannot set, as (path below /proc/sys, value)."""
    conf = f"net/ipv6/conf/{wiring.host_name}"
    if not wiring.has(6):
        return [(f"{conf}/accept_ra", "0")]
    return [(f"{conf}/{name}", value) for name, value in HOST_IPV6.items()]


HOST_IPV6 = {"disable_ipv6": "0", "accept_ra": "0", "accept_dad": "0", "proxy_ndp": "1", "forwarding": "1"}
HOST_IPV4 = {"forwarding": "1", "proxy_arp": "1", "route_localnet": "1"}


def sandbox_sysctls(wiring: VethSpec) -> list[tuple[str, str]]:
    """Return the sandbox's sysctls: IPv6 on, and forwarding as configured, which the kernel copies from the host."""
    forwarding = "1" if wiring.allow_ip_forwarding else "0"
    items: list[tuple[str, str]] = []
    if wiring.has(4):
        items.append(("net/ipv4/ip_forward", forwarding))
    if wiring.has(6):
        items += [(f"net/ipv6/conf/{name}/disable_ipv6", "0") for name in ("all", "default", "lo")]
        items.append((f"net/ipv6/conf/{wiring.ifname}/accept_dad", "0"))
        items.append(("net/ipv6/conf/all/forwarding", forwarding))
    return items


def effective_mtu(mtu: int) -> int:
    """Return the MTU of the interfaces; 0 means the default."""
    return mtu or DEFAULT_MTU
