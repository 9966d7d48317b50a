"""Shared datastores that cannot be reached for a time, and nodes that have forgotten what they did."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import IMPATIENT, ClusterNode, audit, remains
from harness.datastores import OrchSite, Site
from harness.netns import Netns
from harness.node import netconf
from harness.pod import Pod
from harness.state import pod_links
from svc.attach.journal import Journal
from svc.attach.record import DELETING

pytestmark = pytest.mark.root

MakeSandbox = Callable[[], Netns]

PATIENCE = 20.0  # seconds; connections are tried again after one or two
DEBTORS = 4  # to ask for each of them in vain takes longer than a node may take to start


@pytest.fixture
def lasting_node(site: Site, orch_site: OrchSite, tmp_path: Path) -> Iterator[ClusterNode]:
    """One for each test: its agent and its connections are ended."""
    with ClusterNode(tmp_path / "node", "node1", site, orch_site, agent_program=IMPATIENT) as node:
        yield node


@pytest.mark.parametrize("payment", ["the next DEL", "a new agent"])
def test_del_with_the_server_down_is_paid_when_it_is_back(web: Pod, cluster_node: ClusterNode, payment: str) -> None:
    web.add()
    with cluster_node.cut_off():
        web.delete()
        assert pod_links(cluster_node) == {}
        assert web.netns.links() == []
    assert set(audit([cluster_node]).allocations) == set(web.addresses), "the addresses are still held"
    if payment == "a new agent":
        cluster_node.stop_agent()
        cluster_node.start_agent()
    until = time.monotonic() + PATIENCE
    while payment == "the next DEL" and remains([cluster_node]) and time.monotonic() < until:
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


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_pending_releases_at_a_silent_server_delay_no_call(cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """However many there are: an agent starts beside them, serves another network, and ends; with the server back all are
    paid."""
    node = cluster_node
    node.apply_pools()
    pods = [debtor(node, sandbox(), number) for number in range(DEBTORS)]
    for pod in pods:
        pod.add()
    node.stop_agent()
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for record in journal.all():
            record.state = DELETING
            journal.update(record)
    other = Pod(node, sandbox(), "c1", netconf(name="here"))
    with node.silenced(node.site):
        node.start_agent()
        assert pod_links(node) == {}
        other.add()
        other.delete()
        assert node.stop_agent() == 0
    assert len(audit([node]).allocations) == DEBTORS
    node.start_agent()
    assert remains([node]) == []


def debtor(node: ClusterNode, netns: Netns, number: int) -> Pod:
    node.site.add_pod(f"web-{number}")
    return node.pod(netns, f"web-{number}", args=f"K8S_POD_NAME=web-{number};K8S_POD_NAMESPACE=default")


def test_del_does_not_ask_the_orchestrator(cluster_node: ClusterNode, orch_site: OrchSite, sandbox: MakeSandbox) -> None:
    """Where the datastore is another: policy is ADD's business."""
    orch_site.add_pod("db-0")
    access: dict[str, Any] = {"policy": {"type": "orch"}, "orch": {"kubeconfig": str(orch_site.kubeconfig)}}
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=db-0;K8S_POD_NAMESPACE=default", **access)
    pod.add()
    with cluster_node.cut_off(orch_site):
        pod.delete()
        held = audit([cluster_node]).allocations
    assert bool(held) == (cluster_node.site is orch_site)
    pod.delete()
    orch_site.clear()


def test_stale_del_without_a_journal(web: Pod, cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """As after a node was set up again: the datastore says whose interface and endpoint it is."""
    newer = web.copy(container="fedcba9876543210", netns=sandbox())
    web.add()
    newer.add()
    cluster_node.stop_agent()
    forget(cluster_node, web.container)
    cluster_node.start_agent()
    web.delete()
    assert set(audit([cluster_node]).allocations) == set(newer.addresses)
    assert newer.check().status == 0
    newer.delete()


def forget(node: ClusterNode, container: str) -> None:
    """The node's agent must not run."""
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for record in journal.all():
            if record.id.container_id == container:
                journal.remove(record)
