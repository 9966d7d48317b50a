"""kill -9 of the agent at every step of an ADD, on datastores that nodes share: the next start leaves nothing."""

import signal
import sys
from collections.abc import Iterator

import pytest

from harness import kill_point
from harness.cluster_node import ClusterNode, faults, remains
from harness.datastores import Site, furnish
from harness.kill_points import ADD_STEPS, points
from harness.netns import Netns
from harness.pod import Pod

pytestmark = pytest.mark.root

WRITE = "svc.datastore.orch.store:OrchStore._attempt"
ON_ORCH = pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def bare_node(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterNode]:
    """Without an agent: each test starts its own, and leaves the node empty."""
    with ClusterNode(tmp_path_factory.mktemp("node") / "node", "node1", site, agent=False) as node:
        yield node


@pytest.fixture
def node(bare_node: ClusterNode) -> Iterator[ClusterNode]:
    furnish(bare_node.site, "node1")
    try:
        yield bare_node
        assert bare_node.stop_agent() == 0
        assert remains([bare_node]) == []
    finally:
        if bare_node.has_agent:
            bare_node.kill_agent()
        bare_node.site.clear()


@pytest.fixture
def web(node: ClusterNode) -> Iterator[Pod]:
    """A pod of two address families."""
    node.site.add_pod("web-0")
    with Netns("sandbox") as netns:
        yield node.pod(netns, args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", ipam={"assign_ipv6": "true"})


def kill_at(node: ClusterNode, pod: Pod, step: str, when: str) -> None:
    """The agent dies there, in the middle of the pod's ADD, and another one is started."""
    node.start_agent(sys.executable, kill_point.__file__, step, when, "svc.agent.main")
    assert "closed the connection" in pod.failed("ADD").output["msg"]
    assert node.wait_agent() == -signal.SIGKILL
    node.start_agent()


def works_from_end_to_end(node: ClusterNode, pod: Pod) -> None:
    pod.add()
    assert pod.check().status == 0
    assert faults([node]) == []
    pod.delete()
    assert remains([node]) == []


@points(ADD_STEPS)
def test_killed_agent_leaves_nothing_of_an_add(node: ClusterNode, web: Pod, step: str, when: str) -> None:
    """After the last step it is complete, though the reply was not sent: the same ADD is answered with what it got."""
    kill_at(node, web, step, when)
    if (step, when) == (ADD_STEPS["record_result"], "after"):
        assert faults([node]) == []
    else:
        assert remains([node]) == []
        assert web.netns.links() == []
    works_from_end_to_end(node, web)


@ON_ORCH
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_between_two_writes(node: ClusterNode, web: Pod, when: str) -> None:
    """Where each key is written by itself: the first of them is, or is not."""
    kill_at(node, web, WRITE, when)
    works_from_end_to_end(node, web)
