"""Faults of nodes, pools and clocks, with the program over a real kernel and a store that needs no server."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from harness.ipam import put, put_affinity, put_pool, remove
from harness.route_world import World, eventually
from netns.test_route_program import announced, world
from svc._core import netns, rtnl
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.dataplane.kernel import kernel_error
from svc.dataplane.kernel import query as kernel_query
from svc.model.ipam import PENDING, Attribute, Block
from svc.model.keys import AffinityKey, BlockKey, ResourceKey
from svc.model.resource import Resource
from svc.routes import kernel_routes, last_known, planning, tunnel_addresses
from svc.routes.own_node import OwnNode
from svc.values import replace

__all__ = ["world"]  # a fixture

pytestmark = pytest.mark.root

BLOCK, OTHER = "10.0.0.0/26", "10.0.0.64/26"
NODE = ResourceKey("Node", "n1")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_addresses, "_MIN_BACKOFF", 0.05)


def gateway(world: World, network: str = BLOCK) -> object:
    return world.own_routes().get(network, {}).get("gateway")


def reason(world: World, network: str = BLOCK) -> str:
    """Return the reason of a network; empty if it is not known."""
    found = ((cidr, reason.name) for cidr, _, reason, _ in world.telemetry.report.reasons())
    return dict(found).get(Cidr(network), "")


def has_problem(world: World, words: str) -> bool:
    return any(words in text for text in world.telemetry.report.problems)


def put_tunnel_node(world: World, address: str = "198.18.0.2") -> None:
    """Write a node that has announced its tunnel."""
    given = [{"address": address, "type": "InternalIP"}]
    spec: dict[str, Any] = {"addresses": given, "ipv4VXLANTunnelAddr": "10.9.0.1"}
    put(world.store, NODE, Resource("Node", {"name": "n1", "uid": "n1"}, spec))


def test_a_node_that_is_deleted_and_back_keeps_its_routes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace period they go, and they come back with the node."""
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        remove(world.store, NODE)
        assert eventually(lambda: has_problem(world, "node 'n1' does not exist any more"))
        assert gateway(world) == "198.18.0.2"
        world.add_node("n1", "198.18.0.3")
        assert eventually(lambda: gateway(world) == "198.18.0.3")
        assert eventually(lambda: not has_problem(world, "node 'n1'"))
        monkeypatch.setattr(last_known, "GRACE_SECONDS", 0.0)
        remove(world.store, NODE)
        assert eventually(lambda: reason(world) == "NO_NODE" and gateway(world) is None)
        world.add_node("n1", "198.18.0.4")
        assert eventually(lambda: gateway(world) == "198.18.0.4")


def test_nodes_without_an_address_and_with_two(world: World) -> None:
    """The first InternalIP counts. A node without one has the reason, and gets its route with the address."""
    name = "n" * 253
    for node, addresses in (("n1", ()), (name, ("198.18.0.5", "198.18.0.6"))):
        given = [{"address": address, "type": "InternalIP"} for address in addresses]
        put(world.store, ResourceKey("Node", node), Resource("Node", {"name": node, "uid": node}, {"addresses": given}))
    put_affinity(world.store, BLOCK, node="n1")
    put_affinity(world.store, OTHER, node=name)
    with world.running():
        assert eventually(lambda: gateway(world, OTHER) == "198.18.0.5")
        assert eventually(lambda: reason(world) == "NO_ADDRESS")
        world.add_node("n1", "198.18.0.2")
        assert eventually(lambda: gateway(world) == "198.18.0.2")


def test_two_nodes_claim_one_block(world: World) -> None:
    """The block itself decides. A pending affinity gives no route, and takes none from the node that has the block."""
    for number in (1, 2):
        world.add_node(f"n{number}", f"198.18.0.{number + 1}")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        put_affinity(world.store, BLOCK, PENDING, node="n2")
        put_affinity(world.store, OTHER, PENDING, node="n2")
        assert eventually(lambda: reason(world, OTHER) == "PENDING")
        assert gateway(world) == "198.18.0.2"
        put_affinity(world.store, BLOCK, node="n2")
        assert eventually(lambda: reason(world) == "DISPUTED")
        block = Block(Cidr(BLOCK), "host:n2", Ordinals(6), 1000)
        put(world.store, BlockKey(block.cidr), block)
        assert eventually(lambda: gateway(world) == "198.18.0.3")
        remove(world.store, AffinityKey("n2", Cidr(BLOCK)))
        assert eventually(lambda: gateway(world) == "198.18.0.2")


def test_the_smallest_of_overlapping_pools_decides(world: World) -> None:
    put_tunnel_node(world)
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: reason(world) == "DIRECT")
        put_pool(world.store, "inner", "10.0.0.0/24", vxlanMode="Always", allowedUses=["Workload"])
        put_pool(world.store, "tunnels", "10.1.0.0/24", vxlanMode="Always")
        assert eventually(lambda: reason(world) == "TUNNEL")
        remove(world.store, ResourceKey("IPPool", "inner"))
        assert eventually(lambda: reason(world) == "DIRECT")


def test_a_pool_that_vanishes_leaves_the_tunnel(world: World) -> None:
    """Also after a restart, when nothing says any more that the pool had one."""
    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    put_pool(world.store, "other", "172.16.0.0/24")
    put_tunnel_node(world)
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: gateway(world) == "10.9.0.1")
        address = world.netns.ip("address", "show", "dev", "vxlan.svc")
        remove(world.store, ResourceKey("IPPool", "pool"))
        assert eventually(lambda: has_problem(world, "pool 'pool' does not exist any more"))
        assert (reason(world), gateway(world)) == ("TUNNEL", "10.9.0.1")
    with world.running():
        put_affinity(world.store, OTHER, node="n1")
        assert eventually(lambda: gateway(world, OTHER) == "198.18.0.2")
        assert gateway(world) == "10.9.0.1"
        assert world.netns.ip("address", "show", "dev", "vxlan.svc") == address
        assert eventually(lambda: has_problem(world, f"1 networks, such as {BLOCK}, are in no pool"))
        time.sleep(0.5)  # nothing is left to be done: only the pool causes the next round
        put_pool(world.store, "pool", "10.0.0.0/8")
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        assert eventually(lambda: "vxlan.svc" not in world.netns.links())


def test_an_unreadable_pool_gives_no_direct_route(world: World) -> None:
    """Its blocks may need a tunnel. Routes that are there stay, and nothing is deleted."""
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")
    put_pool(world.store, "pool", "x")
    put_affinity(world.store, OTHER, node="n1")
    with world.running():
        assert eventually(lambda: reason(world, OTHER) == "NOT_YET")
        remove(world.store, AffinityKey("n1", Cidr(BLOCK)))
        assert eventually(lambda: reason(world) == "")
        assert (gateway(world), gateway(world, OTHER)) == ("198.18.0.2", None)
        assert has_problem(world, "IPPool 'pool' is left out")
        put_pool(world.store, "pool", "10.0.0.0/8")
        assert eventually(lambda: (gateway(world), gateway(world, OTHER)) == (None, "198.18.0.2"))


def test_a_pool_that_is_deleted_before_a_start_keeps_its_tunnel(world: World) -> None:
    """Its nodes have blocks of it, and are behind a router. Others are routed as before."""
    world.netns.ip("route", "add", "default", "via", "198.18.0.254")
    put_pool(world.store, "pool", "10.1.0.0/16", vxlanMode="CrossSubnet")
    put_pool(world.store, "gone", "10.0.0.0/16", vxlanMode="CrossSubnet")
    put_tunnel_node(world, "203.0.113.5")
    put_affinity(world.store, BLOCK, node="n1")
    world.add_node("n2", "198.18.0.2")
    put_affinity(world.store, "10.1.0.0/26", node="n2")

    def neighbours() -> list[str]:
        return [each["dst"] for each in world.netns.ip("neigh", "show", "dev", "vxlan.svc")]

    with world.running():
        assert eventually(lambda: gateway(world) == "10.9.0.1")
        assert eventually(lambda: gateway(world, "10.1.0.0/26") == "198.18.0.2")
        assert neighbours() == ["10.9.0.1"]
    remove(world.store, ResourceKey("IPPool", "gone"))
    with world.running():
        assert eventually(lambda: has_problem(world, "1 networks, such as 10.0.0.0/26, are in no pool"))
        remove(world.store, AffinityKey("n2", Cidr("10.1.0.0/26")))
        assert eventually(lambda: gateway(world, "10.1.0.0/26") is None)
        assert (gateway(world), neighbours()) == ("10.9.0.1", ["10.9.0.1"])
        remove(world.store, AffinityKey("n1", Cidr(BLOCK)))
        assert eventually(lambda: (gateway(world), neighbours()) == (None, []))


def test_a_tunnel_keeps_its_address_over_a_boot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device is gone, and its pool is unreadable at first."""
    released: list[str] = []
    monkeypatch.setattr(OwnNode, "release", lambda _, kind: released.append(kind))
    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    put_tunnel_node(world)
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: reason(world) == "TUNNEL")
    before = announced(world)
    world.netns.ip("link", "del", "vxlan.svc")
    put_pool(world.store, "pool", "x")
    with world.running():
        assert eventually(lambda: has_problem(world, "IPPool 'pool' is left out"))
        assert eventually(lambda: not has_problem(world, "blocks are not read"))
        put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
        assert eventually(lambda: reason(world) == "TUNNEL")
    assert (announced(world), released) == (before, [])
    assert before is not None


def test_a_full_tunnel_pool_is_a_problem(world: World) -> None:
    """Routes that need no tunnel are there. After an address is free, the tunnel follows."""
    put_pool(world.store, "tunnels", "10.200.0.0/30", vxlanMode="Always", blockSize=30)
    put_pool(world.store, "pool", "10.0.0.0/16")
    put_tunnel_node(world)
    put_affinity(world.store, BLOCK, node="n1")
    put_affinity(world.store, "10.200.0.0/30", node="n1")
    full = Block(Cidr("10.200.0.0/30"), "host:n1", Ordinals(2), 1000, "2026-11-20T18:03:21Z")
    for tag in range(4):
        full.attributes = [*(full.attributes or ()), Attribute(f"net.c{tag}", {"node": "n1"})]
        full.ordinal_sequences[full.ordinals.allocate(tag)] = 999
    put(world.store, BlockKey(full.cidr), full)
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        assert eventually(lambda: has_problem(world, "vxlan"))
        assert reason(world, "10.200.0.0/30") == "NO_OWN_TUNNEL"
        put_pool(world.store, "more", "10.201.0.0/24", vxlanMode="Always")
        assert eventually(lambda: reason(world, "10.200.0.0/30") == "TUNNEL")


def test_the_registered_address_follows_the_interface(world: World) -> None:
    """Also if it has changed while the program was not there. One that an administrator has written stays."""
    remove(world.store, ResourceKey("Node", "own"))
    put(world.store, ResourceKey("Node", "own"), Resource("Node", {"name": "own", "uid": "own"}, {}))
    world.netns.ip("route", "add", "default", "via", "198.18.0.254")

    def registered() -> list[str]:
        found = world.store.find(ResourceKey("Node", "own"))
        return [item["address"] for item in (found.value.spec.get("addresses") or ())] if found is not None else []

    def move(old: int, new: int) -> None:
        world.netns.ip("address", "del", f"198.18.0.{old}/16", "dev", "uplink")
        world.netns.ip("address", "add", f"198.18.0.{new}/16", "dev", "uplink")
        world.netns.ip("route", "replace", "default", "via", "198.18.0.254")

    with world.running():
        assert eventually(lambda: registered() == ["198.18.0.1"])
        move(1, 7)
        assert eventually(lambda: registered() == ["198.18.0.7"]), world.telemetry.report.problems
    move(7, 8)
    with world.running():
        assert eventually(lambda: registered() == ["198.18.0.8"])
        world.add_node("own", "198.18.0.77")
        world.add_node("n1", "198.18.0.2")
        put_affinity(world.store, BLOCK, node="n1")
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        assert registered() == ["198.18.0.77"]


def test_a_clock_that_jumps_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits and grace periods are of the monotonic clock."""
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        for jump in (-1e9, 1e9):
            clock = time.time
            monkeypatch.setattr(time, "time", lambda clock=clock, jump=jump: clock() + jump)
            began = time.monotonic()
            put_affinity(world.store, OTHER, node="n1")
            assert eventually(lambda: gateway(world, OTHER) == "198.18.0.2")
            remove(world.store, AffinityKey("n1", Cidr(OTHER)))
            assert eventually(lambda: gateway(world, OTHER) is None)
            assert time.monotonic() - began < 5
            monkeypatch.undo()
        assert world.telemetry.report.held == 0


def test_no_other_clock_is_read() -> None:
    """The start time in the metrics is a time of day."""
    folder = Path(last_known.__file__).parent
    others = [path.name for path in folder.glob("*.py") if "time.time(" in path.read_text() or "datetime" in path.read_text()]
    assert others == []


def test_a_malformed_node_hides_no_other(world: World) -> None:
    """Its routes stay as they were."""
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        found = world.store.find(NODE)
        assert found is not None
        put(world.store, NODE, replace(found.value, spec={"addresses": "x", "bgp": 7, "ipv4VXLANTunnelAddr": []}))
        world.add_node("n2", "198.18.0.9")
        put_affinity(world.store, OTHER, node="n2")
        assert eventually(lambda: gateway(world, OTHER) == "198.18.0.9")
        assert gateway(world) == "198.18.0.2"


def test_an_error_of_svc_is_reported_and_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")

        def fail(*_: object) -> planning.Plan:
            raise RuntimeError("broken")

        monkeypatch.setattr(planning, "plan", fail)
        put_affinity(world.store, OTHER, node="n1")
        assert eventually(lambda: has_problem(world, "an error of svc, RuntimeError: broken"))
        assert gateway(world) == "198.18.0.2"
        monkeypatch.undo()
        assert eventually(lambda: gateway(world, OTHER) == "198.18.0.2")
        assert eventually(lambda: not has_problem(world, "broken"))


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOBUFS, errno.ENOMEM])
def test_a_kernel_that_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Nothing is changed on a guess. The problem is named, and the next attempt succeeds."""
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")

        def refuse(*_: object) -> list[bytes]:
            raise kernel_error(OSError(number, os.strerror(number)))

        monkeypatch.setattr(kernel_routes, "query", refuse)
        world.netns.ip("route", "flush", "proto", "83")
        assert eventually(lambda: has_problem(world, os.strerror(number)))
        monkeypatch.undo()
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        assert eventually(lambda: world.telemetry.report.problems == ())


def test_an_interrupted_dump_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lack routes: of half a table, the program would add what is there, and delete nothing."""
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    attempts = iter([errno.EINTR] * 3)

    class Interrupted:
        """A socket whose first answers are interrupted."""

        def __init__(self, socket: netns.Socket) -> None:
            self._socket = socket

        def query(self, request: rtnl.Batch) -> list[bytes]:
            if number := next(attempts, 0):
                raise rtnl.NetlinkError(number, "the tables changed during the dump")
            return self._socket.query(request)

    monkeypatch.setattr(kernel_routes, "query", lambda socket, request: kernel_query(Interrupted(socket), request))  # type: ignore[arg-type]
    with world.running():
        assert eventually(lambda: gateway(world) == "198.18.0.2")
        assert next(attempts, None) is None
        assert eventually(lambda: world.telemetry.report.problems == ())
