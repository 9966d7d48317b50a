"""svc-routes on three nodes: two on one subnet, one behind a router. Real pods exchange packets in both families."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import OrchSite, Site, session, set_ready
from harness.enter_netns import entered
from harness.ipam import blocks, put_pool
from harness.netns import Netns
from harness.node import POOL4, POOL6
from harness.orch import put_pod
from harness.pod import Pod
from harness.routed_node import Fabric, RoutedNode, addresses_of, ping, transfer
from svc._core.cidr import Address, Cidr
from svc.ipam.service import IpamService
from svc.model.keys import ResourceKey
from svc.names import DEFAULT
from svc.routes.inputs import HANDLES
from svc.routes.wanted import VXLAN_V4

pytestmark = [pytest.mark.root, pytest.mark.server]

ON_ETCD = pytest.mark.parametrize("site", ["etcdv3"], indirect=True, scope="module")
ON_ORCH = pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")

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
            if isinstance(site, OrchSite):
                given = [{"type": "InternalIP", "address": text} for text in addresses_of(subnet, number).values()]
                patch = {"status": {"addresses": given}}
                site.kube.call("PATCH", f"/api/v1/nodes/{name}/status", patch, "application/merge-patch+json")
            node = RoutedNode(folder / name, name, site, self.fabric, subnet, number)
            stack.enter_context(node)
            self.nodes[name] = node
        for number, (name, node) in enumerate(self.nodes.items()):
            sandbox = stack.enter_context(Netns("pod"))
            args = f"K8S_POD_NAME=p-{name};K8S_POD_NAMESPACE=default" if isinstance(site, OrchSite) else ""
            if args:
                site.add_pod(f"p-{name}", name)
            self.pods[name] = node.pod(sandbox, f"{number:016x}", args=args, ipam={"assign_ipv6": "true"})
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
    """A node behind the router is not reached: that is reported with the reason, and counted."""
    world.start("--metrics", "127.0.0.1:9406")
    for source, target in (("node1", "node2"), ("node2", "node1")):
        world.await_ways(source, target, "DIRECT")
    world.require_connected("node1", "node2")
    world.await_ways("node1", "node3", "NOT_CONNECTED")
    assert not ping(world.pods["node1"].netns, world.pods["node3"].addresses[0], seconds=0.3)
    with entered(world.nodes["node1"].netns), urllib.request.urlopen("http://127.0.0.1:9406/metrics") as answer:
        text = answer.read().decode()
    assert 'svc_routes{kind="direct"} 2\n' in text
    assert 'svc_routes_without_way{reason="NOT_CONNECTED"} 2\n' in text
    assert "svc_routes_unreachable_nodes 1\n" in text
    shown = world.nodes["node1"].routes("show").stdout
    assert shown.startswith("state: working\n")
    assert "the node is on another subnet, and the pool has no tunnel" in shown
    assert all(node.stop_routes() == 0 for node in world.nodes.values())
    world.require_connected("node2", "node1")


@ON_ETCD
@pytest.mark.parametrize(("mode", "near"), [("Always", "TUNNEL"), ("CrossSubnet", "DIRECT")])
def test_vxlan(world: World, mode: str, near: str) -> None:
    """Nodes behind the router are reached through the tunnel, those on the same subnet as the mode says."""
    world.set_pools(vxlanMode=mode)
    world.start()
    for source in PLACES:
        for target in PLACES.keys() - {source}:
            world.await_ways(source, target, "TUNNEL" if "node3" in (source, target) else near)
    world.require_connected("node1", "node3")
    world.require_connected("node3", "node2")
    world.require_connected("node2", "node1")
    node = world.nodes["node1"]
    assert (node.state_dir / "mtu").read_text() == "1430\n"
    tunnels = [link for link in node.netns.ip("-d", "link") if link.get("linkinfo", {}).get("info_kind") == "vxlan"]
    assert [link.get("ifalias") for link in tunnels] == ["svc-routes"] * 2
    world.set_pools()
    world.await_ways("node1", "node3", "NOT_CONNECTED")
    node.stop_routes()
    node.routes("clean")
    assert not [link for link in node.netns.links() if "vxlan" in link]
    assert node.own_routes() == {}
    with session(world.site) as store:
        assert IpamService(store, "node1").addresses_of(f"{HANDLES[VXLAN_V4]}node1") == ()
        given = {name: store.get(ResourceKey("Node", name)).value.spec.get("addresses", []) for name in ("node1", "node2")}
        assert [len(found) for found in given.values()] == [0, 2]  # those that svc-routes has registered


@ON_ETCD
def test_nat(world: World) -> None:
    """The host outside, to which the router knows no way back, sees the address of the node."""
    world.set_pools(natOutgoing=True)
    world.start()
    for source, target in (("node1", "node2"), ("node2", "node1")):
        world.await_ways(source, target, "DIRECT")
    pod, node = world.pods["node1"], world.nodes["node1"]
    for version, address in ((4, "198.18.2.9"), (6, "fd99:2::9")):
        assert ping(pod.netns, address), address
        assert transfer(pod.netns, world.outside, address) == node.addresses[version]
    world.require_connected("node1", "node2")
    node.netns.run("nft", "delete", "table", "inet", "svc-nat")
    node.stop_routes()
    node.start_routes()
    node.await_report(lambda report: report.get("state") == "working")
    assert ping(pod.netns, "198.18.2.9")


@ON_ETCD
@pytest.mark.parametrize("is_v6", [False, True])
def test_borrowed_addresses(world: World, is_v6: bool) -> None:
    """A node that borrows an address is reached there, although the block is another's."""
    world.start()
    world.await_ways("node1", "node2", "DIRECT")
    with session(world.site) as store:
        found = {":" in cidr: Cidr(cidr) for cidr, found in blocks(store).items() if found.affinity == "host:node1"}
    address, network = str(found[is_v6].address(33)), str(found[is_v6].address(33).host())
    with Netns("pod") as sandbox:
        families = {"assign_ipv4": str(not is_v6).lower(), "assign_ipv6": str(is_v6).lower()}
        borrower = world.nodes["node2"].pod(sandbox, "f" * 16, args=f"IP={address}", ipam=families)
        borrower.add()
        assert borrower.addresses[0] == address
        world.nodes["node1"].await_report(lambda report: _reason(report, network) == "DIRECT")
        world.nodes["node2"].await_report(lambda report: _reason(report, network) == "LOCAL")
        assert ping(world.pods["node1"].netns, address)
        assert transfer(sandbox, world.pods["node1"].netns, world.pods["node1"].addresses[is_v6]) == address
        borrower.delete()
    world.nodes["node1"].await_report(lambda report: _reason(report, network) == "")


@ON_ETCD
def test_foreign_routes_stay(world: World) -> None:
    """One that is there first is reported. After it is gone, the own route follows."""
    node, target = world.nodes["node1"], world.nodes["node2"]
    with session(world.site) as store:
        (block,) = (cidr for cidr, found in blocks(store).items() if found.affinity == "host:node2" and ":" not in cidr)
    node.netns.ip("route", "add", block, "via", target.addresses[4], "proto", "12", "metric", "50")
    world.start()
    report = node.await_report(lambda report: _reason(report, block) == "FOREIGN")
    (row,) = (row for row in report["networks"] if row["network"] == block)
    assert "protocol 12" in row["text"]
    assert block not in node.own_routes()
    node.netns.ip("route", "del", block, "proto", "12", "metric", "50")
    node.await_report(lambda report: _reason(report, block) == "DIRECT")
    assert block in node.own_routes()
    node.netns.ip("route", "flush", "proto", "83")
    node.await_report(lambda report: block in node.own_routes())


@ON_ETCD
def test_auto_stands_aside(world: World) -> None:
    node = world.nodes["node1"]
    node.netns.ip("link", "add", "flannel.1", "type", "bridge")
    world.start(mode="auto")
    report = node.await_report(lambda report: report.get("state") == "idle")
    assert "flannel.1" in report["traces"][0]
    assert node.own_routes() == {}
    world.nodes["node2"].await_report(lambda report: report.get("state") == "working")


@ON_ETCD
def test_routes_survive_kill_and_outage(world: World) -> None:
    """A second instance is refused. No packet is lost by a kill, a restart and an outage of the datastore."""
    world.start()
    world.await_ways("node1", "node2", "DIRECT")
    node, (target, *_) = world.nodes["node1"], world.pods["node2"].addresses
    second = node.routes("run", "--mode", "on", check=False)
    assert second.returncode == 1
    assert "another svc-routes has run directory" in second.stderr
    before = node.own_routes()
    node.stop_routes(signal.SIGKILL)
    with node.cut_off():
        node.start_routes()
        report = node.await_report(lambda report: report.get("state") == "waiting" and report["problems"])
        assert all("not read completely yet: " in text for text in report["problems"])
        assert ping(world.pods["node1"].netns, target, count=5)
        assert node.own_routes() == before
    node.await_report(lambda report: report.get("state") == "working")
    assert node.own_routes() == before
    assert ping(world.pods["node1"].netns, target)


@ON_ORCH
def test_direct_and_tunnel_on_the_kubernetes_api(world: World) -> None:
    """Nodes announce their tunnels by annotations."""
    world.set_pools(vxlanMode="CrossSubnet")
    world.start()
    world.await_ways("node1", "node2", "DIRECT")
    world.await_ways("node1", "node3", "TUNNEL")
    world.await_ways("node3", "node1", "TUNNEL")
    world.require_connected("node1", "node3")


@ON_ORCH
def test_addresses_without_ipam_and_floating_ones_are_not_routed(world: World) -> None:
    """Users route the former (R5), another component translates the latter. All are inside the pools.

    One of them is in a block of the node that looks for a way, and two in no block. A borrowed address of the same pod's node,
    which is assigned later, has its route: everything before was looked at."""
    assert isinstance(world.site, OrchSite)
    with session(world.site) as store:
        (block,) = (Cidr(cidr) for cidr, found in blocks(store).items() if found.affinity == "host:node1" and ":" not in cidr)
    inside, outside, outside6, floating = str(block.address(41)), "10.65.240.7", "fd65::f007", "10.65.241.7"
    world.start()
    world.await_ways("node1", "node2", "DIRECT")
    features: dict[str, Any] = {"feature_control": {"ip_addrs_no_ipam": True, "floating_ips": True}, "policy": {"type": "orch"}}
    notes = (
        ("web-1", {"ipAddrsNoIpam": [inside, outside6]}),
        ("web-2", {"ipAddrsNoIpam": [outside]}),
        ("web-3", {"floatingIPs": [floating]}),
    )
    with ExitStack() as stack:
        for number, (name, chosen) in enumerate(notes):
            texts = {f"{DEFAULT.annotation_prefix}/{note}": json.dumps(given) for note, given in chosen.items()}
            put_pod(world.site.kube, name, "node2", annotations=texts)
            args = f"K8S_POD_NAME={name};K8S_POD_NAMESPACE=default"
            pod = world.nodes["node2"].pod(stack.enter_context(Netns("pod")), f"{number:x}" * 16, args=args, **features)
            pod.add()
            given = chosen.get("ipAddrsNoIpam", [])
            assert not given or sorted(pod.addresses) == sorted(given)
        borrowed = str(block.address(42))
        sandbox = stack.enter_context(Netns("pod"))
        world.site.add_pod("web-4", "node2")
        args = f"K8S_POD_NAME=web-4;K8S_POD_NAMESPACE=default;IP={borrowed}"
        world.nodes["node2"].pod(sandbox, "e" * 16, args=args).add()
        report = world.nodes["node1"].await_report(lambda report: _reason(report, f"{borrowed}/32") == "DIRECT")
        kernel = {**world.nodes["node1"].own_routes(), **world.nodes["node1"].own_routes(6)}
        assert borrowed in kernel
        for address in (inside, outside, outside6, floating):
            host = Address(address).host()
            assert address not in kernel
            assert [row for row in report["networks"] if row["network"] == str(host)] == []
        assert not ping(world.pods["node1"].netns, inside, seconds=0.3)
        assert ping(world.pods["node1"].netns, borrowed)


def _reason(report: dict[str, Any], network: str) -> str:
    """Return the reason of a network, empty if it is not listed."""
    return next((str(row["reason"]) for row in report.get("networks", ()) if row["network"] == network), "")
