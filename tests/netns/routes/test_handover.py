"""Making way for another program: which own routes, tunnels and NAT stay."""

import shutil
from pathlib import Path

import pytest

from harness.netns import Netns
from svc._core.cidr import Address, Cidr
from svc.names import DEFAULT
from svc.routes.applied import Applied
from svc.routes.kernel_part import KernelPart
from svc.routes.wanted import VXLAN_V4, Blackhole, Direct, Nat, Tunnel, Tunneled, TunnelPeer, Wanted, Way

pytestmark = pytest.mark.root

POOL, POOL6 = Cidr("10.65.0.0/16"), Cidr("fd00::/64")
NEAR, NEAR6, OWN, FAR = Cidr("10.65.1.0/26"), Cidr("fd00::40/122"), Cidr("10.65.2.0/26"), Cidr("10.65.3.0/26")
BORROWED = Cidr("10.65.1.9/32")
GATEWAY, GATEWAY6 = Direct(Address("192.168.0.2")), Direct(Address("fd99::2"))
ROUTES: dict[Cidr, Way] = {NEAR: GATEWAY, NEAR6: GATEWAY6, OWN: Blackhole(), BORROWED: Direct(Address("192.168.0.3"))}
MAC = bytes.fromhex("66aabbccddee")
NAT = Nat(frozenset({POOL}), frozenset({POOL}))

TUNNELED = Wanted(
    {FAR: Tunneled(VXLAN_V4, Address("10.65.9.9"))},
    frozenset({TunnelPeer(VXLAN_V4, Address("192.168.0.9"), Address("10.65.9.9"), MAC)}),
    (Tunnel(VXLAN_V4, DEFAULT.vxlan_device, "up0", Address("192.168.0.1"), Address("10.65.8.8"), 1430, MAC),),
)


def stand_aside(part: KernelPart, wanted: Wanted, *, keeps_tunnels: bool = True, may_delete: bool = True) -> Applied:
    part.traces([POOL, POOL6])
    return part.stand_aside(wanted, [POOL, POOL6], keeps_tunnels=keeps_tunnels, may_delete=may_delete)


def own_metrics(node: Netns) -> dict[str, int]:
    """Return the metric of each own route."""
    found = [each for version in ("-4", "-6") for each in node.ip(version, "route", "show", "proto", "83")]
    return {route["dst"]: route.get("metric", 0) for route in found}


def used_route(node: Netns, address: str) -> dict[str, object]:
    (route,) = node.ip("route", "get", address)
    return dict(route)


def test_own_routes_stay_behind_those_of_the_other_program(part: KernelPart, node: Netns) -> None:
    """It can add a route to the same network without a replacement, and the kernel uses it at once."""
    part.apply(Wanted(ROUTES), may_delete=True)
    stand_aside(part, Wanted(ROUTES))
    last = 2**32 - 2
    assert own_metrics(node) == {str(NEAR): last, str(NEAR6): last, str(OWN): last + 1, "10.65.1.9": last}
    assert used_route(node, "10.65.1.1")["gateway"] == "192.168.0.2"
    node.run("ip", "route", "add", str(NEAR), "via", "192.168.0.7", "proto", "80")
    assert used_route(node, "10.65.1.1")["gateway"] == "192.168.0.7"
    node.run("ip", "-6", "route", "add", str(NEAR6), "via", "fd99::7", "proto", "80")
    assert used_route(node, "fd00::41")["gateway"] == "fd99::7"


def test_routes_go_when_the_other_program_has_its_own(part: KernelPart, node: Netns) -> None:
    """A route around a block is enough. A borrowed address needs one of its own."""
    part.apply(Wanted(ROUTES), may_delete=True)
    node.run("ip", "route", "add", "10.65.1.0/24", "via", "192.168.0.7", "proto", "12")
    stand_aside(part, Wanted(ROUTES))
    assert own_metrics(node).keys() == {str(NEAR6), str(OWN), "10.65.1.9"}
    node.run("ip", "route", "add", "10.65.1.9/32", "via", "192.168.0.7", "proto", "12")
    node.run("ip", "route", "add", "blackhole", str(OWN), "proto", "80")
    node.run("ip", "-6", "route", "add", str(NEAR6), "via", "fd99::7", "proto", "80")
    stand_aside(part, Wanted(ROUTES))
    assert own_metrics(node) == {}


@pytest.mark.parametrize(
    "other", ["10.0.0.0/8 via 192.168.0.7", "default via 192.168.0.7", "10.77.0.0/16 via 192.168.0.7", "10.65.1.7/32 dev pod0"]
)
def test_other_routes_are_not_those_of_a_block(part: KernelPart, node: Netns, other: str) -> None:
    """Those outside of the pools, and those of the agent to its pods."""
    node.run("sh", "-c", "ip link add pod0 address ee:ee:ee:ee:ee:ee type veth peer name pod1; ip link set pod0 up")
    part.apply(Wanted(ROUTES), may_delete=True)
    node.run("ip", "route", "add", *other.split(), "proto", "80")
    stand_aside(part, Wanted(ROUTES))
    assert str(NEAR) in own_metrics(node)


def test_wrong_routes_go_if_the_datastore_says_so(part: KernelPart, node: Netns) -> None:
    """Nothing corrects them any more. They are counted before, so that a wiped datastore removes nothing at once."""
    part.apply(Wanted(ROUTES), may_delete=True)
    moved = Wanted({NEAR: Direct(Address("192.168.0.8")), NEAR6: GATEWAY6, OWN: Blackhole()})
    assert stand_aside(part, moved, may_delete=False).unwanted == 2
    assert own_metrics(node).keys() == {str(NEAR), str(NEAR6), str(OWN), "10.65.1.9"}
    assert stand_aside(part, moved).unwanted == 2
    assert own_metrics(node).keys() == {str(NEAR6), str(OWN)}


def test_nothing_is_added(part: KernelPart, node: Netns) -> None:
    before = node.ip("link")
    stand_aside(part, Wanted(ROUTES, nat=NAT))
    stand_aside(part, TUNNELED)
    assert own_metrics(node) == {}
    assert node.ip("link") == before
    assert "svc-nat" not in node.run("nft", "list", "tables").stdout


def test_tunnels_stay_while_they_are_used_and_wait_for_nothing_longer(part: KernelPart, node: Netns) -> None:
    """Another program cannot make a device with the same numbers beside an own one."""
    part.apply(TUNNELED, may_delete=True)
    stand_aside(part, TUNNELED)
    assert DEFAULT.vxlan_device in node.links()
    assert str(FAR) in own_metrics(node)
    stand_aside(part, TUNNELED, keeps_tunnels=False)
    assert DEFAULT.vxlan_device not in node.links()
    assert own_metrics(node) == {}
    node.run("sh", "-c", "ip link add vxlan.calico type vxlan id 4096 dev up0 dstport 4789 nolearning")


def test_unused_tunnel_goes_at_once(part: KernelPart, node: Netns) -> None:
    part.apply(TUNNELED, may_delete=True)
    stand_aside(part, TUNNELED)
    node.run("ip", "route", "add", str(FAR), "via", "192.168.0.7", "proto", "80")
    stand_aside(part, TUNNELED)
    assert DEFAULT.vxlan_device not in node.links()


def test_work_begins_again_with_the_usual_metrics(part: KernelPart, node: Netns) -> None:
    part.apply(Wanted(ROUTES), may_delete=True)
    before = own_metrics(node)
    stand_aside(part, Wanted(ROUTES))
    assert own_metrics(node) != before
    part.apply(Wanted(ROUTES), may_delete=True)
    assert own_metrics(node) == before


def test_nat_stays_until_the_other_program_has_chains(part: KernelPart, node: Netns) -> None:
    part.apply(Wanted(ROUTES, nat=NAT), may_delete=True)
    stand_aside(part, Wanted(ROUTES, nat=NAT))
    assert "svc-nat" in node.run("nft", "list", "tables").stdout
    node.run("iptables-nft", "-t", "nat", "-N", "FLANNEL-POSTRTG")
    stand_aside(part, Wanted(ROUTES, nat=NAT), may_delete=False)  # no route has to go
    assert "svc-nat" not in node.run("nft", "list", "tables").stdout


@pytest.mark.parametrize(("program", "family"), [("iptables-legacy", "ip"), ("ip6tables-legacy", "ip6")])
def test_chains_of_older_programs_are_traces(part: KernelPart, node: Netns, program: str, family: str) -> None:
    """They are not in nftables. To look for them makes no table."""
    assert part.traces([POOL]) == []
    names = f"/proc/thread-self/net/{family}_tables_names"
    assert "nat" not in node.run("cat", names, check=False).stdout
    node.run(program, "-t", "nat", "-N", "KUBE-POSTROUTING")
    assert part.traces([POOL]) == []
    node.run(program, "-t", "nat", "-N", "cali-POSTROUTING")
    node.run(program, "-t", "nat", "-A", "cali-POSTROUTING", "-j", "MASQUERADE")
    assert part.traces([POOL]) == [f"NAT chain 'cali-POSTROUTING' of another program in table '{family} nat'"]
    node.run(program, "-t", "nat", "-F")
    node.run(program, "-t", "nat", "-X")
    assert part.traces([POOL]) == []


def test_table_that_cannot_be_removed_is_a_problem(
    part: KernelPart, node: Netns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Packets would be masqueraded twice. It is removed with the next attempt."""
    part.apply(Wanted(ROUTES, nat=NAT), may_delete=True)
    node.run("iptables-nft", "-t", "nat", "-N", "FLANNEL-POSTRTG")
    program = tmp_path / "nft"
    program.write_text(f'#!/bin/sh\ncase "$*" in -f*) echo broken >&2; exit 1;; esac\nexec {shutil.which("nft")} "$@"\n')
    program.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path), prepend=":")
        assert stand_aside(part, Wanted(ROUTES, nat=NAT)).problems == ("nft failed: broken",)
        assert "svc-nat" in node.run("nft", "list", "tables").stdout
    assert stand_aside(part, Wanted(ROUTES, nat=NAT)).problems == ()
    assert "svc-nat" not in node.run("nft", "list", "tables").stdout
