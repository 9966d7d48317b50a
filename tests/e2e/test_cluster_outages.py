"""Shared datastores that cannot be reached for a time, and nodes that have forgotten what they did."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, books, remains
from harness.netns import Netns
from harness.pod import Pod
from harness.site import OrchSite, Site
from harness.state import pod_links
from svc.attach.journal import Journal

pytestmark = pytest.mark.root

MakeSandbox = Callable[[], Netns]


@pytest.fixture
def lasting_node(site: Site, orch_site: OrchSite, tmp_path: Path) -> Iterator[ClusterNode]:
    """One for each test: its agent and its connections are ended."""
    with ClusterNode(tmp_path / "node", "node1", site, orch_site) as node:
        yield node


@pytest.mark.parametrize("payment", ["the next DEL", "a new agent"])
def test_del_with_the_server_down_is_paid_when_it_is_back(web: Pod, cluster_node: ClusterNode, payment: str) -> None:
    web.add()
    with cluster_node.cut_off():
        web.delete()
        assert pod_links(cluster_node) == {}
        assert web.netns.links() == []
    assert set(books([cluster_node]).allocations) == set(web.addresses), "the addresses are still held"
    if payment == "a new agent":
        cluster_node.stop_agent()
        cluster_node.start_agent()
    else:
        web.delete()
    assert remains([cluster_node]) == []
    assert web.add()["ips"]
    web.delete()


def test_add_with_the_server_down_leaves_nothing(web: Pod, cluster_node: ClusterNode) -> None:
    with cluster_node.cut_off():
        error = web.failed("ADD").output
    assert error["code"] == 104
    assert web.netns.links() == []
    assert remains([cluster_node]) == []
    web.add()
    web.delete()


def test_del_does_not_ask_the_orchestrator(cluster_node: ClusterNode, orch_site: OrchSite, sandbox: MakeSandbox) -> None:
    """Where the datastore is another: policy is ADD's business."""
    orch_site.add_pod("db-0")
    access: dict[str, Any] = {"policy": {"type": "orch"}, "orch": {"kubeconfig": str(orch_site.kubeconfig)}}
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=db-0;K8S_POD_NAMESPACE=default", **access)
    pod.add()
    with cluster_node.cut_off(orch_site):
        pod.delete()
        held = books([cluster_node]).allocations
    assert bool(held) == (cluster_node.site is orch_site)
    pod.delete()
    orch_site.clear()


def test_stale_del_without_a_journal(web: Pod, cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """As after a node was set up anew: whose interface and endpoint it is, the datastore says."""
    newer = web.copy(container="fedcba9876543210", netns=sandbox())
    web.add()
    newer.add()
    cluster_node.stop_agent()
    forget(cluster_node, web.container)
    cluster_node.start_agent()
    web.delete()
    assert set(books([cluster_node]).allocations) == set(newer.addresses)
    assert newer.check().status == 0
    newer.delete()


def forget(node: ClusterNode, container: str) -> None:
    """The node's agent must not run."""
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for record in journal.all():
            if record.id.container_id == container:
                journal.remove(record.id)
