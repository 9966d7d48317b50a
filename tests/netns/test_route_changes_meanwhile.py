"""Changes of kernel and addresses at any moment, also while the program plans or writes: each leads to a comparison at once.

Without one they would wait for the full comparison, which comes every minute."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.ipam import put, put_affinity, put_pool, remove
from harness.route_world import World, one_world
from netns.test_route_faults import BLOCK, OTHER, gateway, put_tunnel_node, reason
from svc._core.cidr import Cidr
from svc.model.keys import AffinityKey, ResourceKey
from svc.model.resource import Resource
from svc.routes import interfaces, planning, program
from svc.routes.copies import Copies
from svc.routes.kernel_routes import KernelRoutes, Outcome
from svc.routes.tunnels import Tunnels

pytestmark = pytest.mark.root

LIMIT = 1.0  # second from a change to the kernel
UPLINK = "198.18.0.1"


def soon(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait less than until the next full comparison, and as long as a busy machine may need."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Return a function that carries out an action the first time that it is called after `arm`."""
    left = [action]

    def run() -> None:
        while left:
            left.pop()()

    return run


def begin(world: World) -> object:
    """Return the address of this node at which the tunnel begins; None without a tunnel."""
    found = [link for link in world.netns.ip("-d", "link") if link["ifname"] == "vxlan.svc"]
    return found[0]["linkinfo"]["info_data"].get("local") if found else None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield a world without IPv6, whose notifications come a moment later and would cause a comparison, too."""
    with one_world(tmp_path) as found:
        for where in ("all", "default"):
            found.netns.run("sysctl", "-qw", f"net.ipv6.conf.{where}.disable_ipv6=1")
        yield found


@pytest.fixture
def routed(world: World) -> World:
    """Return a world with a node, and a block of it."""
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    return world


def test_route_that_is_flushed_while_others_are_written(routed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has been read before, so that this writing does not notice it."""
    real = KernelRoutes.bring
    flush = once(lambda: routed.netns.ip("route", "flush", "proto", "83"))

    def bring(self: KernelRoutes, wanted: Any, **options: Any) -> Outcome:
        outcome = real(self, wanted, **options)
        if len(wanted) == 2:
            flush()
        return outcome

    monkeypatch.setattr(KernelRoutes, "bring", bring)
    with routed.running():
        assert soon(lambda: gateway(routed) is not None)
        put_affinity(routed.store, OTHER, node="n1")
        assert soon(lambda: len(routed.own_routes()) == 2 and reason(routed, OTHER) == "DIRECT")


def test_node_that_gets_connected_after_the_plan(routed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has it behind a gateway. What writes the plan notices the change, and plans nothing."""
    routed.netns.ip("route", "add", "198.18.0.2/32", "via", "198.18.0.9")
    real = planning.plan
    connect = once(lambda: routed.netns.ip("route", "delete", "198.18.0.2/32"))

    def plan(*given: Any) -> planning.Plan:
        found = real(*given)
        if Cidr(OTHER) in found.rows:
            connect()
        return found

    monkeypatch.setattr(planning, "plan", plan)
    with routed.running():
        assert soon(lambda: reason(routed) == "NOT_CONNECTED")
        put_affinity(routed.store, OTHER, node="n1")
        assert soon(lambda: (reason(routed), reason(routed, OTHER)) == ("DIRECT", "DIRECT"))


def test_tunnel_that_is_removed_while_routes_are_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tunnels.bring
    delete = once(lambda: world.netns.ip("link", "delete", "vxlan.svc"))

    def bring(self: Tunnels, *given: Any) -> tuple[dict[str, int], list[str]]:
        found = real(self, *given)
        if found[0]:
            delete()
        return found

    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    put_tunnel_node(world)
    put_affinity(world.store, BLOCK, node="n1")
    monkeypatch.setattr(Tunnels, "bring", bring)
    with world.running():
        assert soon(lambda: gateway(world) == "10.9.0.1" and reason(world) == "TUNNEL")
        assert soon(lambda: not world.telemetry.report.problems)


def test_own_address_that_changes_after_the_interfaces_were_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tunnel follows: it begins at the address of the node."""
    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    put_tunnel_node(world)
    put_affinity(world.store, BLOCK, node="n1")
    real = interfaces.read_interfaces

    def move() -> None:
        world.netns.ip("address", "del", f"{UPLINK}/16", "dev", "uplink")
        world.netns.ip("address", "add", "198.18.0.77/16", "dev", "uplink")

    after_reading = list[Callable[[], object]]()

    def read() -> Any:
        found = real()
        while after_reading:
            after_reading.pop()()
        return found

    monkeypatch.setattr(program, "read_interfaces", read)
    with world.running(interface="uplink"):
        assert soon(lambda: reason(world) == "TUNNEL")
        assert begin(world) == UPLINK
        after_reading.append(move)
        world.netns.ip("route", "add", "203.0.113.0/24", "via", "198.18.0.2")  # has the interfaces read
        assert soon(lambda: not after_reading)
        assert soon(lambda: begin(world) == "198.18.0.77")
        assert soon(lambda: reason(world) == "TUNNEL")


def test_deletion_during_a_short_interruption(routed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends each watch from time to time. What is deleted until it continues is deleted then, without another event."""
    interrupted: list[float] = []
    monkeypatch.setattr(Copies, "interrupted_since", property(lambda _: interrupted[0] if interrupted else None))
    with routed.running():
        assert soon(lambda: gateway(routed) is not None)
        interrupted.append(time.monotonic())
        remove(routed.store, AffinityKey("n1", Cidr(BLOCK)))
        assert soon(lambda: reason(routed) == "")
        time.sleep(1)
        assert gateway(routed) is not None
        interrupted.clear()
        assert soon(lambda: gateway(routed) is None)


@pytest.mark.parametrize("has_tunnel", [False, True])
def test_address_of_a_node_is_applied_at_the_event(world: World, has_tunnel: bool) -> None:
    """At any moment after the last one: within a second in the worst case, with margin for a busy machine."""
    if has_tunnel:
        put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    put_affinity(world.store, BLOCK, node="n1")

    def ends() -> set[str]:
        if not has_tunnel:
            return {str(gateway(world))}
        lines = world.netns.run("bridge", "fdb", "show", "dev", "vxlan.svc").stdout.splitlines()
        return {line.split(" dst ")[1].split()[0] for line in lines if " dst " in line}

    put_tunnel_node(world)
    with world.running():
        assert soon(lambda: reason(world) == ("TUNNEL" if has_tunnel else "DIRECT"))
        seconds = []
        for number in range(12):
            address = f"198.18.1.{number + 1}"
            time.sleep(number * 0.031)
            began = time.monotonic()
            put_tunnel_node(world, address)
            assert soon(lambda address=address: ends() == {address})  # type: ignore[misc]
            seconds.append(time.monotonic() - began)
        assert sorted(seconds)[len(seconds) // 2] < LIMIT, seconds
        assert max(seconds) < 3 * LIMIT, seconds


def test_address_of_this_node_that_changes_with_its_interface(world: World) -> None:
    """The event of the datastore is applied with what the interfaces are now, also just after a comparison."""
    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    put_tunnel_node(world)
    put_affinity(world.store, BLOCK, node="n1")

    with world.running():
        assert soon(lambda: begin(world) == UPLINK and reason(world) == "TUNNEL")
        for number in range(2, 8):
            address = f"198.18.2.{number}"
            world.netns.ip("address", "add", f"{address}/16", "dev", "uplink")
            given = [{"address": address, "type": "InternalIP"}]
            found = world.store.find(ResourceKey("Node", "own"))
            assert found is not None
            spec = {**found.value.spec, "addresses": given}
            put(world.store, ResourceKey("Node", "own"), Resource("Node", {"name": "own", "uid": "own"}, spec))
            assert soon(lambda address=address: begin(world) == address), (address, begin(world))  # type: ignore[misc]
        assert soon(lambda: reason(world) == "TUNNEL" and not world.telemetry.report.problems)
