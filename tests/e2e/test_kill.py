"""kill -9 at every step, of a one-shot call and of the agent: the next start leaves nothing, and the same call works."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from harness import kill_point
from harness.host_local import held, offer, section
from harness.kill_points import ADD_STEPS, points
from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod
from harness.state import audit, faults, remains

pytestmark = pytest.mark.root

OWN = {"assign_ipv6": "true"}
MINE = (sys.executable, kill_point.__file__)
AGENT, ONE_SHOT = "svc.agent.main", "svc.cni.__main__"
DELETE_STEPS = {
    "unwire": "svc.attach.teardown:unwire",
    "release_resources": "svc.attach.teardown:release_resources",
    "forget": "svc.attach.journal:Journal.remove",
}


@pytest.fixture(scope="module")
def bare_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Without an agent: each test starts its own, and leaves the node empty."""
    with Node(tmp_path_factory.mktemp("node") / "node", agent=False) as node:
        node.apply_pools()
        yield node


@pytest.fixture
def node(bare_node: Node) -> Iterator[Node]:
    yield bare_node
    if bare_node.has_agent:
        assert bare_node.stop_agent() == 0
    assert remains(bare_node) == []
    assert held(bare_node) == {}


@pytest.fixture(params=["svc-ipam", "host-local"])
def pod(node: Node, request: pytest.FixtureRequest) -> Iterator[Pod]:
    """With addresses of each kind."""
    ipam: dict[str, Any] = OWN
    if request.param == "host-local":
        offer(node)
        ipam = section(node, "10.71.0.0/24", "fd71::/112")
    with Netns("sandbox") as netns:
        yield Pod(node, netns, "c1", netconf(ipam=ipam))


def call_once(pod: Pod, verb: str, *mine: str) -> "subprocess.CompletedProcess[bytes]":
    """A call without an agent, as the executable would make it, with a mine in its way, if any."""
    program = (ONE_SHOT, "--name", "svc", "--install", str(pod.node.bin_dir / "svc.install"))
    environment = {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": pod.container, "CNI_NETNS": pod.netns.path, "CNI_IFNAME": pod.ifname,
        "CNI_PATH": str(pod.node.bin_dir), "PATH": os.environ["PATH"],
    }  # fmt: skip
    started = (*MINE, *mine, *program) if mine else (sys.executable, "-m", program[0].removesuffix(".__main__"), *program[1:])
    return subprocess.run(
        ["ip", "netns", "exec", pod.node.netns.name, *started],
        input=json.dumps(pod.config).encode(), capture_output=True, check=False, env=environment,
    )  # fmt: skip


def works_from_end_to_end(pod: Pod) -> None:
    pod.add()
    assert pod.check().status == 0
    assert faults(pod.node) == []
    pod.delete()
    assert remains(pod.node) == []


@points(ADD_STEPS)
def test_killed_one_shot_add_leaves_nothing(node: Node, pod: Pod, step: str, when: str) -> None:
    """After the last step it is complete, though the reply was not sent: the runtime's DEL takes it down."""
    assert call_once(pod, "ADD", step, when).returncode == -signal.SIGKILL
    node.start_agent()
    if (step.endswith("record_result"), when) == (True, "after"):
        assert faults(node) == []
        pod.delete()
    assert remains(node) == []
    assert pod.netns.links() == []
    works_from_end_to_end(pod)


@points(ADD_STEPS)
def test_killed_agent_leaves_nothing_of_an_add(node: Node, pod: Pod, step: str, when: str) -> None:
    """The runtime gets a failure; it need not even call DEL, but for the last step."""
    node.start_agent(*MINE, step, when, AGENT)
    called = pod.failed("ADD")
    assert "closed the connection" in called.output["msg"]
    assert node.wait_agent() == -signal.SIGKILL
    node.start_agent()
    if (step.endswith("record_result"), when) == (True, "after"):
        first = audit(node).records[0].addresses
        pod.add()
        assert pod.addresses == first
        pod.delete()
    assert remains(node) == []
    assert pod.netns.links() == []
    works_from_end_to_end(pod)


@points(DELETE_STEPS)
def test_killed_delete_is_finished_by_the_next(node: Node, pod: Pod, step: str, when: str) -> None:
    """Runtimes repeat it until it succeeds. Another agent has been started in between."""
    node.start_agent(*MINE, step, when, AGENT)
    pod.add()
    assert "closed the connection" in pod.failed("DEL").output["msg"]
    assert node.wait_agent() == -signal.SIGKILL
    node.start_agent()
    pod.delete()
    assert remains(node) == []
    works_from_end_to_end(pod)


@pytest.mark.parametrize("step", DELETE_STEPS.values(), ids=DELETE_STEPS)
def test_killed_one_shot_delete_is_finished_by_the_next(node: Node, pod: Pod, step: str) -> None:
    """By one without an agent, too."""
    pod.add()
    assert call_once(pod, "DEL", step, "after").returncode == -signal.SIGKILL
    pod.delete()
    assert remains(node) == []


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_one_shot_call_that_comes_late_is_served_by_the_agent(node: Node, pod: Pod, verb: str) -> None:
    """It found no agent, and had to wait until one had started, which serves the same container by now."""
    node.start_agent()
    result = pod.add()
    late = call_once(pod, verb)
    assert late.returncode == 0, late
    if verb == "ADD":
        assert json.loads(late.stdout) == result
        assert pod.check().status == 0
        pod.delete()
    assert remains(node) == []
