"""One command gives a cluster whose pods reach each other and the outside: two nodes on one subnet, one behind a router."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import kube as kubes
from harness import suite_rights
from harness.manifest_cluster import ManifestCluster
from harness.netns import Netns
from harness.routed_node import ping, transfer

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.slow]

PLACES = {"node1": ("a", 1), "node2": ("a", 2), "node3": ("b", 3)}
OUTSIDE = {4: "198.18.2.9", 6: "fd99:2::9"}
POOLS = ("--pool", "10.244.0.0/16", "--pool", "fd65::/112")


@pytest.fixture
def cluster(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManifestCluster]:
    with ExitStack() as stack:
        (tmp_path / "kube").mkdir()
        kube = stack.enter_context(kubes.running(tmp_path / "kube", has_workloads=True, audits=True))
        yield ManifestCluster(tmp_path, kube, stack)
    suite_rights.note(kube.audit_log, tmp_path_factory.getbasetemp())  # the log shows a watch when it ends


def test_pods_reach_each_other_and_the_outside(cluster: ManifestCluster) -> None:
    """In both families. Nodes of one subnet need no tunnel; the outside sees the address of the node."""
    cluster.apply("--flavour", "networking", *POOLS)
    with ExitStack() as stack:
        outside = stack.enter_context(Netns("outside"))
        cluster.fabric.connect(outside, "b", 9)
        pods = {}
        for name, place in PLACES.items():
            node = cluster.add_node(name, *place)
            pods[name] = stack.enter_context(Netns("pod"))
            assert len(node.attach(pods[name], f"p-{name}")) == 2
        for node in cluster.nodes.values():
            report = node.await_report(_is_complete)
            ways = {(row["node"], row["reason"]) for row in report["networks"] if row["node"] != node.name}
            far = {name for name, (subnet, _) in PLACES.items() if subnet != PLACES[node.name][0]}
            assert ways == {(name, "TUNNEL" if name in far else "DIRECT") for name in PLACES if name != node.name}
            # the first pod turns forwarding on; the report may be older, and packets below show that it is on
            problems = [text for text in report["problems"] if "the kernel forwards no" not in text]
            assert (report["traces"], problems) == ([], [])
        addresses = {name: [text.partition("/")[0] for text in netns.addresses("eth0")] for name, netns in pods.items()}
        for source, target in (("node1", "node2"), ("node1", "node3"), ("node3", "node2")):
            for mine, other in zip(addresses[source], addresses[target], strict=True):
                assert ping(pods[source], other), (source, target, other)
                assert transfer(pods[source], pods[target], other) == mine
        for name, node in cluster.nodes.items():
            for version, address in OUTSIDE.items():
                assert ping(pods[name], address), (name, address)
                assert transfer(pods[name], outside, address) == node.addresses[version]
        assert "TUNNEL" not in cluster.nodes["node1"].pod.host("svc-routes", "show", "--run-dir", "/run/svc").stdout
        assert "kept: it exists" in cluster.apply("--flavour", "networking", *POOLS)


def _is_complete(report: dict[str, list[dict[str, object]]]) -> bool:
    """Return whether the blocks of both families of each node have their way."""
    rows = [row for row in report.get("networks", ()) if row["reason"] in ("OWN", "DIRECT", "TUNNEL")]
    return (
        len(rows) == len(report.get("networks", ())) and len({(row["node"], ":" in str(row["network"])) for row in rows}) == 6
    )
