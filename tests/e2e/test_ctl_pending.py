"""svcctl pending shows and drops the pending releases of an unreachable datastore."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.cluster_node import IMPATIENT, ClusterNode, disagreements, remains
from harness.datastores import Site
from harness.netns import Netns
from harness.node import Node
from harness.pod import Pod
from harness.state import pod_links

pytestmark = pytest.mark.root


@pytest.fixture
def base_node(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """Return a node for one test, because the test ends its connections."""
    with ClusterNode(tmp_path / "node", "node1", site, agent_program=IMPATIENT) as node:
        yield node


def test_pending_release_can_be_shown_and_dropped(web: Pod, cluster_node: ClusterNode) -> None:
    """svcctl records the reason in a file. The agent does not retry the release."""
    web.add()
    with cluster_node.cut_off():
        web.delete()
        (shown,) = json.loads(cluster_node.svcctl("pending", "get", "-o", "json").stdout)
        assert (shown["container"], shown["addresses"]) == (web.container, web.addresses)
        assert shown["datastore"].startswith(("etcd http://127.0.0.1:", "Kubernetes API of kubeconfig "))
        assert abs(shown["since"] - time.time()) < 60
        assert shown["attempts"] >= 1
        assert shown["reason"] in cluster_node.svcctl("pending", "get").stdout.splitlines()[1]
        assert f":{cluster_node.site.port}" in shown["reason"]
        key = (shown["network"], shown["container"], shown["ifname"])
        wrong = cluster_node.svcctl("pending", "drop", *key[:2], "eth9", "--reason", "x", check=False)
        assert (wrong.returncode, "eth9 is pending: see" in wrong.stderr) == (1, True)
        printed = cluster_node.svcctl("pending", "drop", *key, "--reason", "gone for good").stdout.splitlines()
        assert printed[1] == f"datastore: {shown['datastore']}"
        assert json.loads(cluster_node.svcctl("pending", "get", "-o", "json").stdout) == []
    dropped = cluster_node.state_dir / "dropped-releases.jsonl"
    assert dropped.stat().st_mode & 0o777 == 0o600
    record = json.loads(dropped.read_text())
    assert (record["reason"], record["addresses"]) == ("gone for good", web.addresses)
    dropped.unlink()
    assert pod_links(cluster_node) == {}
    assert [entry for entry in remains([cluster_node]) if web.addresses[0] in entry]  # dropping does not release the addresses
    cluster_node.site.clear()


def test_pending_releases_of_a_new_node_are_an_empty_list(node: Node, tmp_path: Path) -> None:
    """A missing state directory is an error, and svcctl creates no journal in it."""
    columns = ["NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "DATASTORE", "SINCE", "REASON"]
    assert node.svcctl("pending", "get").stdout.split() == columns
    wrong = node.svcctl("--state-dir", str(tmp_path / "wrong"), "pending", "get", check=False)
    assert (wrong.returncode, "does not exist" in wrong.stderr) == (1, True)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_gc_cleans_up_after_a_dropped_release(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The next pod gets the address, and the endpoint of the earlier pod does not exist any more."""
    for name in ("web-0", "web-1"):
        cluster_node.site.add_pod(name)
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    pod.add()
    with cluster_node.cut_off():
        pod.delete()
    cluster_node.svcctl("pending", "drop", "net", pod.container, pod.ifname, "--reason", "test")
    called = cluster_node.call("GC", cluster_node.netconf(**{"cni.dev/valid-attachments": []}), container="", ifname="")
    assert called.status == 0, called
    assert remains([cluster_node]) == []
    successor = cluster_node.pod(sandbox(), "web-1", args=f"K8S_POD_NAME=web-1;K8S_POD_NAMESPACE=default;IP={pod.addresses[0]}")
    successor.add()
    assert disagreements([cluster_node]) == []
    successor.delete()
    assert remains([cluster_node]) == []
