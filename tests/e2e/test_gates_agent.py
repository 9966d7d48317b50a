"""Calls that wait at a readiness gate: their effect on other calls, the end of the agent, and calls without an agent."""

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
from harness.state import disagreements, remains
from svc.cni.agent_client import call
from svc.cni.call_io import CallInput

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


def waiting(node: Node) -> int:
    """Return the number of in-flight calls of the agent. Each has a descriptor of its namespace."""
    found = 0
    for fd in Path(f"/proc/{node.agent_pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += "/svc-sandbox-" in os.readlink(fd)
    return found


# other calls during the wait


def begin_adds(node: Node, number: int, gate: GateServer, sandbox: Netns) -> list[Calling]:
    """Start ADDs of different containers. They may share a sandbox because they do not get to wire it."""
    made = [Pod(node, sandbox, f"waiting-{n}", _configuration(gate)) for n in range(number)]
    return [pod.begin("ADD") for pod in made]


def _configuration(gate: GateServer) -> dict[str, Any]:
    return {
        "cniVersion": "1.1.0", "name": "net", "type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"},
        "readiness_gates": [gate.url], **LONG,
    }  # fmt: skip


def test_parked_calls_do_not_delay_other_calls(
    own_pods: MakePod, node: Node, own_gate: GateServer, sandbox: Callable[[], Netns]
) -> None:
    """Three hundred calls are parked. The agent needs few threads, and one probe of the gate serves all calls."""
    calls = begin_adds(node, 300, own_gate, sandbox())
    try:
        wait_until(lambda: waiting(node) == 300)
        before = own_gate.connection_count
        for _ in range(3):
            pod = own_pods()
            pod.add()
            assert pod.check().status == 0
            pod.delete()
        assert not any(call.is_over for call in calls)
        assert len(os.listdir(f"/proc/{node.agent_pid}/task")) < 40
        assert own_gate.connection_count < before + 100
    finally:
        for call in calls:
            call.kill()
    wait_until(lambda: waiting(node) == 0 and remains(node) == [])


def test_all_parked_calls_continue_when_the_gate_is_ready(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    made = [own_pods(readiness_gates=[own_gate.url], **LONG) for _ in range(12)]
    calls = [pod.begin("ADD") for pod in made]
    wait_until(lambda: waiting(node) == 12)
    own_gate.behaviour = status(200)
    assert [call.result().status for call in calls] == [0] * 12
    assert disagreements(node) == []


def test_del_ends_the_parked_add_of_its_container(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """The ADD fails and leaves nothing. The DEL does not wait for the gate."""
    pod, other = (own_pods(readiness_gates=[own_gate.url], **LONG) for _ in range(2))
    calling, still_parked = pod.begin("ADD"), other.begin("ADD")
    wait_until(lambda: waiting(node) == 2 and own_gate.connection_count > 1)
    pod.delete()
    called = calling.result()
    assert called.output["code"] == 3
    assert "its DEL has come" in called.output["msg"]
    assert not still_parked.is_over
    still_parked.kill()
    wait_until(lambda: "the runtime has given up" in node.log.read_text())
    assert remains(node) == []


def test_kill_of_the_client_ends_its_parked_call(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    calling = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    calling.kill()
    wait_until(lambda: "the runtime has given up" in node.log.read_text())
    own_gate.behaviour = status(200)
    assert remains(node) == []
    pod.delete()
    pod.add()


# the end of the agent


def test_next_agent_continues_parked_calls(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """The executables send their calls to the next agent. No ADD fails, or ends before its gate is ready."""
    pods = [own_pods(readiness_gates=[own_gate.url], **LONG) for _ in range(5)]
    calls = [pod.begin("ADD") for pod in pods]
    wait_until(lambda: waiting(node) == 5 and own_gate.connection_count > 0)
    assert node.stop_agent() == 0
    node.start_agent()
    wait_until(lambda: waiting(node) == 5)
    assert not any(call.is_over for call in calls)
    own_gate.behaviour = status(200)
    assert [call.result().status for call in calls] == [0] * 5
    assert disagreements(node) == []
    for pod in pods:
        pod.delete()
    assert remains(node) == []


def test_restart_of_the_agent_does_not_extend_the_timeout(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """The deadline of the call stays the same."""
    began = time.monotonic()
    calling = own_pods(readiness_gates=[own_gate.url], readiness_gates_timeout_seconds=6).begin("ADD")
    wait_until(lambda: waiting(node) == 1)
    time.sleep(2)
    node.stop_agent()
    node.start_agent()
    assert calling.result().output["code"] == 115
    assert time.monotonic() - began < 9
    assert remains(node) == []


def test_deadline_that_passes_between_two_agents_is_a_timeout(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """The next agent keeps the row of the call, so that a slow client gets the error of the gate."""
    calling = own_pods(readiness_gates=[own_gate.url], readiness_gates_timeout_seconds=3).begin("ADD")
    wait_until(lambda: waiting(node) == 1)
    calling.signal(signal.SIGSTOP)
    node.stop_agent()
    time.sleep(3)
    node.start_agent()
    wait_until(lambda: node.log.read_text().count("recovery ended") == 2)
    calling.signal(signal.SIGCONT)
    assert calling.result().output["code"] == 115
    assert remains(node) == []


def test_del_between_two_agents_ends_the_parked_call(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """After the reply to the DEL, svc creates nothing for the container."""
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    calling = pod.begin("ADD")
    wait_until(lambda: waiting(node) == 1)
    node.stop_agent()
    pod.delete()
    own_gate.behaviour = status(200)
    node.start_agent()
    assert calling.result().output["code"] == 3
    assert remains(node) == []


def test_parked_call_of_an_older_executable_fails_when_the_agent_stops(
    own_pods: MakePod, node: Node, own_gate: GateServer
) -> None:
    """An executable of protocol 1 cannot continue the call with another agent."""
    own_gate.behaviour = silent
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    variables = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": pod.container, "CNI_IFNAME": "eth0", "CNI_NETNS": pod.netns.path}
    frame = CallInput("svc", variables, json.dumps(pod.config).encode(), protocol=1)
    with ThreadPoolExecutor(1) as executor:
        reply = executor.submit(call, str(node.socket), frame, timeout=20)
        wait_until(lambda: waiting(node) == 1 and own_gate.connection_count > 0)
        assert node.stop_agent() == 0
        assert json.loads(reply.result().stdout)["code"] == 110
    assert remains(node) == []


def test_parked_call_continues_without_an_agent(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """No other agent starts before the deadline."""
    pod = own_pods(readiness_gates=[own_gate.url], readiness_gates_timeout_seconds=8)
    calling = pod.begin("ADD")
    wait_until(lambda: waiting(node) == 1)
    node.stop_agent()
    own_gate.behaviour = status(200)
    assert calling.result().status == 0
    assert disagreements(node) == []


def test_killed_agent_leaves_nothing_of_a_parked_call(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    calling = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    os.kill(node.agent_pid, signal.SIGKILL)
    assert calling.result().status != 0
    node.wait_agent()
    node.start_agent()
    assert remains(node) == []
    own_gate.behaviour = status(200)
    pod.add()
    assert disagreements(node) == []


# without an agent


def test_one_shot_call_waits_for_the_gate(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """It does not delay other calls."""
    node.stop_agent()
    pod, other = own_pods(readiness_gates=[own_gate.url], **LONG), own_pods()
    calling = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    other.add()
    assert not calling.is_over
    own_gate.behaviour = status(200)
    assert calling.result().status == 0
    assert disagreements(node) == []


def test_agent_can_start_while_a_one_shot_call_waits(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    node.stop_agent()
    calling = own_pods(readiness_gates=[own_gate.url], **LONG).begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    node.start_agent()
    own_gate.behaviour = status(200)
    assert calling.result().status == 0
    assert disagreements(node) == []


def test_one_shot_call_has_the_error_of_the_agent(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    pod = own_pods(readiness_gates=[own_gate.url], **SHORT)
    served = refused(pod)
    node.stop_agent()
    assert _bare(refused(pod)) == _bare(served)


def _bare(output: dict[str, Any]) -> dict[str, Any]:
    return {**output, "details": output["details"].rpartition(" [request ")[0]}
