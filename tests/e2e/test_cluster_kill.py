"""SIGKILL for the agent at every step of an ADD, on shared datastores. The next start removes the unfinished attachment."""

import signal
import sys
from collections.abc import Iterator

import pytest

from harness import kill_point
from harness.cluster_node import ClusterNode, disagreements, remains
from harness.datastores import Site, furnish
from harness.kill_points import ADD_STEPS, points
from harness.netns import Netns
from harness.pod import Pod

pytestmark = pytest.mark.root

WRITE = "svc.datastore.orch.store:OrchStore._attempt"
ON_ORCH = pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def node_without_agent(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterNode]:
    """Start a node without an agent. Each test starts its own."""
    with ClusterNode(tmp_path_factory.mktemp("node") / "node", "node1", site, agent=False) as node:
        yield node


@pytest.fixture
def node(node_without_agent: ClusterNode) -> Iterator[ClusterNode]:
    furnish(node_without_agent.site, "node1")
    try:
        yield node_without_agent
        assert node_without_agent.stop_agent() == 0
        assert remains([node_without_agent]) == []
    finally:
        if node_without_agent.has_agent:
            node_without_agent.kill_agent()
        node_without_agent.site.clear()


@pytest.fixture
def web(node: ClusterNode) -> Iterator[Pod]:
    """Return a pod with addresses of both families."""
    node.site.add_pod("web-0")
    with Netns("sandbox") as netns:
        yield node.pod(netns, args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", ipam={"assign_ipv6": "true"})


def kill_at(node: ClusterNode, pod: Pod, step: str, when: str) -> None:
    """Kill the agent at this step of the pod's ADD, and start another one."""
    node.start_agent(sys.executable, kill_point.__file__, step, when, "svc.agent.main")
    assert "closed the connection" in pod.failed("ADD").output["msg"]
    assert node.wait_agent() == -signal.SIGKILL
    node.start_agent()


def require_working_calls(node: ClusterNode, pod: Pod) -> None:
    pod.add()
    assert pod.check().status == 0
    assert disagreements([node]) == []
    pod.delete()
    assert remains([node]) == []


@points(ADD_STEPS)
def test_killed_agent_leaves_nothing_of_an_add(node: ClusterNode, web: Pod, step: str, when: str) -> None:
    """After the last step the ADD is complete, although the agent sent no reply. Then the same ADD returns its result."""
    kill_at(node, web, step, when)
    if (step, when) == (ADD_STEPS["record_result"], "after"):
        assert disagreements([node]) == []
    else:
        assert remains([node]) == []
        assert web.netns.links() == []
    require_working_calls(node, web)


@ON_ORCH
@pytest.mark.parametrize("when", ["before", "after"])
def test_calls_work_after_a_kill_between_two_writes(node: ClusterNode, web: Pod, when: str) -> None:
    """svc writes each key separately to the Kubernetes API. The agent is killed before or after the first write."""
    kill_at(node, web, WRITE, when)
    require_working_calls(node, web)
