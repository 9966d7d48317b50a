"""The plan of a node's routes: each mode of a pool, and each reason for having no way."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc._core.cidr import Address, Cidr
from svc.model.pool import ALWAYS, CROSS_SUBNET, NEVER
from svc.routes.inputs import Inputs, NodeFacts, RoutedPool
from svc.routes.planning import Local, Plan, Row, plan, tunnel_mac
from svc.routes.reasons import Reason
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6, Blackhole, Direct, Nat, Tunnel, Tunneled, TunnelPeer, Way

OWN, NEAR, FAR = "own", "near", "far"
V4 = {OWN: "192.168.1.1", NEAR: "192.168.1.2", FAR: "192.168.2.3"}
V6 = {OWN: "fd01::1", NEAR: "fd01::2", FAR: "fd02::3"}
TUNNEL_V4 = {OWN: "10.0.0.1", NEAR: "10.0.0.65", FAR: "10.0.0.129"}
TUNNEL_V6 = {OWN: "fd00::1", NEAR: "fd00::41", FAR: "fd00::81"}
BLOCK = {4: Cidr("10.0.1.0/26"), 6: Cidr("fd00::100/122")}
POOL_CIDR = {4: Cidr("10.0.0.0/16"), 6: Cidr("fd00::/64")}
KIND = {4: VXLAN_V4, 6: VXLAN_V6}


def connected(address: Address) -> str | None:
    """Return the device of addresses on the subnet of this node, as the kernel would."""
    if str(address) in (V4[OWN], V6[OWN]):
        return "lo"
    return "eth0" if any(address in Cidr(subnet) for subnet in ("192.168.1.0/24", "fd01::/64")) else None


def facts(name: str, **changes: Any) -> NodeFacts:
    addresses = {4: Address(V4[name]), 6: Address(V6[name])}
    tunnels = {VXLAN_V4: Address(TUNNEL_V4[name]), VXLAN_V6: Address(TUNNEL_V6[name])}
    return NodeFacts(**{"name": name, "addresses": addresses, "tunnels": tunnels, **changes})


def pool(version: int = 4, mode: str = NEVER, **changes: Any) -> RoutedPool:
    kind = "" if mode == NEVER else KIND[version]
    return RoutedPool(**{"name": "pool", "cidr": POOL_CIDR[version], "kind": kind, "mode": mode, **changes})


def local(**changes: Any) -> Local:
    tunnels = {
        kind: Tunnel(kind, f"dev-{kind}", "eth0", Address(underlay), Address(inner), 1450, tunnel_mac(OWN, kind))
        for kind, underlay, inner in ((VXLAN_V4, V4[OWN], TUNNEL_V4[OWN]), (VXLAN_V6, V6[OWN], TUNNEL_V6[OWN]))
    }
    addresses = {4: Address(V4[OWN]), 6: Address(V6[OWN])}
    return Local(**{"node": OWN, "addresses": addresses, "tunnels": tunnels, **changes})


def inputs(**changes: Any) -> Inputs:
    nodes = {name: facts(name) for name in (OWN, NEAR, FAR)}
    return Inputs(**{"nodes": nodes, "pools": (pool(), pool(6, name="pool6")), **changes})


def planned(node: str, version: int = 4, **changes: Any) -> tuple[Plan, Row]:
    """Plan one confirmed block of a node. Return the plan, and the row of the block."""
    found = plan(inputs(**{"claims": {BLOCK[version]: {node: True}}, **changes}), local(), connected)
    return found, found.rows[BLOCK[version]]


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(
    ("mode", "node", "reason"),
    [
        (NEVER, NEAR, Reason.DIRECT),
        (NEVER, FAR, Reason.NOT_CONNECTED),
        (CROSS_SUBNET, NEAR, Reason.DIRECT),
        (CROSS_SUBNET, FAR, Reason.TUNNEL),
        (ALWAYS, NEAR, Reason.TUNNEL),
        (ALWAYS, FAR, Reason.TUNNEL),
    ],
)
def test_ways_of_the_modes(version: int, mode: str, node: str, reason: Reason) -> None:
    found, row = planned(node, version, pools=(pool(version, mode),))
    underlay, inner = (V4, TUNNEL_V4) if version == 4 else (V6, TUNNEL_V6)
    kind = KIND[version]
    ways: dict[Reason, Way | None] = {
        Reason.DIRECT: Direct(Address(underlay[node])),
        Reason.TUNNEL: Tunneled(kind, Address(inner[node])),
        Reason.NOT_CONNECTED: None,
    }
    way = ways[reason]
    assert row == Row(node, reason, way, "pool")
    assert found.wanted.routes == ({} if way is None else {BLOCK[version]: way})
    peer = TunnelPeer(kind, Address(underlay[node]), Address(inner[node]), tunnel_mac(node, kind))
    assert found.wanted.peers == (frozenset({peer}) if reason is Reason.TUNNEL else frozenset())


@pytest.mark.parametrize(
    ("reason", "node", "changes"),
    [
        (Reason.NO_NODE, "unknown", {}),
        (Reason.NO_ADDRESS, NEAR, {"nodes": {NEAR: facts(NEAR, addresses={6: Address(V6[NEAR])})}}),
        (Reason.SAME_ADDRESS, NEAR, {"nodes": {NEAR: facts(NEAR, addresses={4: Address(V4[OWN])})}}),
        (Reason.NO_POOL, FAR, {"pools": ()}),
        (Reason.DIRECT, NEAR, {"pools": ()}),
        (Reason.LOAD_BALANCER, NEAR, {"pools": (pool(is_for_load_balancers=True),)}),
        (Reason.NO_PEER_TUNNEL, FAR, {"pools": (pool(mode=ALWAYS),), "nodes": {FAR: facts(FAR, tunnels={})}}),
        (Reason.PENDING, NEAR, {"claims": {BLOCK[4]: {NEAR: False}}}),
        (Reason.DISPUTED, f"{FAR}, {NEAR}", {"claims": {BLOCK[4]: {NEAR: True, FAR: True}}}),
        (Reason.DIRECT, NEAR, {"claims": {BLOCK[4]: {NEAR: True, FAR: True}}, "owners": {BLOCK[4]: NEAR}}),
        (Reason.DIRECT, NEAR, {"claims": {BLOCK[4]: {NEAR: True, FAR: False}}}),
        (Reason.DISPUTED, f"{FAR}, {NEAR}", {"claims": {BLOCK[4]: {NEAR: True, FAR: True}}, "owners": {BLOCK[4]: "third"}}),
    ],
)
def test_reasons(reason: Reason, node: str, changes: dict[str, Any]) -> None:
    found, row = planned(node, **changes)
    assert (row.node, row.reason) == (node, reason)
    assert (row.way is not None) == (reason is Reason.DIRECT)
    assert set(found.wanted.routes) == ({BLOCK[4]} if row.way else set())


@pytest.mark.parametrize(
    ("reason", "changes"), [(Reason.TUNNELS_OFF, {"use_tunnels": False}), (Reason.NO_OWN_TUNNEL, {"tunnels": {}})]
)
def test_tunnels_that_are_not_there(reason: Reason, changes: dict[str, Any]) -> None:
    wanted = inputs(pools=(pool(mode=ALWAYS),), claims={BLOCK[4]: {NEAR: True}})
    assert plan(wanted, local(**changes), connected).rows == {BLOCK[4]: Row(NEAR, reason, None, "pool")}


def test_own_blocks_are_blackholes() -> None:
    """A block of a single address is the address of a pod."""
    single = Cidr("10.0.9.9/32")
    rows = plan(inputs(claims={BLOCK[4]: {OWN: True}, single: {OWN: True}}), local(), connected).rows
    assert rows == {
        BLOCK[4]: Row(OWN, Reason.OWN, Blackhole(), "pool"),
        single: Row(OWN, Reason.OWN_SINGLE, None, "pool"),
    }


def test_borrowed_addresses_have_routes_of_their_own() -> None:
    """One that a pod of this node has borrowed has the agent's route to the pod."""
    theirs, mine = BLOCK[4].address(1), BLOCK[4].address(2)
    found, _ = planned(FAR, borrowed={theirs: NEAR, mine: OWN}, pools=(pool(mode=CROSS_SUBNET),))
    assert found.wanted.routes == {
        BLOCK[4]: Tunneled(VXLAN_V4, Address(TUNNEL_V4[FAR])),
        theirs.host(): Direct(Address(V4[NEAR])),
    }
    assert found.rows[mine.host()].reason is Reason.LOCAL


def test_a_borrowed_address_wins_over_its_single_block() -> None:
    single = Cidr("10.0.9.9/32")
    found = plan(inputs(claims={single: {FAR: True}}, borrowed={single.first: OWN}), local(), connected)
    assert found.wanted.routes == {}


def test_the_smallest_pool_around_a_block_counts() -> None:
    inner = pool(name="inner", cidr=Cidr("10.0.1.0/25"), mode=ALWAYS)
    tiny = pool(name="tiny", cidr=Cidr("10.0.1.0/27"), mode=ALWAYS)
    assert planned(NEAR, pools=(pool(), inner, tiny))[1].pool == "inner"
    assert planned(NEAR, pools=(pool(), tiny))[1].pool == "pool"


def test_ipip_has_the_address_of_the_node_as_gateway() -> None:
    """The gateway is the other end of the tunnel: no neighbour is needed."""
    own = Tunnel(IPIP, "ipip", "eth0", Address(V4[OWN]), Address(TUNNEL_V4[OWN]), 1480)
    wanted = inputs(pools=(pool(kind=IPIP, mode=ALWAYS),), claims={BLOCK[4]: {FAR: True}})
    found = plan(wanted, local(tunnels={IPIP: own}), connected).wanted
    assert found.routes == {BLOCK[4]: Tunneled(IPIP, Address(V4[FAR]))}
    assert (found.peers, found.tunnels) == (frozenset(), (own,))


def test_an_announced_mac_is_used() -> None:
    """Another program of the node may have chosen another one than the usual."""
    mac = bytes.fromhex("66aabbccddee")
    found, _ = planned(FAR, pools=(pool(mode=ALWAYS),), nodes={FAR: facts(FAR, macs={VXLAN_V4: mac})})
    assert [peer.mac for peer in found.wanted.peers] == [mac]


def test_nat_knows_all_pools() -> None:
    """Pools of load balancers are in neither set."""
    pools = (pool(masquerades=True), pool(6, name="b"), pool(name="c", cidr=Cidr("10.9.0.0/24"), is_for_load_balancers=True))
    expected = Nat(frozenset(POOL_CIDR.values()), frozenset({POOL_CIDR[4]}))
    assert plan(inputs(pools=pools), local(), connected).wanted.nat == expected
    assert plan(inputs(pools=pools), local(use_nat=False), connected).wanted.nat is None


def test_pod_cidrs_replace_blocks() -> None:
    near, own = Cidr("10.5.1.0/24"), Cidr("10.5.0.0/24")
    nodes = {NEAR: facts(NEAR, ranges=(near,)), OWN: facts(OWN, ranges=(own,))}
    found = plan(inputs(nodes=nodes, claims={BLOCK[4]: {NEAR: True}}), local(use_pod_cidr=True), connected)
    assert found.wanted.routes == {near: Direct(Address(V4[NEAR])), own: Blackhole()}


def test_a_pod_cidr_of_two_nodes_has_no_route() -> None:
    both = Cidr("10.5.1.0/24")
    found = plan(inputs(nodes={name: facts(name, ranges=(both,)) for name in (NEAR, OWN)}), local(use_pod_cidr=True), connected)
    assert found.rows == {both: Row(f"{NEAR}, {OWN}", Reason.DISPUTED)}


def test_macs_are_those_of_other_programs() -> None:
    """Both kinds of node can be mixed: `printf node1 | sha1sum`."""
    assert tunnel_mac("node1", VXLAN_V4).hex(":") == "66:f9:37:c3:7e:94"
    assert tunnel_mac("node1", VXLAN_V6) != tunnel_mac("node1", VXLAN_V4)


MODES = st.sampled_from([NEVER, CROSS_SUBNET, ALWAYS])
NAMES = st.sampled_from([OWN, NEAR, FAR, "gone"])
BLOCKS = st.sampled_from([Cidr("10.0.0.0/16").block(number, 26) for number in range(6)])


@given(
    modes=st.dictionaries(st.sampled_from(["10.0.0.0/25", "10.0.0.0/16", "10.0.1.0/24"]), MODES),
    claims=st.dictionaries(BLOCKS, st.dictionaries(NAMES, st.booleans(), min_size=1)),
    owners=st.dictionaries(BLOCKS, NAMES),
    borrowed=st.dictionaries(st.integers(0, 300), NAMES),
)
def test_ways_are_those_of_the_obvious_twin(
    modes: dict[str, str], claims: dict[Cidr, dict[str, bool]], owners: dict[Cidr, str], borrowed: dict[int, str]
) -> None:
    pools = tuple(pool(name=text, cidr=Cidr(text), mode=mode) for text, mode in modes.items())
    given_borrowed = {Cidr("10.0.0.0/16").address(number): node for number, node in borrowed.items()}
    found = plan(inputs(pools=pools, claims=claims, owners=owners, borrowed=given_borrowed), local(), connected)
    expected = {network: twin(network, _owner(hosts, owners.get(network, "")), modes) for network, hosts in claims.items()}
    expected |= {address.host(): twin(address.host(), node, modes) for address, node in given_borrowed.items()}
    assert found.wanted.routes == {network: way for network, way in expected.items() if way is not None}


def _owner(hosts: dict[str, bool], owner: str) -> str:
    confirmed = {name for name, is_confirmed in hosts.items() if is_confirmed}
    if len(confirmed) > 1:
        confirmed &= {owner}
    return confirmed.pop() if confirmed else "gone"


def twin(network: Cidr, node: str, modes: dict[str, str]) -> Direct | Tunneled | Blackhole | None:
    around = [Cidr(text) for text in modes if network in Cidr(text)]
    mode = modes[str(max(around, key=lambda cidr: cidr.length))] if around else NEVER
    if node == OWN:
        return None if network.length == 32 else Blackhole()
    if node == "gone" or (node == FAR and mode == NEVER):
        return None
    if mode == ALWAYS or node == FAR:
        return Tunneled(VXLAN_V4, Address(TUNNEL_V4[node]))
    return Direct(Address(V4[node]))


def test_a_large_cluster_is_planned_quickly() -> None:
    """1,000 nodes and 4,000 blocks: the plan is a small part of the 150 ms of a full comparison."""
    nodes = {
        f"n{number}": NodeFacts(
            f"n{number}",
            {4: Cidr("192.168.0.0/16").address(number + 2)},
            {VXLAN_V4: Cidr("10.200.0.0/16").address(number)},
        )
        for number in range(1000)
    }
    claims = {Cidr("10.0.0.0/12").block(number, 26): {f"n{number % 1000}": True} for number in range(4000)}
    wanted = Inputs(nodes, claims, (pool(cidr=Cidr("10.0.0.0/12"), mode=ALWAYS),))
    seconds = []
    for _ in range(3):
        began = time.process_time()
        found = plan(wanted, local(node="n0", addresses={4: Address("192.168.0.2")}), connected)
        seconds.append(time.process_time() - began)
    assert len(found.wanted.routes) == 4000
    assert min(seconds) < 0.08
