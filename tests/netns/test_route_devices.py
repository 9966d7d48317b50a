"""Faults of devices and of programs that svc-routes uses, over a real kernel: each is repaired, and nothing else is changed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.ipam import put, put_affinity, put_pool
from harness.route_world import World, eventually, one_world
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.routes import program

pytestmark = pytest.mark.root

BLOCK, BLOCK6 = "10.0.0.0/26", "fd65::40/122"
TUNNEL = "vxlan.svc"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield a node with a peer, whose block has a route."""
    with one_world(tmp_path) as found:
        found.add_node("n1", "198.18.0.2")
        put_affinity(found.store, BLOCK, node="n1")
        yield found


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let full comparisons follow each other at once."""
    monkeypatch.setattr(program, "COMPARE_SECONDS", 0.3)


def reasons(world: World) -> dict[str, str]:
    return {str(network): reason.name for network, _, reason, _ in world.telemetry.report.reasons()}


def is_routed(world: World) -> bool:
    return BLOCK in world.own_routes() and reasons(world).get(BLOCK) in ("DIRECT", "TUNNEL")


def use_tunnel(world: World) -> None:
    """Have the peer reached through a tunnel only."""
    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    spec = {"addresses": [{"address": "198.18.0.2", "type": "InternalIP"}], "ipv4VXLANTunnelAddr": "10.0.0.1"}
    put(world.store, ResourceKey("Node", "n1"), Resource("Node", {"name": "n1", "uid": "n1"}, spec))


def tunnel(world: World) -> dict[str, Any]:
    """Return the link of the tunnel; empty if it does not exist."""
    links = {link["ifname"]: link for link in world.netns.ip("-d", "link")}
    return dict(links.get(TUNNEL, {}))


def peers(world: World) -> tuple[int, int]:
    """Return how many permanent neighbours and fdb entries the tunnel has."""
    neighbours = world.netns.ip("neighbour", "show", "dev", TUNNEL, "nud", "permanent")
    entries = world.netns.run("bridge", "fdb", "show", "dev", TUNNEL).stdout
    return len(neighbours), entries.count(" dst ")


def test_interface_that_goes_down_and_up(world: World) -> None:
    """The kernel drops the routes of an interface that is down. The reason says that the node is not connected."""
    with world.running():
        assert eventually(lambda: is_routed(world))
        world.netns.ip("link", "set", "uplink", "down")
        assert eventually(lambda: reasons(world)[BLOCK] == "NOT_CONNECTED")
        assert BLOCK not in world.own_routes()
        world.netns.ip("link", "set", "uplink", "up")
        assert eventually(lambda: is_routed(world))


@pytest.mark.parametrize("has_tunnel", [False, True])
def test_interface_that_is_renamed(world: World, has_tunnel: bool) -> None:
    """Routes and tunnel stay: the kernel knows the interface by its number."""
    if has_tunnel:
        use_tunnel(world)
    with world.running():
        assert eventually(lambda: is_routed(world))
        before, ways = tunnel(world).get("ifindex"), set(world.own_routes())
        world.netns.run("sh", "-c", "ip link set uplink down && ip link set uplink name renamed && ip link set renamed up")
        assert eventually(lambda: is_routed(world) and ways <= set(world.own_routes()))
        assert eventually(lambda: world.telemetry.report.problems == ())
        assert tunnel(world).get("ifindex") == before


def test_interface_with_another_mtu(world: World) -> None:
    """Tunnel and the file for pods follow."""
    use_tunnel(world)
    world.netns.run("sh", "-c", "ip link set uplink mtu 1400")
    with world.running():
        assert eventually(lambda: tunnel(world).get("mtu") == 1350)
        before = tunnel(world)["ifindex"]
        world.netns.ip("link", "set", "uplink", "mtu", "1300")
        assert eventually(lambda: tunnel(world)["mtu"] == 1250)
        assert eventually(lambda: (world.folder / "mtu").read_text() == "1250\n")
        assert tunnel(world)["ifindex"] == before


def test_interface_that_is_deleted_and_made_again(world: World) -> None:
    with world.running():
        assert eventually(lambda: is_routed(world))
        world.netns.ip("link", "delete", "uplink")
        assert eventually(lambda: reasons(world)[BLOCK] == "NOT_CONNECTED")
        world.netns.run(
            "sh", "-c", "ip link add uplink type bridge; ip link set uplink up; ip address add 198.18.0.1/16 dev uplink"
        )
        assert eventually(lambda: is_routed(world))


@pytest.mark.parametrize("damage", ["ip link delete vxlan.svc", "ip link set vxlan.svc down", "ip route flush proto 83"])
def test_damaged_tunnel_is_repaired(world: World, damage: str) -> None:
    """With its peers and routes."""
    use_tunnel(world)
    with world.running():
        assert eventually(lambda: is_routed(world))
        assert eventually(lambda: peers(world) == (1, 1))
        world.netns.run("sh", "-c", damage)
        assert eventually(lambda: is_routed(world) and "UP" in tunnel(world).get("flags", ()))
        assert eventually(lambda: peers(world) == (1, 1))


def test_foreign_tunnel_of_the_same_number_goes_away(world: World) -> None:
    """The problem names the cause while it is there."""
    use_tunnel(world)
    world.netns.run("sh", "-c", "ip link add other type vxlan id 4096 dev uplink dstport 4789 nolearning")
    with world.running():
        assert eventually(lambda: any("another device has VNI 4096" in each for each in world.telemetry.report.problems))
        assert reasons(world)[BLOCK] == "REFUSED"
        world.netns.ip("link", "delete", "other")
        assert eventually(lambda: is_routed(world))


def test_foreign_route_goes_away(world: World) -> None:
    world.netns.ip("route", "add", BLOCK, "via", "198.18.0.9", "proto", "12", "metric", "50")
    with world.running():
        assert eventually(lambda: reasons(world).get(BLOCK) == "FOREIGN")
        assert world.own_routes() == {}
        world.netns.ip("route", "delete", BLOCK, "proto", "12")
        assert eventually(lambda: is_routed(world))


@pytest.mark.usefixtures("short_times")
@pytest.mark.parametrize("damage", ["delete table inet svc-nat", "flush ruleset"])
def test_table_that_is_removed_comes_back(world: World, damage: str) -> None:
    put_pool(world.store, "pool", "10.0.0.0/8", natOutgoing=True)

    def has_rule() -> bool:
        return "masquerade" in world.netns.run("nft", "list", "ruleset").stdout

    with world.running(use_nat=True):
        assert eventually(has_rule)
        world.netns.run("nft", damage)
        assert eventually(has_rule)


@pytest.mark.usefixtures("short_times")
def test_missing_nft_stops_no_route(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The problem is reported, and ends when the program is there."""
    path = os.environ["PATH"]
    put_pool(world.store, "pool", "10.0.0.0/8", natOutgoing=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with world.running(use_nat=True):
        assert eventually(lambda: any("nft is not installed" in each for each in world.telemetry.report.problems))
        assert eventually(lambda: reasons(world).get(BLOCK) == "DIRECT")
        monkeypatch.setenv("PATH", path)
        assert eventually(lambda: world.telemetry.report.problems == ())
        assert is_routed(world)
        assert "masquerade" in world.netns.run("nft", "list", "ruleset").stdout


def test_ipv6_that_is_turned_off_and_on(world: World) -> None:
    """Routes of IPv4 stay. Those of IPv6 have a reason, and come back."""
    world.netns.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.all.keep_addr_on_down=1")
    world.netns.run("ip", "address", "add", "fd99::1/64", "dev", "uplink", "nodad")
    put_pool(world.store, "pool6", "fd65::/112")
    given = [{"address": text, "type": "InternalIP"} for text in ("198.18.0.2", "fd99::2")]
    put(world.store, ResourceKey("Node", "n1"), Resource("Node", {"name": "n1", "uid": "n1"}, {"addresses": given}))
    put_affinity(world.store, BLOCK6, node="n1")

    def routed6() -> bool:
        return BLOCK6 in {route["dst"] for route in world.netns.ip("-6", "route", "show", "proto", "83")}

    with world.running():
        assert eventually(lambda: is_routed(world) and routed6())
        world.netns.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        assert eventually(lambda: reasons(world)[BLOCK6] == "NOT_CONNECTED")
        assert is_routed(world)
        world.netns.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0")
        world.netns.run("ip", "address", "replace", "fd99::1/64", "dev", "uplink", "nodad")
        assert eventually(routed6)
        assert eventually(lambda: reasons(world)[BLOCK6] == "DIRECT")
