"""Resolution of the names of etcd servers: /etc/hosts is used, even if no name server answers."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite, furnish
from harness.etcd import Cluster
from harness.netns import Netns
from harness.node import BIN

pytestmark = pytest.mark.root

HOST = "etcd-of-this-test.example"
SILENT = "192.0.2.253"  # an address in the uplink's subnet that no machine has


@pytest.fixture
def named_node(etcd: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterNode]:
    """Return a node with its own hosts file and without variables of gRPC, which this process set when it imported svc."""
    for variable in ("GRPC_DNS_RESOLVER", "GRPC_VERBOSITY"):
        monkeypatch.delenv(variable, raising=False)
    site = EtcdSite(etcd)
    furnish(site, "node1")
    site.config["etcd_endpoints"] = f"http://{HOST}:{site.port}"
    with ClusterNode(tmp_path / "node", "node1", site, agent=False) as node:
        folder = Path("/etc/netns", node.netns.name)
        folder.mkdir(parents=True)
        node.netns.has_files = True
        try:
            (folder / "hosts").write_text(f"127.0.0.1 localhost {HOST}\n")
            (folder / "resolv.conf").write_text(f"nameserver {SILENT}\n")
            yield node
        finally:
            rmtree(folder)
            with suppress(OSError):  # the folder is not empty if another namespace has files in it
                folder.parent.rmdir()
    site.clear()


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "one-shot"])
def test_pod_can_be_added_and_deleted(named_node: ClusterNode, agent: bool) -> None:
    if agent:
        named_node.start_agent()
    with Netns("pod") as sandbox:
        pod = named_node.pod(sandbox)
        pod.add()
        pod.delete()


def test_svcctl_reads_pools(named_node: ClusterNode) -> None:
    file = named_node.directory / "netconf.json"
    file.write_text(json.dumps(named_node.netconf()))
    done = named_node.netns.run(str(BIN / "svcctl"), "--netconf", str(file), "pool", "get")
    assert "pool4" in done.stdout
