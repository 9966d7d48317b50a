"""VXLAN devices of svc-routes in a real kernel, read by pyroute2, and the kernel without IPIP."""

import errno
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from pyroute2.netlink.nlsocket import NetlinkRequest  # type: ignore[import-untyped]  # noqa: TID251
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # type: ignore[import-untyped]  # noqa: TID251

from harness.enter_netns import entered
from harness.netns import Netns
from harness.route_reader import SeenDevice, SeenRoute, device, fdb, neighbours, own_routes
from harness.skips import HAS_IPIP
from svc._core import rtnl
from svc._core.cidr import Address, Cidr
from svc.names import DEFAULT
from svc.routes import devices
from svc.routes.applied import Applied
from svc.routes.kernel_part import KernelPart
from svc.routes.tunnel_values import TunnelProblem
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6, Direct, Tunnel, Tunneled, TunnelPeer, Wanted

pytestmark = pytest.mark.root

BLOCK, BLOCK6 = Cidr("10.65.0.0/26"), Cidr("fd00::/122")
MAC, PEER_MAC, OTHER_MAC = bytes.fromhex("660000000001"), bytes.fromhex("660000000002"), bytes.fromhex("660000000003")
TUNNEL = Tunnel(VXLAN_V4, "vxlan.svc", "up0", Address("192.168.0.1"), Address("10.65.9.1"), 0, MAC)
TUNNEL6 = Tunnel(VXLAN_V6, "vxlan-v6.svc", "up0", Address("fd99::1"), Address("fd00::901"), 0, MAC)
PEER = TunnelPeer(VXLAN_V4, Address("192.168.0.2"), Address("10.65.9.2"), PEER_MAC)
PEER6 = TunnelPeer(VXLAN_V6, Address("fd99::2"), Address("fd00::902"), PEER_MAC)
ROUTES = {BLOCK: Tunneled(VXLAN_V4, PEER.address), BLOCK6: Tunneled(VXLAN_V6, PEER6.address)}
DEVICE = SeenDevice(1450, MAC.hex(":"), "svc-routes", True, 4096, 4789, 0, "192.168.0.1", "up0")
DEVICE6 = replace(DEVICE, mtu=1430, local="fd99::1")
THROUGH = SeenRoute(str(BLOCK), str(PEER.address), "vxlan.svc", onlink=True)
THROUGH6 = SeenRoute(str(BLOCK6), str(PEER6.address), "vxlan-v6.svc", metric=1024, onlink=True)
TIMEOUT_SECONDS = 20.0
SAME = "type vxlan id 4096 dstport 4789 local 192.168.0.1 dev up0 nolearning"
REMADE, MARKED = "ip link del vxlan.svc; ip link add vxlan.svc type", "; ip link set vxlan.svc alias svc-routes"
NOT_READY = "tunnel {!r} is not ready: {}"


def apply(
    part: KernelPart,
    tunnels: Iterable[Tunnel] = (TUNNEL, TUNNEL6),
    peers: Iterable[TunnelPeer] = (PEER, PEER6),
    *,
    may_delete: bool = True,
) -> Applied:
    return part.apply(Wanted(ROUTES, frozenset(peers), tuple(tunnels)), may_delete=may_delete)


def test_tunnels_of_both_families(part: KernelPart, node: Netns) -> None:
    """Device, address, neighbour, fdb entry and on-link route are those that Calico's nodes have."""
    applied = apply(part)
    assert (dict(applied.routes), dict(applied.failures), applied.problems) == (ROUTES, {}, ())
    assert (device("vxlan.svc"), device("vxlan-v6.svc")) == (DEVICE, DEVICE6)
    assert (node.addresses("vxlan.svc"), node.addresses("vxlan-v6.svc")) == (["10.65.9.1/32"], ["fd00::901/128"])
    assert node.addresses("vxlan.svc", "link") == node.addresses("vxlan-v6.svc", "link") == []
    assert neighbours("vxlan.svc") == {("10.65.9.2", PEER_MAC.hex(":"))}
    assert neighbours("vxlan-v6.svc", 10) == {("fd00::902", PEER_MAC.hex(":"))}
    assert fdb("vxlan.svc") == {("192.168.0.2", PEER_MAC.hex(":"))}
    assert fdb("vxlan-v6.svc") == {("fd99::2", PEER_MAC.hex(":"))}
    assert own_routes() == {THROUGH, THROUGH6}


def test_second_process_keeps_the_devices(part: KernelPart, node: Netns) -> None:
    """Their indexes stay, so no packet is lost by a restart."""
    apply(part)
    before = node.ip("link")
    second = KernelPart(DEFAULT)
    try:
        assert dict(apply(second).routes) == ROUTES
    finally:
        second.close()
    assert node.ip("link") == before


def test_peer_that_changes_is_replaced(part: KernelPart) -> None:
    """A node has another MAC address, another underlay address, or has gone."""
    apply(part)
    apply(part, peers=[replace(PEER, mac=OTHER_MAC), PEER6], may_delete=False)
    assert neighbours("vxlan.svc") == {("10.65.9.2", OTHER_MAC.hex(":"))}
    assert fdb("vxlan.svc") == {("192.168.0.2", mac.hex(":")) for mac in (PEER_MAC, OTHER_MAC)}
    apply(part, peers=[replace(PEER, mac=OTHER_MAC, underlay=Address("192.168.0.3")), PEER6])
    assert fdb("vxlan.svc") == {("192.168.0.3", OTHER_MAC.hex(":"))}
    apply(part, peers=[])
    assert (neighbours("vxlan.svc"), fdb("vxlan.svc"), neighbours("vxlan-v6.svc", 10)) == (set(), set(), set())


@pytest.mark.parametrize(
    "damage",
    [
        "ip link del vxlan.svc",
        "ip link set vxlan.svc down && ip link set vxlan.svc name other && ip link set other up",
        "ip link set vxlan.svc mtu 1300",
        "ip link set vxlan.svc down",
        "ip link set vxlan.svc address 66:00:00:00:00:09",
        "ip address flush dev vxlan.svc",
        "ip address add 10.65.9.77/32 dev vxlan.svc",
        "ip neigh del 10.65.9.2 dev vxlan.svc",
        "ip neigh replace 10.65.9.2 lladdr 66:00:00:00:00:09 nud permanent dev vxlan.svc",
        "bridge fdb del 66:00:00:00:00:02 dev vxlan.svc self",
        "ip route flush proto 83",
        f"{REMADE} vxlan id 4096 dstport 4790 {MARKED}",
        f"{REMADE} bridge {MARKED}",
    ],
)
def test_damage_by_hand_is_repaired(part: KernelPart, node: Netns, damage: str) -> None:
    """The kernel tells of it. No right to delete routes is necessary."""
    apply(part)
    node.run("sh", "-c", damage)
    assert part.changed(TIMEOUT_SECONDS)
    applied = apply(part, may_delete=False)
    assert (dict(applied.routes), applied.problems) == (ROUTES, ())
    assert device("vxlan.svc") == DEVICE
    assert node.addresses("vxlan.svc") == ["10.65.9.1/32"]
    assert neighbours("vxlan.svc") == {("10.65.9.2", PEER_MAC.hex(":"))}
    assert ("192.168.0.2", PEER_MAC.hex(":")) in fdb("vxlan.svc")
    assert own_routes() == {THROUGH, THROUGH6}
    assert device("other") is None


def test_mtu_follows_the_parent(part: KernelPart, node: Netns) -> None:
    """An MTU that was given stays."""
    apply(part)
    node.run("ip", "link", "set", "up0", "mtu", "1400")
    assert part.changed(TIMEOUT_SECONDS)
    apply(part, [TUNNEL, replace(TUNNEL6, mtu=1280)])
    assert (device("vxlan.svc"), device("vxlan-v6.svc")) == (replace(DEVICE, mtu=1350), replace(DEVICE6, mtu=1280))


def test_mtu_that_is_too_small_is_a_problem(part: KernelPart, node: Netns) -> None:
    """The tunnel of the other family works."""
    node.run("ip", "link", "set", "up0", "mtu", "1340")
    applied = apply(part)
    assert applied.problems == (
        NOT_READY.format("vxlan-v6.svc", "interface 'up0' has MTU 1340, which leaves 1270 of the necessary 1280"),
    )
    assert (set(applied.routes), applied.failures[BLOCK6].errno) == ({BLOCK}, errno.ENODEV)


def test_other_settings_recreate_an_own_device(part: KernelPart, node: Netns) -> None:
    """They are the address of the node, and the interface by which it sends."""
    apply(part)
    node.run("ip", "address", "add", "192.168.0.7/16", "dev", "up0")
    apply(part, [replace(TUNNEL, underlay=Address("192.168.0.7"), parent="up1"), TUNNEL6])
    assert device("vxlan.svc") == replace(DEVICE, local="192.168.0.7", parent="up1")
    assert own_routes() == {THROUGH, THROUGH6}


@pytest.mark.parametrize(
    "other",
    ["type bridge", SAME, "type vxlan id 7 dstport 4789"],
)
def test_foreign_device_of_the_same_name_stays(part: KernelPart, node: Netns, other: str) -> None:
    """Also one with the same settings, as long as it is up. The other tunnel works."""
    node.run("ip", "link", "add", "vxlan.svc", *other.split())
    node.run("ip", "link", "set", "vxlan.svc", "up")
    before = node.ip("link", "show", "dev", "vxlan.svc")
    applied = apply(part)
    assert applied.problems == (
        NOT_READY.format("vxlan.svc", "a device of this name exists, and svc-routes did not make it: delete or rename it"),
    )
    assert (set(applied.routes), applied.failures[BLOCK].errno) == ({BLOCK6}, errno.ENODEV)
    part.clean()
    assert node.ip("link", "show", "dev", "vxlan.svc") == before


def test_foreign_device_with_the_same_number_is_a_problem(part: KernelPart, node: Netns) -> None:
    """It may be left from the former network. It works after the deletion of that device."""
    node.run("ip", "link", "add", "vxlan.calico", *SAME.split())
    (problem,) = apply(part, [TUNNEL]).problems
    assert problem == NOT_READY.format(
        "vxlan.svc", "another device has VNI 4096 on port 4789: delete that of the former network"
    )
    node.run("ip", "link", "del", "vxlan.calico")
    assert part.changed(TIMEOUT_SECONDS)
    assert apply(part).problems == ()


def test_device_without_its_alias_is_taken_up(part: KernelPart, node: Netns) -> None:
    """A process that was killed after the creation has left it, down."""
    node.run("ip", "link", "add", "vxlan.svc", "address", MAC.hex(":"), *SAME.split())
    assert apply(part).problems == ()
    assert device("vxlan.svc") == DEVICE


def test_missing_parent_is_a_problem(part: KernelPart) -> None:
    """Only the routes through this tunnel fail."""
    applied = apply(part, [TUNNEL, replace(TUNNEL6, parent="gone0")])
    assert applied.problems == (NOT_READY.format("vxlan-v6.svc", "interface 'gone0' does not exist"),)
    assert set(applied.routes) == {BLOCK}


def test_kernel_without_ipip(part: KernelPart) -> None:
    """The kernel of the test bed has none. Those routes fail, others work."""
    ipip = Tunnel(IPIP, "ipip.svc", "up0", Address("192.168.0.1"), Address("10.65.9.3"), 0)
    through = Cidr("10.65.1.0/26")
    routes = {**ROUTES, through: Tunneled(IPIP, Address("192.168.0.2"))}
    applied = part.apply(Wanted(routes, frozenset({PEER, PEER6}), (TUNNEL, TUNNEL6, ipip)), may_delete=True)
    if not applied.problems:
        pytest.skip(HAS_IPIP)
    assert applied.problems == (
        NOT_READY.format("ipip.svc", "this kernel has no IPIP: load its module, or choose another mode in the pools"),
    )
    assert (dict(applied.routes), set(applied.failures)) == (ROUTES, {through})


def test_routes_of_a_tunnel_that_is_not_ready_stay(part: KernelPart, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device cannot be checked for a moment: no route through it is deleted, also by a new process."""
    apply(part)

    def refuse(*_: object) -> bool:
        raise OSError(errno.ENOBUFS, "no room")

    monkeypatch.setattr(devices, "has_settings", refuse)
    second = KernelPart(DEFAULT)
    try:
        applied = apply(second)
    finally:
        second.close()
    assert (len(applied.problems), set(applied.failures), applied.unwanted) == (2, {BLOCK, BLOCK6}, 0)
    assert own_routes() == {THROUGH, THROUGH6}


@pytest.mark.parametrize("around", [False, True])
def test_direct_routes_become_routes_through_a_tunnel(part: KernelPart, node: Netns, *, around: bool) -> None:
    """The kernel refuses an IPv6 route while its gateway is in a network with a route on another link, also a larger one."""
    end = PEER6.address
    blocks = {Cidr("fd00::900/122"): end, BLOCK6: end, end.host(): end, BLOCK: PEER.address}
    if around:
        node.run("ip", "-6", "route", "add", "fd00::/64", "dev", "up0", "proto", "static")
    else:
        direct = {cidr: Direct(PEER.underlay if cidr.version == 4 else PEER6.underlay) for cidr in blocks}
        assert dict(part.apply(Wanted(direct), may_delete=True).routes) == direct
    through = {cidr: Tunneled(VXLAN_V4 if cidr.version == 4 else VXLAN_V6, address) for cidr, address in blocks.items()}
    applied = part.apply(Wanted(through, frozenset({PEER, PEER6}), (TUNNEL, TUNNEL6)), may_delete=False)
    assert (dict(applied.routes), dict(applied.failures), applied.unwanted) == (through, {}, 0)
    expected = {(str(cidr), "vxlan.svc" if cidr.version == 4 else "vxlan-v6.svc") for cidr in blocks}
    assert {(route.network, route.device) for route in own_routes()} == expected
    part.forget()
    assert dict(part.apply(Wanted(through, frozenset({PEER, PEER6}), (TUNNEL, TUNNEL6)), may_delete=True).routes) == through
    assert len(own_routes()) == len(blocks)


def test_tunnel_that_no_pool_needs_is_deleted(part: KernelPart, node: Netns) -> None:
    """It stays without the right to delete."""
    apply(part)
    part.apply(Wanted({}), may_delete=False)
    assert {"vxlan.svc", "vxlan-v6.svc"} <= set(node.links())
    part.apply(Wanted({}), may_delete=True)
    assert sorted(node.links()) == ["up0", "up1"]


def test_clean_removes_the_devices(part: KernelPart, node: Netns) -> None:
    """Routes, peers and addresses go with them."""
    apply(part)
    part.clean()
    assert sorted(node.links()) == ["up0", "up1"]
    assert own_routes() == set()


def test_packets_pass_a_tunnel(part: KernelPart, node: Netns) -> None:
    """Two namespaces ping each other through it, in both families."""
    with Netns("node2") as other:
        node.run("ip", "link", "set", "up1", "netns", other.name)
        for command in (
            "link set lo up",
            "link set up1 up",
            "address add 192.168.0.2/16 dev up1",
            "-6 address add fd99::2/64 dev up1 nodad",
        ):
            other.run("ip", *command.split())
        apply(part)
        with entered(other):
            there = KernelPart(DEFAULT)
            ends = [
                replace(TUNNEL, parent="up1", underlay=PEER.underlay, address=PEER.address, mac=PEER_MAC),
                replace(TUNNEL6, parent="up1", underlay=PEER6.underlay, address=PEER6.address, mac=PEER_MAC),
            ]
            peers = [TunnelPeer(t.kind, t.underlay, t.address, t.mac) for t in (TUNNEL, TUNNEL6)]
            back = {t.address.host(): Tunneled(t.kind, t.address) for t in (TUNNEL, TUNNEL6)}
            assert there.apply(Wanted(back, frozenset(peers), tuple(ends)), may_delete=True).failures == {}
            there.close()
        ahead = {**ROUTES, PEER.address.host(): ROUTES[BLOCK], PEER6.address.host(): ROUTES[BLOCK6]}
        assert part.apply(Wanted(ahead, frozenset({PEER, PEER6}), (TUNNEL, TUNNEL6)), may_delete=True).failures == {}
        for address in (PEER.address, PEER6.address):
            node.run("ping", "-c", "1", "-W", "5", str(address))


def test_ipip_device_is_asked_for_by_these_bytes(node: Netns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with IPIP makes the device of them: kind, link, own end, and no other end."""
    sent: list[bytes] = []
    send = NetlinkRequest.send

    async def recorded(request: Any) -> Any:
        length = await send(request)  # encodes the message
        sent.append(bytes(request.msg.data))
        return length

    monkeypatch.setattr(NetlinkRequest, "send", recorded)
    with suppress(TunnelProblem):
        devices.create(Tunnel(IPIP, "ipip.svc", "up0", Address("192.168.0.1"), Address("10.65.9.3"), 0), 7, 1480)
    creation = next(data for data in sent if struct.unpack_from("=H", data, 4)[0] == rtnl.RTM_NEWLINK)
    assert struct.unpack_from("=H", creation, 6)[0] == 0x605  # REQUEST, ACK, EXCL, CREATE
    message = ifinfmsg(creation)
    message.decode()
    info = message.get_attr("IFLA_LINKINFO")
    assert (message["index"], message["flags"], info.get_attr("IFLA_INFO_KIND")) == (0, 0, "ipip")
    assert (message.get_attr("IFLA_IFNAME"), message.get_attr("IFLA_MTU")) == ("ipip.svc", 1480)
    link, local = bytes.fromhex("08000100 07000000"), bytes.fromhex("08000200 c0a80001")  # IFLA_IPTUN_LINK, IFLA_IPTUN_LOCAL
    data = bytes.fromhex("14000200") + link + local
    assert data in creation
    assert dict(info.get_attr("IFLA_INFO_DATA")["attrs"]) == {"IFLA_IPIP_LINK": 7, "IFLA_IPIP_LOCAL": "192.168.0.1"}


def test_missing_package_is_named(part: KernelPart, monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes without a tunnel need no package."""
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    monkeypatch.delitem(sys.modules, "svc.routes.devices", raising=False)
    monkeypatch.delattr("svc.routes.devices", raising=False)
    (problem,) = apply(part, [TUNNEL]).problems
    assert problem == NOT_READY.format(
        "vxlan.svc", f"pyroute2 is not installed: install the extra routes: {sys.executable} -m pip install 'svc-cni[routes]'"
    )
