"""svc-routes on three nodes: two on one subnet, one behind a router. Real pods exchange packets in both families."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import Site, session, set_ready
from harness.ipam import put_pool
from harness.netns import Netns
from harness.node import POOL4, POOL6
from harness.pod import Pod
from harness.routed_node import Fabric, RoutedNode, ping, transfer

pytestmark = [pytest.mark.root, pytest.mark.server]

ON_ETCD = pytest.mark.parametrize("site", ["etcdv3"], indirect=True, scope="module")

PLACES = {"node1": ("a", 1), "node2": ("a", 2), "node3": ("b", 3)}


class World:
    """The nodes, a pod on each, and a host outside."""

    def __init__(self, site: Site, folder: Path, stack: ExitStack) -> None:
        self.site = site
        self.fabric = Fabric()
        stack.callback(self.fabric.close)
        self.outside = stack.enter_context(Netns("outside"))
        self.fabric.connect(self.outside, "b", 9)
        self.nodes: dict[str, RoutedNode] = {}
        self.pods: dict[str, Pod] = {}
        for name, (subnet, number) in PLACES.items():
            site.add_node(name)
            node = RoutedNode(folder / name, name, site, self.fabric, subnet, number)
            stack.enter_context(node)
            self.nodes[name] = node
        for number, (name, node) in enumerate(self.nodes.items()):
            sandbox = stack.enter_context(Netns("pod"))
            self.pods[name] = node.pod(sandbox, f"{number:016x}", ipam={"assign_ipv6": "true"})
            self.pods[name].add()

    def set_pools(self, **spec: Any) -> None:
        with session(self.site) as store:
            put_pool(store, "pool4", POOL4, **spec)
            put_pool(store, "pool6", POOL6, **spec)

    def start(self, *options: str, mode: str = "on") -> None:
        """Start svc-routes on each node, and wait until each has found all blocks."""
        for node in self.nodes.values():
            node.start_routes(*options, mode=mode)

    def await_ways(self, source: str, target: str, reason: str) -> None:
        """Wait until a node has a reason for the blocks of another, and for its tunnels."""
        node = self.nodes[source]

        def is_met(report: dict[str, Any]) -> bool:
            found = [row["reason"] for row in report.get("networks", ()) if row["node"] == target]
            return len(found) >= 2 and set(found) == {reason}

        node.await_report(is_met)

    def require_connected(self, source: str, target: str) -> None:
        """Require pings and 10 MiB over TCP between two pods, in both families, without NAT."""
        here, there = self.pods[source], self.pods[target]
        for mine, other in zip(here.addresses, there.addresses, strict=True):
            assert ping(here.netns, other), (source, target, other)
            assert transfer(here.netns, there.netns, other) == mine


@pytest.fixture
def world(site: Site, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        with session(site) as store:
            set_ready(store)
            put_pool(store, "pool4", POOL4)
            put_pool(store, "pool6", POOL6)
        yield World(site, tmp_path, stack)
    site.clear()


@ON_ETCD
def test_direct_routes(world: World) -> None:
    """A node behind the router is not reached: that is reported with the reason."""
    world.start()
    for source, target in (("node1", "node2"), ("node2", "node1")):
        world.await_ways(source, target, "DIRECT")
    world.require_connected("node1", "node2")
    world.await_ways("node1", "node3", "NOT_CONNECTED")
    assert not ping(world.pods["node1"].netns, world.pods["node3"].addresses[0], seconds=0.3)
    assert all(node.stop_routes() == 0 for node in world.nodes.values())
    world.require_connected("node2", "node1")
