"""Calls that wait for policy: their effects on other calls, the end of the agent, and one-shot calls."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from harness.node import BIN, Node
from harness.pod import Pod
from harness.policy_pods import SHORT, begin, file_of, is_set_up, make
from harness.polling import wait_until
from harness.state import audit, disagreements, remains
from svc.attach.record import ADDED

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "endpoint-status"
    path.mkdir()
    return path


# other calls during the wait


def test_concurrent_calls_share_one_watch(own_pods: MakePod, node: Node, directory: Path) -> None:
    """Another pod is added and deleted during the wait."""
    made = [make(own_pods, directory) for _ in range(30)]
    calls = [pod.begin("ADD") for pod in made]
    wait_until(lambda: sum(record.state == ADDED for record in audit(node).records) == len(made))
    other = own_pods()
    other.add()
    other.delete()
    assert not any(call.is_over for call in calls)
    assert _watches(node) == 1
    for pod in made:
        file_of(pod, directory).touch()
    assert all(is_set_up(call.result()) for call in calls)
    assert disagreements(node) == []
    wait_until(lambda: _watches(node) == 0)


def _watches(node: Node) -> int:
    """Return the number of inotify watches of the agent."""
    found = 0
    for info in Path(f"/proc/{node.agent_pid}/fdinfo").iterdir():
        try:
            found += info.read_text().count("inotify wd")
        except FileNotFoundError:
            continue
    return found


def test_delete_ends_the_wait_of_its_container(own_pods: MakePod, node: Node, directory: Path) -> None:
    pod = make(own_pods, directory)
    calling = begin(pod)
    pod.delete()
    assert "its DEL has come" in calling.result().output["msg"]
    assert remains(node) == []
    assert pod.netns.links() == []


def test_killed_client_leaves_nothing(own_pods: MakePod, node: Node, directory: Path) -> None:
    """The agent rolls the ADD back, so the runtime's DEL finds nothing."""
    pod = make(own_pods, directory)
    begin(pod).kill()
    wait_until(lambda: remains(node) == [])
    pod.delete()
    file_of(pod, directory).touch()
    pod.add()
    assert disagreements(node) == []


# the agent's end


def test_pod_continues_to_wait_when_the_agent_is_restarted(own_pods: MakePod, node: Node, directory: Path) -> None:
    """The next agent serves the call, and the pod keeps its addresses."""
    pod = make(own_pods, directory)
    calling = begin(pod)
    assert node.stop_agent() == 0
    node.start_agent()
    wait_until(lambda: len(descriptors_of_sandboxes(node)) == 1)
    assert not calling.is_over
    file_of(pod, directory).touch()
    assert is_set_up(calling.result())
    assert disagreements(node) == []


def descriptors_of_sandboxes(node: Node) -> list[str]:
    found = []
    for fd in Path(f"/proc/{node.agent_pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += [name for name in [os.readlink(fd)] if "/svc-sandbox-" in name]
    return found


def test_restart_of_the_agent_does_not_prolong_the_wait(own_pods: MakePod, node: Node, directory: Path) -> None:
    """The pod starts without its policy when the original timeout is over."""
    pod = make(own_pods, directory, 5)
    calling = begin(pod)
    began = time.monotonic()
    node.stop_agent()
    node.start_agent()
    assert not is_set_up(calling.result())
    assert time.monotonic() - began < 7
    assert disagreements(node) == []


def test_pod_continues_to_wait_without_an_agent(own_pods: MakePod, node: Node, directory: Path) -> None:
    pod = make(own_pods, directory, 20)
    calling = begin(pod)
    node.stop_agent()
    time.sleep(1)
    assert not calling.is_over
    calling.kill()


def test_delete_between_two_agents_ends_the_call(own_pods: MakePod, node: Node, directory: Path) -> None:
    pod = make(own_pods, directory)
    calling = begin(pod)
    node.stop_agent()
    pod.delete()
    node.start_agent()
    assert calling.result().output["code"] == 3
    assert remains(node) == []


def test_delete_removes_what_a_killed_agent_has_left(own_pods: MakePod, node: Node, directory: Path) -> None:
    pod = make(own_pods, directory)
    calling = begin(pod)
    os.kill(node.agent_pid, signal.SIGKILL)
    assert calling.result().status != 0
    node.wait_agent()
    node.start_agent()
    assert disagreements(node) == []
    pod.delete()
    assert remains(node) == []


# without an agent


def test_one_shot_call_waits(own_pods: MakePod, node: Node, directory: Path) -> None:
    """It delays no other call during its wait."""
    node.stop_agent()
    pod, early, other = make(own_pods, directory), make(own_pods, directory), own_pods()
    file_of(early, directory).touch()
    assert is_set_up(early.call("ADD"))
    calling = begin(pod)
    other.add()
    assert not calling.is_over
    file_of(pod, directory).touch()
    assert is_set_up(calling.result())
    assert disagreements(node) == []


def test_one_shot_call_ends_its_wait_at_the_timeout(own_pods: MakePod, node: Node, directory: Path) -> None:
    node.stop_agent()
    assert not is_set_up(make(own_pods, directory, SHORT).call("ADD"))


# metrics


def test_metrics_count_the_outcomes_of_waits(own_pods: MakePod, node: Node, directory: Path) -> None:
    node.stop_agent()
    node.start_agent(str(BIN / "svc-agent"), options=("--metrics", "127.0.0.1:9405"))
    late, early = make(own_pods, directory, SHORT), make(own_pods, directory)
    file_of(early, directory).touch()
    for pod in (late, early):
        pod.add()
    late.failed("ADD", readiness_gates=["nonsense"])
    early.delete()
    script = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9405/metrics').read().decode())"
    lines = node.netns.run(str(BIN / "python"), "-c", script).stdout.splitlines()
    for line in (
        'svc_policy_waits_total{outcome="timeout"} 1',
        'svc_policy_waits_total{outcome="ready"} 1',
        'svc_calls_total{verb="ADD",outcome="ok"} 2',
        'svc_calls_total{verb="ADD",outcome="error"} 1',
        'svc_calls_total{verb="DEL",outcome="ok"} 1',
        "svc_queue_seconds_count 4",
    ):
        assert line in lines


def test_invalid_address_for_metrics_is_refused(node: Node) -> None:
    for address in ("127.0.0.1", "nobody", "127.0.0.1:x", ":9405", "127.0.0.1:65536"):
        done = node.netns.run(str(BIN / "svc-agent"), "run", "--metrics", address, check=False)
        assert "is not HOST:PORT" in done.stderr
