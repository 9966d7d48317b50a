"""The content of the datastore from which routes follow: nodes, pools, claims of blocks, and borrowed addresses."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from svc._core.cidr import Address, Cidr
from svc.model.ipam import Block
from svc.model.keys import NODE, Host
from svc.model.pool import CROSS_SUBNET, LOAD_BALANCER, NEVER, Pool
from svc.model.resource import Json, Resource
from svc.names import Names
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6
from svc.values import dataclass, field

INTERNAL: Final = "InternalIP"
TUNNEL_FIELDS: Final = {
    VXLAN_V4: ("", "ipv4VXLANTunnelAddr", "vxlanTunnelMACAddr"),
    VXLAN_V6: ("", "ipv6VXLANTunnelAddr", "vxlanTunnelMACAddrV6"),
    IPIP: ("bgp", "ipv4IPIPTunnelAddr", ""),
}
"""Section and fields of a Node with the address and the MAC address of each kind of tunnel."""
HANDLES: Final = {VXLAN_V4: "vxlan-tunnel-addr-", VXLAN_V6: "vxlan-v6-tunnel-addr-", IPIP: "ipip-tunnel-addr-"}
"""The beginning of the handle of each kind of tunnel; the name of the node follows."""

_LINK_LOCAL: Final = (Cidr("169.254.0.0/16"), Cidr("fe80::/10"), Cidr("127.0.0.0/8"), Cidr("::1/128"))
_MAC_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node: its address of each IP version, the address and the MAC of its tunnels by kind, and its pod CIDRs."""

    name: str
    addresses: Mapping[int, Address] = field(default_factory=dict)
    tunnels: Mapping[str, Address] = field(default_factory=dict)
    macs: Mapping[str, bytes] = field(default_factory=dict)
    ranges: tuple[Cidr, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutedPool:
    """A pool: the kind of its tunnel, empty if it has none, and when the tunnel is used."""

    name: str
    cidr: Cidr
    kind: str = ""
    mode: str = NEVER
    masquerades: bool = False
    is_for_load_balancers: bool = False

    @property
    def is_cross_subnet(self) -> bool:
        return self.mode == CROSS_SUBNET


Claims = Mapping[Cidr, Mapping[str, bool]]
"""By block: the nodes that claim it, and whether the affinity of each is confirmed."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything together. `owners` has the nodes that blocks themselves name, for blocks that were read.

    `borrowed` has the node of each address whose block has the affinity of another node, or of none."""

    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    claims: Claims = field(default_factory=dict)
    pools: tuple[RoutedPool, ...] = ()
    borrowed: Mapping[Address, str] = field(default_factory=dict)
    owners: Mapping[Cidr, str] = field(default_factory=dict)


def node_facts(resource: Resource, names: Names) -> NodeFacts:
    """Return the facts of a Node. What cannot be parsed counts as missing."""
    spec = resource.spec
    addresses: dict[int, Address] = {}
    for address in _addresses(spec, names):
        addresses.setdefault(address.version, address)
    tunnels, macs = {}, {}
    for kind, (section, address_field, mac_field) in TUNNEL_FIELDS.items():
        part = _object(spec.get(section)) if section else spec
        if (found := _address(part.get(address_field))) is not None and found.version == (6 if kind == VXLAN_V6 else 4):
            tunnels[kind] = found
        if mac_field and (mac := _mac(part.get(mac_field))):
            macs[kind] = mac
    return NodeFacts(resource.name, addresses, tunnels, macs, tuple(_ranges(resource.status)))


def routed_pool(resource: Resource) -> RoutedPool:
    """Return the pool of a resource. Raise ValueError if it is unusable."""
    pool = Pool.from_resource(resource)
    vxlan, ipip = (resource.spec.get(name) or NEVER for name in ("vxlanMode", "ipipMode"))
    kind, mode = "", NEVER
    if vxlan != NEVER:
        kind, mode = VXLAN_V6 if pool.cidr.version == 6 else VXLAN_V4, vxlan
    elif ipip != NEVER and pool.cidr.version == 4:
        kind, mode = IPIP, ipip
    masquerades = bool(resource.spec.get("natOutgoing"))
    return RoutedPool(pool.name, pool.cidr, kind, mode, masquerades, LOAD_BALANCER in pool.allowed_uses)


def pod_networks(pools: Iterable[RoutedPool]) -> list[Cidr]:
    """Return the networks of the pools from which pods get addresses."""
    return [pool.cidr for pool in pools if not pool.is_for_load_balancers]


def needed_tunnels(pools: Iterable[RoutedPool]) -> dict[str, tuple[RoutedPool, ...]]:
    """Return the pools that need each kind of tunnel."""
    found: dict[str, tuple[RoutedPool, ...]] = {}
    for pool in pools:
        if pool.kind and not pool.is_for_load_balancers:
            found[pool.kind] = (*found.get(pool.kind, ()), pool)
    return found


def owner_of(block: Block) -> str:
    """Return the node that has a block's affinity; empty if no node has it."""
    host = Host.of(block.affinity)
    return host.name if host is not None and host.kind == NODE else ""


def borrowed_addresses(block: Block) -> dict[Address, str]:
    """Return the node of each address of a block that another node has, or that is in a block without affinity."""
    host, attributes = Host.of(block.affinity), block.attributes or ()
    if block.deleted or (host is not None and host.kind != NODE):
        return {}
    own = "" if host is None else host.name
    nodes = [(attribute.secondary or {}).get("node", "") for attribute in attributes]
    if not any(node and node != own for node in nodes):
        return {}
    return {
        block.cidr.address(ordinal): nodes[tag]
        for ordinal, tag in enumerate(block.ordinals.allocations())
        if tag is not None and nodes[tag] and nodes[tag] != own and attributes[tag].released_at is None
    }


def _addresses(spec: Json, names: Names) -> Iterator[Address]:
    """Yield the usable addresses of a node, the preferred ones first."""
    given = [item for item in _list(spec.get("addresses")) if isinstance(item, dict)]
    bgp = _object(spec.get("bgp"))
    texts = [item.get("address") for item in given if item.get("type") == INTERNAL]
    texts += [bgp.get("ipv4Address"), bgp.get("ipv6Address")]
    texts += [item.get("address") for item in given if item.get("type") == names.node_address]
    for text in texts:
        address = _address(text)
        if address is not None and is_usable(address):
            yield address


def is_usable(address: Address) -> bool:
    """Return whether other nodes can reach a node at this address: it is neither link-local nor of the loopback."""
    return not any(address in unusable for unusable in _LINK_LOCAL)


def _address(text: object) -> Address | None:
    """Return an address, which may have a prefix length; None if the text is not one."""
    with suppress(ValueError):
        return Address(text.partition("/")[0]) if isinstance(text, str) else None
    return None


def _mac(text: object) -> bytes:
    with suppress(ValueError):
        found = bytes.fromhex(text.replace(":", "")) if isinstance(text, str) else b""
        return found if len(found) == _MAC_BYTES else b""
    return b""


def _ranges(status: object) -> Iterator[Cidr]:
    for text in _list(_object(status).get("podCIDRs")):
        with suppress(ValueError):
            yield Cidr.masked(str(text))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}
