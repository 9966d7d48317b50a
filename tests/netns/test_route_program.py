"""The program over a real kernel, with a store that needs no server."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from harness.ipam import put, put_affinity, put_pool, remove, write_all
from harness.netns import Netns
from harness.route_world import World, eventually, one_world
from harness.routed_node import Fabric, transfer
from svc._core.cidr import Cidr
from svc.datastore.api import Create
from svc.datastore.embedded import EmbeddedStore
from svc.model.ipam import Affinity
from svc.model.keys import AffinityKey, ResourceKey
from svc.model.resource import Resource
from svc.routes import program, safety

pytestmark = pytest.mark.root


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with one_world(tmp_path) as found:
        yield found


def test_once(world: World) -> None:
    world.add_node("n1", "198.18.0.2")
    world.add_blocks(3)
    put_affinity(world.store, "10.9.0.0/26", node="own")
    world.netns.ip("route", "add", "10.99.0.0/26", "via", "198.18.0.9", "proto", "83")
    with world.program() as made:
        assert made.run_once() == 0
    routes = world.own_routes()
    assert sorted(routes) == ["10.0.0.0/26", "10.0.0.128/26", "10.0.0.64/26", "10.9.0.0/26"]
    assert {routes[text]["gateway"] for text in routes if text != "10.9.0.0/26"} == {"198.18.0.2"}
    assert (world.folder / "mtu").read_text() == "1500\n"


def test_changes_arrive_within_a_second(world: World) -> None:
    """A new block, one that moves, one that is released; a route that is flushed by hand."""
    for number in (1, 2):
        world.add_node(f"n{number}", f"198.18.0.1{number}")
    block = "10.0.0.0/26"
    with world.running():
        put_affinity(world.store, block, node="n1")
        assert eventually(lambda: world.own_routes().get(block, {}).get("gateway") == "198.18.0.11")
        put_affinity(world.store, block, node="n2")
        remove(world.store, AffinityKey("n1", Cidr(block)))
        assert eventually(lambda: world.own_routes().get(block, {}).get("gateway") == "198.18.0.12")
        world.netns.ip("route", "flush", "proto", "83")
        assert eventually(lambda: block in world.own_routes())
        world.add_node("n2", "198.18.0.13")
        assert eventually(lambda: world.own_routes()[block]["gateway"] == "198.18.0.13")
        remove(world.store, AffinityKey("n2", Cidr(block)))
        assert eventually(lambda: world.own_routes() == {})
    assert world.telemetry.report.state == "working"


def test_changes_within_a_batch_are_written_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 blocks in some milliseconds: in fewer batches by far, which the metrics count."""
    monkeypatch.setattr(program, "BATCH_SECONDS", 0.5)
    world.add_node("n1", "198.18.0.2")

    def batches() -> int:
        (line,) = (line for line in world.telemetry.text().splitlines() if line.startswith("svc_routes_seconds_count"))
        return int(line.split()[1])

    with world.running():
        assert eventually(lambda: world.telemetry.report.state == "working")
        before = batches()
        for number in range(20):
            put_affinity(world.store, f"10.1.{number}.0/26", node="n1")
        assert eventually(lambda: len(world.telemetry.report.applied.routes) == 20)
        assert 1 <= batches() - before <= 4


def test_pod_cidrs_are_routed_in_place_of_blocks(world: World) -> None:
    """A range that changes its node moves."""
    world.netns.ip("route", "add", "10.99.0.0/26", "via", "198.18.0.9", "proto", "83")

    def put_ranges(name: str, address: str, *ranges: str) -> None:
        spec = {"addresses": [{"address": address, "type": "InternalIP"}]}
        node = Resource("Node", {"name": name, "uid": name}, spec, status={"podCIDRs": list(ranges)})
        put(world.store, ResourceKey("Node", name), node)

    put_ranges("own", "198.18.0.1", "10.5.0.0/24")
    put_ranges("n1", "198.18.0.2", "10.5.1.0/24")
    put_affinity(world.store, "10.9.0.0/26", node="n1")

    def gateways() -> dict[str, str]:
        return {network: route.get("gateway", route.get("type", "")) for network, route in world.own_routes().items()}

    with world.running(use_pod_cidr=True):
        assert eventually(lambda: gateways() == {"10.5.0.0/24": "blackhole", "10.5.1.0/24": "198.18.0.2"})
        put_ranges("n2", "198.18.0.3", "10.5.1.0/24")
        put_ranges("n1", "198.18.0.2", "10.5.2.0/24")
        expected = {"10.5.0.0/24": "blackhole", "10.5.1.0/24": "198.18.0.3", "10.5.2.0/24": "198.18.0.2"}
        assert eventually(lambda: gateways() == expected)


def test_a_wiped_datastore_keeps_the_routes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_node("n1", "198.18.0.2")
    world.add_blocks(30)
    with world.running():
        assert eventually(lambda: len(world.own_routes()) == 30)
    for index in range(30):
        remove(world.store, AffinityKey("n1", Cidr("10.0.0.0/8").block(index, 26)))
    with world.running():
        assert eventually(lambda: world.telemetry.report.held == 30)
        assert len(world.own_routes()) == 30
    monkeypatch.setattr(safety, "HOLD_SECONDS", 0.0)
    with world.running():
        assert eventually(lambda: world.own_routes() == {})


@pytest.mark.parametrize("number", [30, 2])
def test_a_datastore_without_pools_keeps_the_routes(world: World, number: int) -> None:
    """Its other parts may be read a moment later, as in a datastore that is wiped. A small cluster has few routes."""
    world.add_node("n1", "198.18.0.2")
    world.add_blocks(number)
    with world.running():
        assert eventually(lambda: len(world.own_routes()) == number)
        time.sleep(0.5)  # nothing is left to be done: only the pool causes the next round
        remove(world.store, ResourceKey("IPPool", "pool"))
        assert eventually(lambda: world.telemetry.report.held == number)
        for index in range(number):
            remove(world.store, AffinityKey("n1", Cidr("10.0.0.0/8").block(index, 26)))
        assert eventually(lambda: not list(world.telemetry.report.reasons()))
        assert len(world.own_routes()) == number


def announced(world: World) -> object:
    """Return the address of the tunnel in the Node of this node."""
    found = world.store.find(ResourceKey("Node", "own"))
    assert found is not None
    return found.value.spec.get("ipv4VXLANTunnelAddr")


def test_tunnels_survive_a_restart(world: World) -> None:
    """Before IPAM has answered, the new process uses the address that the device has: device and routes stay.

    A Node that is made again gets its announcement. The address is released when the device is gone."""
    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    world.add_node("n1", "198.18.0.2")
    node = Resource("Node", {"name": "n1", "uid": "n1"}, {"addresses": [{"address": "198.18.0.2", "type": "InternalIP"}]})
    put(world.store, ResourceKey("Node", "n1"), replace(node, spec={**node.spec, "ipv4VXLANTunnelAddr": "10.0.0.1"}))
    world.add_blocks(3)
    with world.program() as made:
        assert made.run_once() == 0
    assert (world.folder / "mtu").read_text() == "1450\n"
    links, routes, address = world.netns.ip("link"), world.own_routes(), announced(world)
    assert len(routes) >= 3
    assert address
    with world.program() as made:
        made._copies.start()
        assert eventually(lambda: made._copies.can_plan)
        made.step()
        made._close()
        assert world.netns.ip("link") == links
        assert routes.items() <= world.own_routes().items()  # the blackhole of the own block may come later
    with world.running():
        assert eventually(lambda: world.telemetry.report.state == "working")
        world.add_node("own", "198.18.0.1")
        assert eventually(lambda: announced(world) == address)
        put_pool(world.store, "pool", "10.0.0.0/8")
        assert eventually(lambda: announced(world) is None)
    assert "vxlan.svc" not in world.netns.links()


def test_once_says_why_something_remains(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing serves the report of a process that has ended."""
    with world.program(interface="nope") as made:
        assert made.run_once() == 1
    assert any("nope" in record.message for record in caplog.records if record.levelname == "WARNING")


def test_a_large_cluster(world: World) -> None:
    """4,000 blocks of other nodes: the time of a full comparison."""
    for number in range(20):
        world.add_node(f"n{number}", f"198.18.1.{number + 1}")
    cidrs = [Cidr("10.0.0.0/8").block(index, 26) for index in range(4000)]
    write_all(world.store, [Create(AffinityKey(f"n{index % 20}", cidr), Affinity()) for index, cidr in enumerate(cidrs)])
    with world.program() as made:
        made.run_once()
        assert len(world.own_routes()) == 4000
    with world.program() as made:
        made._copies.start()
        assert eventually(lambda: made._copies.can_plan)
        seconds = []
        for _ in range(4):
            made._compare_at = 0.0
            began = time.process_time()
            made.step()
            seconds.append(time.process_time() - began)
        made._close()
    assert min(seconds) < 0.15, seconds


@pytest.mark.parametrize("mode", ["Always", "CrossSubnet"])
def test_two_nodes_and_a_router(tmp_path: Path, mode: str) -> None:
    """Each gets the address of its tunnel and announces it; addresses in their blocks reach each other in both families.

    A host outside sees the address of the node."""
    with ExitStack() as stack:
        fabric = Fabric()
        stack.callback(fabric.close)
        store = stack.enter_context(closing(EmbeddedStore(tmp_path / "store.db")))
        put_pool(store, "pool4", "10.0.0.0/16", vxlanMode=mode, natOutgoing=True)
        put_pool(store, "pool6", "fd65::/112", vxlanMode=mode, natOutgoing=True)
        nodes = {"n1": ("a", 1, "10.0.1.0/26", "fd65::100/122"), "n2": ("b", 2, "10.0.2.0/26", "fd65::200/122")}
        spaces = {}
        for name, (subnet, number, *cidrs) in nodes.items():
            netns = spaces[name] = stack.enter_context(Netns("node"))
            fabric.connect(netns, subnet, number)
            netns.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
            for cidr in map(Cidr, cidrs):
                put_affinity(store, str(cidr), node=name)
                netns.ip("address", "add", str(cidr.address(5).host()), "dev", "lo")
        worlds = [World(tmp_path / name, netns, store) for name, netns in spaces.items()]
        for world, name in zip(worlds, nodes, strict=True):
            stack.enter_context(world.running(node=name, use_nat=True))
        for world in worlds:
            assert eventually(partial(world.has_only, "OWN", "TUNNEL")), world.telemetry.report.document()
        for mine, other in (("10.0.1.5", "10.0.2.5"), ("fd65::105", "fd65::205")):
            assert spaces["n1"].run("ping", "-n", "-c", "1", "-W", "3", "-I", mine, other, check=False).returncode == 0, other
            assert transfer(spaces["n2"], spaces["n1"], mine, other) == other
        outside = stack.enter_context(Netns("outside"))
        fabric.connect(outside, "b", 9)
        for sender, target, seen in (("10.0.1.5", "198.18.2.9", "198.18.1.1"), ("fd65::105", "fd99:2::9", "fd99:1::1")):
            assert transfer(spaces["n1"], outside, target, sender) == seen
