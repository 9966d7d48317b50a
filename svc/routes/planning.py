"""What a node's kernel should have, as the datastore says. No I/O: the caller tells which addresses are connected."""

import hashlib
from collections.abc import Callable, Iterator, Mapping

from svc._core.cidr import Address, Cidr, CidrIndex
from svc.routes.inputs import Inputs, NodeFacts, RoutedPool
from svc.routes.reasons import Reason
from svc.routes.wanted import IPIP, VXLAN_V6, Blackhole, Direct, Nat, Tunnel, Tunneled, TunnelPeer, Wanted, Way
from svc.values import dataclass, field

Connected = Callable[[Address], str | None]
"""Returns the device on whose subnet an address is; None if the kernel's route to it has a gateway, or does not exist."""

_LOOPBACK = "lo"  # the device of the kernel's route to an own address


@dataclass(frozen=True, slots=True)
class Local:
    """This node: its name, its addresses by IP version, its tunnels that are ready, and what is turned on."""

    node: str
    addresses: Mapping[int, Address] = field(default_factory=dict)
    tunnels: Mapping[str, Tunnel] = field(default_factory=dict)
    use_pod_cidr: bool = False
    use_tunnels: bool = True
    use_nat: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One network: the node that has it, its way if it has one, and the reason."""

    node: str
    reason: Reason
    way: Way | None = None
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The wanted state, and a row for each network."""

    wanted: Wanted
    rows: Mapping[Cidr, Row]


def tunnel_mac(node: str, kind: str) -> bytes:
    """Return the MAC address of a node's VXLAN device, which other programs compute as well."""
    name = f"{node}-v6" if kind == VXLAN_V6 else node
    return b"\x66" + hashlib.sha1(name.encode()).digest()[:5]  # noqa: S324  # not for security


def plan(inputs: Inputs, local: Local, connected: Connected) -> Plan:
    """Return the plan of this node."""
    return _Planner(inputs, local, connected).plan()


class _Planner:
    def __init__(self, inputs: Inputs, local: Local, connected: Connected) -> None:
        self._inputs = inputs
        self._local = local
        self._connected = connected
        self._pools: CidrIndex[RoutedPool] = CidrIndex()
        for pool in sorted(inputs.pools, key=lambda pool: pool.name, reverse=True):  # of equal ranges, the first name remains
            self._pools.insert(pool.cidr, pool)
        self._known: dict[tuple[str, int, str], Row] = {}  # by node, IP version and pool
        self._peers: set[TunnelPeer] = set()

    def plan(self) -> Plan:
        rows = dict(self._ranges() if self._local.use_pod_cidr else self._blocks())
        routes = {network: row.way for network, row in rows.items() if row.way is not None}
        tunnels = tuple(self._local.tunnels[kind] for kind in sorted(self._local.tunnels))
        return Plan(Wanted(routes, frozenset(self._peers), tunnels, self._nat()), rows)

    def _nat(self) -> Nat | None:
        if not self._local.use_nat:
            return None
        pools = [pool for pool in self._inputs.pools if not pool.is_for_load_balancers]
        return Nat(frozenset(pool.cidr for pool in pools), frozenset(pool.cidr for pool in pools if pool.masquerades))

    def _ranges(self) -> Iterator[tuple[Cidr, Row]]:
        claims: dict[Cidr, dict[str, bool]] = {}
        for node in self._inputs.nodes.values():
            for network in node.ranges:
                claims.setdefault(network, {})[node.name] = True
        for network, nodes in claims.items():
            yield network, self._claimed(network, nodes)

    def _blocks(self) -> Iterator[tuple[Cidr, Row]]:
        for network, claims in self._inputs.claims.items():
            yield network, self._claimed(network, claims)
        for address, node in self._inputs.borrowed.items():
            network = address.host()
            if node == self._local.node:
                yield network, Row(node, Reason.LOCAL, pool=self._pool_name(network))
            else:
                yield network, self._row(network, node)

    def _claimed(self, network: Cidr, claims: Mapping[str, bool]) -> Row:
        confirmed = [node for node, is_confirmed in claims.items() if is_confirmed]
        if len(confirmed) == 1:
            return self._row(network, confirmed[0])
        listed = ", ".join(sorted(claims))
        if not confirmed:
            return Row(listed, Reason.PENDING, pool=self._pool_name(network))
        owner = self._inputs.owners.get(network)
        if owner in confirmed:
            return self._row(network, owner)
        return Row(listed, Reason.DISPUTED, pool=self._pool_name(network))

    def _row(self, network: Cidr, node: str) -> Row:
        pool = self._pool_of(network)
        name = "" if pool is None else pool.name
        if node == self._local.node:
            is_single = network.length == network.bits
            return Row(node, Reason.OWN_SINGLE, None, name) if is_single else Row(node, Reason.OWN, Blackhole(), name)
        place = (node, network.version, name)
        row = self._known.get(place)
        if row is None:
            row = self._known[place] = self._computed(network.version, node, pool)
        return row

    def _computed(self, version: int, node: str, pool: RoutedPool | None) -> Row:
        name = "" if pool is None else pool.name
        facts = self._inputs.nodes.get(node)
        if pool is not None and pool.is_for_load_balancers:
            return Row(node, Reason.LOAD_BALANCER, None, name)
        if facts is None:
            return Row(node, Reason.NO_NODE, None, name)
        address = facts.addresses.get(version)
        if address is None:
            return Row(node, Reason.NO_ADDRESS, None, name)
        needs_route = pool is None or not pool.kind or pool.is_cross_subnet
        device = self._connected(address) if needs_route else None
        if address == self._local.addresses.get(version) or device == _LOOPBACK:
            return Row(node, Reason.SAME_ADDRESS, None, name)
        if device is not None:
            return Row(node, Reason.DIRECT, Direct(address), name)
        if pool is None or not pool.kind:
            return Row(node, Reason.NO_POOL if pool is None else Reason.NOT_CONNECTED, None, name)
        return self._tunneled(facts, address, pool)

    def _tunneled(self, facts: NodeFacts, address: Address, pool: RoutedPool) -> Row:
        kind = pool.kind
        if not self._local.use_tunnels:
            return Row(facts.name, Reason.TUNNELS_OFF, None, pool.name)
        if kind not in self._local.tunnels:
            return Row(facts.name, Reason.NO_OWN_TUNNEL, None, pool.name)
        if kind == IPIP:  # the gateway is the other end of the tunnel
            return Row(facts.name, Reason.TUNNEL, Tunneled(kind, address), pool.name)
        inner = facts.tunnels.get(kind)
        if inner is None:
            return Row(facts.name, Reason.NO_PEER_TUNNEL, None, pool.name)
        self._peers.add(TunnelPeer(kind, address, inner, facts.macs.get(kind) or tunnel_mac(facts.name, kind)))
        return Row(facts.name, Reason.TUNNEL, Tunneled(kind, inner), pool.name)

    def _pool_name(self, network: Cidr) -> str:
        pool = self._pool_of(network)
        return "" if pool is None else pool.name

    def _pool_of(self, network: Cidr) -> RoutedPool | None:
        """Return the smallest pool that contains the network."""
        pool = self._pools.match(network.first)
        if pool is None or network in pool.cidr:
            return pool
        around = [pool for pool in map(self._pools.exact, self._pools.overlapping(network)) if pool and network in pool.cidr]
        return max(around, key=lambda pool: pool.cidr.length, default=None)
