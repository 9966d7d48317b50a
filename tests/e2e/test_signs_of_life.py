"""Signs of life that the agent sends to executables and to the watchdog: stopped agents, slow calls, other versions."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from harness.cluster_node import ClusterNode
from harness.cluster_node import remains as cluster_remains
from harness.datastores import Site, furnish
from harness.frames import parse_reply
from harness.gate_pods import LONG
from harness.gate_server import GateServer, serving, status
from harness.netns import Netns
from harness.node import Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import remains
from harness.stopped import stopped
from svc.cni.agent_client import call
from svc.cni.call_io import CallInput
from svc.cni.frame import pack_alive, pack_request

pytestmark = [pytest.mark.root, pytest.mark.slow]

MakePod = Callable[..., Pod]
TIMEOUT_SECONDS = 20.0


def test_calls_to_a_stopped_agent_fail_within_seconds(own_pods: MakePod, node: Node) -> None:
    """Its socket still accepts connections. Each verb fails with that cause, and succeeds when the agent continues."""
    pod, other = own_pods(), own_pods()
    pod.add()
    calls = dict.fromkeys(("CHECK", "DEL", "GC", "STATUS"), pod) | {"ADD": other}
    with stopped(node.agent_pid):
        began = time.monotonic()
        begun = {verb: each.begin(verb) for verb, each in calls.items()}
        results = {verb: calling.result() for verb, calling in begun.items()}
        assert 4 < time.monotonic() - began < 10
    assert {verb: called.output["code"] for verb, called in results.items()} == {
        "ADD": 5, "CHECK": 5, "DEL": 5, "GC": 5, "STATUS": 50,
    }  # fmt: skip
    assert {called.output["msg"].rpartition(":")[0] for called in results.values()} == {
        "the agent does not respond: it is stopped or hung"
    }
    pod.delete()
    other.delete()
    assert remains(node) == []


def test_call_that_waits_longer_than_the_silence_limit_succeeds(own_pods: MakePod, node: Node) -> None:
    """One call waits at a readiness gate, and another one behind it. The agent sends signs of life for both."""
    with serving(status(503), inside=node.netns) as gate:
        pod = own_pods(readiness_gates=[gate.url], **LONG)
        calling = pod.begin("ADD")
        wait_until(lambda: gate.connection_count > 0)
        again = pod.begin("ADD")
        time.sleep(6)
        assert not calling.is_over
        assert not again.is_over
        gate.behaviour = status(200)
        assert [calling.result().status, again.result().status] == [0, 0]
    pod.delete()
    assert remains(node) == []


def frames_of(node: Node, pod: Pod, protocol: int, gate: GateServer, seconds: float) -> bytes:
    """Send an ADD that waits at the gate for some seconds, and return all bytes of the answer."""
    variables = {
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": pod.container, "CNI_IFNAME": pod.ifname, "CNI_NETNS": pod.netns.path,
    }  # fmt: skip
    frame = CallInput("svc", variables, orjson.dumps(pod.config), protocol=protocol)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(TIMEOUT_SECONDS)
        client.connect(str(node.socket))
        client.sendall(pack_request(frame))
        time.sleep(seconds)
        gate.behaviour = status(200)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_draining_agent_finishes_a_slow_call(etcd_site: Site, sandbox: Callable[[], Netns], tmp_path: Path) -> None:
    """The datastore answers some time after SIGTERM. The runtime gets the result, not an error about a hung agent."""
    furnish(etcd_site, "node1")
    try:
        with ClusterNode(tmp_path / "node", "node1", etcd_site) as node:
            first, slow = node.pod(sandbox(), "first"), node.pod(sandbox(), "slow")
            first.add()
            with node.silenced(etcd_site):
                calling = slow.begin("ADD")
                time.sleep(0.5)
                os.kill(node.agent_pid, signal.SIGTERM)
                time.sleep(6)
            assert calling.result().status == 0, calling.result()
            assert node.wait_agent() == 0
            node.start_agent()
            for pod in (first, slow):
                pod.delete()
            assert cluster_remains([node]) == []
    finally:
        etcd_site.clear()


@pytest.mark.parametrize("protocol", [1, 2])
def test_only_clients_that_support_signs_of_life_get_them(own_pods: MakePod, node: Node, protocol: int) -> None:
    """An executable of an earlier build would read one as a broken reply. It gets the frame layout of its build."""
    with serving(status(503), inside=node.netns) as gate:
        pod = own_pods(readiness_gates=[gate.url], readiness_gates_timeout=20)
        data = frames_of(node, pod, protocol, gate, 3.5)
    assert data.startswith(b"SVC%d" % protocol)
    assert (pack_alive() in data) == (protocol == 2)
    assert parse_reply(data).status == 0
    pod.delete()


def test_executable_of_another_version_gets_an_error(node: Node) -> None:
    """The agent also logs the refusal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(TIMEOUT_SECONDS)
        client.connect(str(node.socket))
        client.sendall(b"SVC7" + b"9.8.7".ljust(28, b"\0") + bytes(100))
        reply = parse_reply(b"".join(iter(lambda: client.recv(1 << 16), b"")))
    assert orjson.loads(reply.stdout)["msg"].startswith("the executable is of version 9.8.7, the agent of ")
    wait_until(lambda: "refused a request of process" in node.log.read_text())


def test_working_agent_notifies_the_watchdog(node: Node, tmp_path: Path) -> None:
    """systemd requests this with WatchdogSec=."""
    node.stop_agent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_SECONDS)
        node.start_agent(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="500000")
        assert [manager.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]


def test_client_in_python_detects_a_stopped_agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc.cni.agent_client.SILENCE_SECONDS", 0.2)
    frame = CallInput("svc", {"CNI_COMMAND": "VERSION"}, b"")
    with stopped(node.agent_pid), pytest.raises(TimeoutError, match="stopped or hung"):
        call(str(node.socket), frame, timeout=TIMEOUT_SECONDS)
