"""kill -9 at each step of a one-shot call or of the agent: the next start cleans up, and the same call then works."""

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
from harness.state import audit, disagreements, remains

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("python_starts")]

DUAL = {"assign_ipv6": "true"}
KILL_PROGRAM = (sys.executable, kill_point.__file__)
AGENT, ONE_SHOT = "svc.agent.main", "svc.cni.__main__"
DELETE_STEPS = {
    "unwire": "svc.attach.teardown:unwire",
    "release_resources": "svc.attach.teardown:release_resources",
    "forget": "svc.attach.journal:Journal.remove",
}


@pytest.fixture(scope="module")
def bare_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node without an agent: each test starts its own, and leaves the node empty."""
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
    """A pod with addresses of svc-ipam, and one with addresses of host-local."""
    ipam: dict[str, Any] = DUAL
    if request.param == "host-local":
        offer(node)
        ipam = section(node, "10.71.0.0/24", "fd71::/112")
    with Netns("sandbox") as netns:
        yield Pod(node, netns, "c1", netconf(ipam=ipam))


def call_once(pod: Pod, verb: str, *kill_at: str) -> "subprocess.CompletedProcess[bytes]":
    """Make a one-shot call as the executable does. Kill it at the point `kill_at`, if one is given."""
    program = (ONE_SHOT, "--name", "svc", "--install", str(pod.node.bin_dir / "svc.install"))
    environment = {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": pod.container, "CNI_NETNS": pod.netns.path, "CNI_IFNAME": pod.ifname,
        "CNI_PATH": str(pod.node.bin_dir), "PATH": os.environ["PATH"],
    }  # fmt: skip
    started = (
        (*KILL_PROGRAM, *kill_at, *program)
        if kill_at
        else (sys.executable, "-m", program[0].removesuffix(".__main__"), *program[1:])
    )
    return subprocess.run(
        ["ip", "netns", "exec", pod.node.netns.name, *started],
        input=json.dumps(pod.config).encode(), capture_output=True, check=False, env=environment,
    )  # fmt: skip


def add_check_and_delete(pod: Pod) -> None:
    pod.add()
    assert pod.check().status == 0
    assert disagreements(pod.node) == []
    pod.delete()
    assert remains(pod.node) == []


@points(ADD_STEPS)
def test_killed_one_shot_add_leaves_nothing(node: Node, pod: Pod, step: str, when: str) -> None:
    """After its last step the ADD is complete, although no reply was sent: the runtime's DEL removes the attachment."""
    assert call_once(pod, "ADD", step, when).returncode == -signal.SIGKILL
    node.start_agent()
    if (step.endswith("record_result"), when) == (True, "after"):
        assert disagreements(node) == []
        pod.delete()
    assert remains(node) == []
    assert pod.netns.links() == []
    add_check_and_delete(pod)


@points(ADD_STEPS)
def test_killed_agent_leaves_nothing_of_an_add(node: Node, pod: Pod, step: str, when: str) -> None:
    """The runtime gets an error. It need not call DEL, except after the last step."""
    node.start_agent(*KILL_PROGRAM, step, when, AGENT)
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
    add_check_and_delete(pod)


@points(DELETE_STEPS)
def test_next_delete_completes_a_killed_one(node: Node, pod: Pod, step: str, when: str) -> None:
    """Runtimes repeat a DEL until it succeeds. A new agent serves the second one."""
    node.start_agent(*KILL_PROGRAM, step, when, AGENT)
    pod.add()
    assert "closed the connection" in pod.failed("DEL").output["msg"]
    assert node.wait_agent() == -signal.SIGKILL
    node.start_agent()
    pod.delete()
    assert remains(node) == []
    add_check_and_delete(pod)


@pytest.mark.parametrize("step", DELETE_STEPS.values(), ids=DELETE_STEPS)
def test_next_one_shot_delete_completes_a_killed_one(node: Node, pod: Pod, step: str) -> None:
    """No agent runs during either DEL."""
    pod.add()
    assert call_once(pod, "DEL", step, "after").returncode == -signal.SIGKILL
    pod.delete()
    assert remains(node) == []


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_late_one_shot_call_is_served_by_the_agent(node: Node, pod: Pod, verb: str) -> None:
    """The call found no agent. While it waited, an agent started and attached the same container."""
    node.start_agent()
    result = pod.add()
    late = call_once(pod, verb)
    assert late.returncode == 0, late
    if verb == "ADD":
        assert json.loads(late.stdout) == result
        assert pod.check().status == 0
        pod.delete()
    assert remains(node) == []
