"""Calls that wait at a readiness gate: effects on other calls, the end of the agent during them, and without an agent."""

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.gate_pods import LONG, SHORT, refused
from harness.gate_server import GateServer, silent, status
from harness.netns import Netns
from harness.node import Calling, Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import faults, remains
from svc.cni.agent_client import call
from svc.cni.frame import Frame

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


def waiting(node: Node) -> int:
    """Calls that the agent has under way: each keeps its namespace open."""
    found = 0
    for fd in Path(f"/proc/{node.agent_pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += "/svc-sandbox-" in os.readlink(fd)
    return found


# other calls during the wait


def begin_adds(node: Node, number: int, gate: GateServer, sandbox: Netns) -> list[Calling]:
    """Each of a container of its own; they never come as far as to the sandbox."""
    made = [Pod(node, sandbox, f"waiting-{n}", _configuration(gate)) for n in range(number)]
    return [pod.begin("ADD") for pod in made]


def _configuration(gate: GateServer) -> dict[str, Any]:
    return {
        "cniVersion": "1.1.0", "name": "net", "type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"},
        "readiness_gates": [gate.url], **LONG,
    }  # fmt: skip


def test_waiting_calls_hold_nothing_that_others_need(
    own_pods: MakePod, node: Node, own_gate: GateServer, sandbox: Callable[[], Netns]
) -> None:
    """Three hundred of them: other pods come and go, with a dozen threads, and the gate is asked for all of them at once."""
    calls = begin_adds(node, 300, own_gate, sandbox())
    try:
        wait_until(lambda: waiting(node) == 300)
        asked = own_gate.asked
        for _ in range(3):
            pod = own_pods()
            pod.add()
            assert pod.check().status == 0
            pod.delete()
        assert not any(call.is_over for call in calls)
        assert len(os.listdir(f"/proc/{node.agent_pid}/task")) < 40
        assert own_gate.asked < asked + 100
    finally:
        for call in calls:
            call.kill()
    wait_until(lambda: waiting(node) == 0 and remains(node) == [])


def test_crowd_passes_when_the_gate_opens(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    made = [own_pods(readiness_gates=[own_gate.url], **LONG) for _ in range(12)]
    calls = [pod.begin("ADD") for pod in made]
    wait_until(lambda: waiting(node) == 12)
    own_gate.behaviour = status(200)
    assert [call.result().status for call in calls] == [0] * 12
    assert faults(node) == []


def test_delete_ends_the_wait_of_its_container(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """It comes after the ADD, which leaves nothing, and is not made to wait for the gate."""
    pod, other = (own_pods(readiness_gates=[own_gate.url], **LONG) for _ in range(2))
    calling, goes_on = pod.begin("ADD"), other.begin("ADD")
    wait_until(lambda: waiting(node) == 2 and own_gate.asked > 1)
    pod.delete()
    called = calling.result()
    assert called.output["code"] == 3
    assert "its DEL has come" in called.output["msg"]
    assert not goes_on.is_over
    goes_on.kill()
    wait_until(lambda: "the runtime has given up" in node.log.read_text())
    assert remains(node) == []


def test_client_that_is_killed_ends_its_wait(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    calling = pod.begin("ADD")
    wait_until(lambda: own_gate.asked > 1)
    calling.kill()
    wait_until(lambda: "the runtime has given up" in node.log.read_text())
    own_gate.behaviour = status(200)
    assert remains(node) == []
    pod.delete()
    pod.add()


# the agent's end


def test_next_agent_goes_on_with_what_waits(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """The executables hold on: no pod fails, and none starts before its gate is open."""
    pods = [own_pods(readiness_gates=[own_gate.url], **LONG) for _ in range(5)]
    calls = [pod.begin("ADD") for pod in pods]
    wait_until(lambda: waiting(node) == 5 and own_gate.asked > 0)
    assert node.stop_agent() == 0
    node.start_agent()
    wait_until(lambda: waiting(node) == 5)
    assert not any(call.is_over for call in calls)
    own_gate.behaviour = status(200)
    assert [call.result().status for call in calls] == [0] * 5
    assert faults(node) == []
    for pod in pods:
        pod.delete()
    assert remains(node) == []


def test_wait_does_not_start_over(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """It ends when it would have ended without the agent's end."""
    began = time.monotonic()
    calling = own_pods(readiness_gates=[own_gate.url], readiness_gates_timeout_seconds=6).begin("ADD")
    wait_until(lambda: waiting(node) == 1)
    time.sleep(2)
    node.stop_agent()
    node.start_agent()
    assert calling.result().output["code"] == 115
    assert time.monotonic() - began < 9
    assert remains(node) == []


def test_delete_between_two_agents_ends_the_call(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """After it was answered nothing of the container appears."""
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    calling = pod.begin("ADD")
    wait_until(lambda: waiting(node) == 1)
    node.stop_agent()
    pod.delete()
    own_gate.behaviour = status(200)
    node.start_agent()
    assert calling.result().output["code"] == 3
    assert remains(node) == []


def test_executable_of_the_last_release_is_refused_as_ever(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """It cannot go on elsewhere."""
    own_gate.behaviour = silent
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    variables = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": pod.container, "CNI_IFNAME": "eth0", "CNI_NETNS": pod.netns.path}
    frame = Frame("svc", variables, json.dumps(pod.config).encode(), False, protocol=1)
    with ThreadPoolExecutor(1) as executor:
        reply = executor.submit(call, str(node.socket), frame, timeout=20)
        wait_until(lambda: waiting(node) == 1 and own_gate.asked > 0)
        assert node.stop_agent() == 0
        assert json.loads(reply.result().stdout)["code"] == 110
    assert remains(node) == []


def test_call_goes_on_without_an_agent(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """Where none comes while the wait lasts."""
    pod = own_pods(readiness_gates=[own_gate.url], readiness_gates_timeout_seconds=8)
    calling = pod.begin("ADD")
    wait_until(lambda: waiting(node) == 1)
    node.stop_agent()
    own_gate.behaviour = status(200)
    assert calling.result().status == 0
    assert faults(node) == []


def test_killed_agent_leaves_nothing_of_what_waited(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    calling = pod.begin("ADD")
    wait_until(lambda: own_gate.asked > 1)
    os.kill(node.agent_pid, signal.SIGKILL)
    assert calling.result().status != 0
    node.wait_agent()
    node.start_agent()
    assert remains(node) == []
    own_gate.behaviour = status(200)
    pod.add()
    assert faults(node) == []


# without an agent


def alone(node: Node) -> None:
    node.stop_agent()


def test_one_shot_call_waits_as_well(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """And delays no other call during its wait."""
    alone(node)
    pod, other = own_pods(readiness_gates=[own_gate.url], **LONG), own_pods()
    calling = pod.begin("ADD")
    wait_until(lambda: own_gate.asked > 1)
    other.add()
    assert not calling.is_over
    own_gate.behaviour = status(200)
    assert calling.result().status == 0
    assert faults(node) == []


def test_agent_that_starts_meanwhile_is_not_kept_from_it(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    alone(node)
    calling = own_pods(readiness_gates=[own_gate.url], **LONG).begin("ADD")
    wait_until(lambda: own_gate.asked > 1)
    node.start_agent()
    own_gate.behaviour = status(200)
    assert calling.result().status == 0
    assert faults(node) == []


def test_one_shot_error_is_that_of_the_agent(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    pod = own_pods(readiness_gates=[own_gate.url], **SHORT)
    served = refused(pod)
    alone(node)
    assert _bare(refused(pod)) == _bare(served)


def _bare(output: dict[str, Any]) -> dict[str, Any]:
    return {**output, "details": output["details"].rpartition(" [request ")[0]}
