"""What an attachment looks like in the kernel, as netlink batches and sysctls. Pure.

The sandbox has one interface, a veth, with its addresses as /32 and /128. Its routes lead to a link-local next hop that
the host side answers for: 169.254.1.1 by proxy ARP, and in IPv6 the host side's own link-local address. The host has a
route for each address. So pods share no subnet, and all traffic passes the host's forwarding.
"""

from svc._core import rtnl
from svc._core.cidr import Address, Cidr
from svc.values import dataclass

HOST_MAC = bytes.fromhex("eeeeeeeeeeee")
GATEWAY4 = Address("169.254.1.1")
GATEWAY6 = Address("fe80::ecee:eeff:feee:eeee")  # the link-local address that HOST_MAC makes
DEFAULT_MTU = 1500  # ETH_DATA_LEN: what a veth gets when no MTU is asked for
_IPV6_MIN_MTU = 1280  # RFC 8200: the kernel makes no IPv6 of an interface with less


@dataclass(frozen=True, slots=True)
class Wiring:
    """What is wanted: names on both sides, addresses, MTU (0: the kernel's default), queues in each direction, and routes out
    of the sandbox by destination (None: the default ones); those of a family without an address are left out."""

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


def host_batch(wiring: Wiring, index: int, peer_index: int, ns_fd: int, kernel_has_ipv6: bool) -> rtnl.Batch:
    """Creates the pair, the sandbox side straight in its namespace, then sets up the host side and its routes.

    The index of the host side is of our choice, so that nothing has to be read back. Had somebody else taken it, what follows
    the creation would change a stranger's interface: the socket sends nothing after a refused creation.

    The kernel makes no link-local address there by itself: IPv6 pods get theirs at once, without duplicate detection, and IPv4
    pods need none; on a node with a thousand pods it costs a millisecond.
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
        batch.add_route(index, address.packed, address.bits, scope=_host_scope(address))
    return batch


def sandbox_batch(wiring: Wiring, index: int) -> rtnl.Batch:
    """Brings up the sandbox side: addresses first, then the routes that need them."""
    batch = rtnl.Batch()
    batch.set_link(index, up=True)
    for address in wiring.addresses:
        batch.add_address(index, address.packed, address.bits, nodad=address.version == 6)
    for route in sandbox_routes(wiring):
        route.pack(batch, index)
    return batch


def sandbox_routes(wiring: Wiring) -> list["SandboxRoute"]:
    """To the next hop of each family and by way of it, in the order in which the kernel takes them."""
    routes = _SANDBOX_ROUTES if wiring.routes is None else (_LINK_ROUTE, *map(_by_next_hop, wiring.routes))
    return [route for route in routes if wiring.has(route.version)]


@dataclass(frozen=True, slots=True)
class SandboxRoute:
    """One route out of the sandbox; addresses are packed, an empty gateway means that the destination is on the link."""

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
_SANDBOX_ROUTES = (
    _LINK_ROUTE,
    SandboxRoute(bytes(4), 0, GATEWAY4.packed),
    SandboxRoute(bytes(16), 0, GATEWAY6.packed),
)


def _by_next_hop(destination: Cidr) -> SandboxRoute:
    gateway = GATEWAY4 if destination.version == 4 else GATEWAY6
    return SandboxRoute(destination.first.packed, destination.length, gateway.packed)


def second_metric(index: int) -> int:
    """The metric of routes that an earlier interface has already: behind its own, and unlike that of any other interface."""
    return 1024 + index


def host_sysctls(wiring: Wiring) -> list[tuple[str, str]]:
    """What netlink cannot set on the host side: (path below /proc/sys, value)."""
    conf = f"net/ipv6/conf/{wiring.host_name}"
    if not wiring.has(6):
        return [(f"{conf}/accept_ra", "0")]
    return [(f"{conf}/{name}", value) for name, value in HOST_IPV6.items()]


HOST_IPV6 = {"disable_ipv6": "0", "accept_ra": "0", "accept_dad": "0", "proxy_ndp": "1", "forwarding": "1"}
HOST_IPV4 = {"forwarding": "1", "proxy_arp": "1", "route_localnet": "1"}


def sandbox_sysctls(wiring: Wiring) -> list[tuple[str, str]]:
    """Forwarding as the netconf says (the kernel copies the host's setting into a new namespace), IPv6 switched on."""
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
    """The MTU that the interfaces have where so much is wanted, 0 for no wish."""
    return mtu or DEFAULT_MTU


def _host_scope(address: Address) -> int:
    return rtnl.SCOPE_LINK if address.version == 4 else rtnl.SCOPE_GLOBAL
