"""Shared datastores that are unreachable for some time, and nodes that have lost their journal."""

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

TIMEOUT_SECONDS = 20.0  # the agent retries a connection after one or two seconds
PENDING = 4  # one failed attempt for each takes longer than the agent's start may take


@pytest.fixture
def base_node(site: Site, orch_site: OrchSite, tmp_path: Path) -> Iterator[ClusterNode]:
    """Return a node for one test, because the test ends its agent and connections."""
    with ClusterNode(tmp_path / "node", "node1", site, orch_site, agent_program=IMPATIENT) as node:
        yield node


@pytest.mark.parametrize("retried_by", ["the next DEL", "a new agent"])
def test_pending_release_is_retried_when_the_server_is_back(web: Pod, cluster_node: ClusterNode, retried_by: str) -> None:
    web.add()
    with cluster_node.cut_off():
        web.delete()
        assert pod_links(cluster_node) == {}
        assert web.netns.links() == []
    assert set(audit([cluster_node]).allocations) == set(web.addresses), "the addresses must still be assigned"
    if retried_by == "a new agent":
        cluster_node.stop_agent()
        cluster_node.start_agent()
    until = time.monotonic() + TIMEOUT_SECONDS
    while retried_by == "the next DEL" and remains([cluster_node]) and time.monotonic() < until:
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
def test_pending_releases_at_a_silent_server_do_not_delay_calls(cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """The agent starts, executes calls of another network, and stops. When the server is back, it retries all releases."""
    node = cluster_node
    node.apply_pools()
    pods = [pod_of(node, sandbox(), number) for number in range(PENDING)]
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
    assert len(audit([node]).allocations) == PENDING
    node.start_agent()
    assert remains([node]) == []


def pod_of(node: ClusterNode, netns: Netns, number: int) -> Pod:
    node.site.add_pod(f"web-{number}")
    return node.pod(netns, f"web-{number}", args=f"K8S_POD_NAME=web-{number};K8S_POD_NAMESPACE=default")


def test_del_does_not_read_the_pod_from_kubernetes(
    cluster_node: ClusterNode, orch_site: OrchSite, sandbox: MakeSandbox
) -> None:
    """This holds on another datastore: only ADD needs the policy data of the pod."""
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


def test_late_del_without_a_journal_keeps_the_new_sandbox(web: Pod, cluster_node: ClusterNode, sandbox: MakeSandbox) -> None:
    """The node may have been set up again. The datastore names the container that has interface and endpoint."""
    newer = web.copy(container="fedcba9876543210", netns=sandbox())
    web.add()
    newer.add()
    cluster_node.stop_agent()
    delete_journal_entry(cluster_node, web.container)
    cluster_node.start_agent()
    web.delete()
    assert set(audit([cluster_node]).allocations) == set(newer.addresses)
    assert newer.check().status == 0
    newer.delete()


def delete_journal_entry(node: ClusterNode, container: str) -> None:
    """Delete the journal entry of a container. The node's agent must not run."""
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for record in journal.all():
            if record.id.container_id == container:
                journal.remove(record)
