"""One process at a time changes attachments: an agent until its drain ends, or a one-shot call except while it waits.

When a DEL has succeeded, its attachment stays deleted, whichever process served the call.
"""

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from harness import cluster_node as cluster
from harness.cluster_node import ClusterNode
from harness.datastores import Site
from harness.gate_pods import LONG
from harness.gate_server import GateServer, status
from harness.lock_holder import held_by, open_to_all
from harness.netns import Netns
from harness.node import BIN, START_SECONDS, Node, agent_with, netconf
from harness.pod import Pod
from harness.policy_pods import begin, file_of, is_set_up, make
from harness.polling import wait_until
from harness.state import audit, disagreements, remains
from svc.agent import server
from svc.attach import recovery
from svc.attach.journal import Journal
from svc.attach.record import ADDING
from svc.cni.locks import EARLIER_CALLS, EARLIER_SOCKET, EARLIER_STATE

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("python_starts")]

MakePod = Callable[..., Pod]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "endpoint-status"
    path.mkdir()
    return path


@pytest.fixture
def base_node(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node for each test, because the tests stop its agent."""
    with ClusterNode(tmp_path / "node", "node1", site) as node:
        yield node


# an agent that drains


def test_del_during_a_drain_waits_for_the_add_of_its_container(web: Pod, cluster_node: ClusterNode) -> None:
    """The datastore does not answer, the agent gets SIGTERM, and the runtime kills the ADD."""
    with cluster_node.silenced(cluster_node.site):
        adding = web.begin("ADD")
        time.sleep(0.5)  # the ADD has reached the datastore
        os.kill(cluster_node.agent_pid, signal.SIGTERM)
        wait_until(lambda: not cluster_node.socket.exists())
        adding.kill()
        deleting = web.begin("DEL")
        time.sleep(0.5)
        assert not deleting.is_over
    assert deleting.result().status == 0
    assert cluster_node.wait_agent() == 0
    assert cluster.remains([cluster_node]) == []
    cluster_node.start_agent()
    assert cluster.remains([cluster_node]) == []


# calls that wait at a readiness gate


def test_del_by_an_agent_cancels_a_waiting_one_shot_add(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    node.stop_agent()
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    adding = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    node.start_agent()
    pod.delete()
    own_gate.behaviour = status(200)
    called = adding.result()
    assert (called.status, called.output["code"]) == (1, 3)
    assert "ADD cancelled" in called.output["msg"]
    assert remains(node) == []
    assert pod.netns.links() == []


def test_one_shot_del_cancels_a_waiting_one_shot_add(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    node.stop_agent()
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    adding = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    pod.delete()
    own_gate.behaviour = status(200)
    assert adding.result().output["code"] == 3
    assert remains(node) == []


def test_waiting_one_shot_add_continues_in_an_agent(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    node.stop_agent()
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    adding = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    node.start_agent()
    own_gate.behaviour = status(200)
    called = adding.result()
    assert (called.status, " queue=" in called.stderr) == (0, True), called
    assert disagreements(node) == []


def test_repeated_add_cancels_a_waiting_add(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """A runtime may repeat a call after its own timeout. The first call must not attach the container a second time."""
    node.stop_agent()
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    first = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    second = pod.begin("ADD")
    before = own_gate.connection_count
    wait_until(lambda: own_gate.connection_count > before + 2)
    own_gate.behaviour = status(200)
    assert first.result().output["code"] == 3
    assert second.result().status == 0
    assert disagreements(node) == []


def test_killed_waiting_add_leaves_a_row_that_expires(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    node.stop_agent()
    pod = own_pods(readiness_gates=[own_gate.url], readiness_gates_timeout_seconds=2)
    adding = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    adding.kill()
    assert [record.state for record in audit(node).records] == ["waiting"]
    time.sleep(2)
    node.start_agent(*agent_with({f"{recovery.__name__}.CONTINUE_SECONDS": 0.0}))
    assert remains(node) == []


def test_running_agent_removes_the_row_of_a_killed_waiting_add(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """Its deadline ends after the start of the agent."""
    node.stop_agent()
    pod = own_pods(readiness_gates=[own_gate.url], readiness_gates_timeout_seconds=4)
    adding = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    adding.kill()
    faster = {f"{recovery.__name__}.CONTINUE_SECONDS": 0.5, f"{server.__name__}.PERIOD_SECONDS": 0.5}
    node.start_agent(*agent_with(faster))
    assert [record.state for record in audit(node).records] == ["waiting"]
    wait_until(lambda: remains(node) == [])


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "one-shot"])
def test_gc_does_not_affect_a_waiting_add(own_pods: MakePod, node: Node, own_gate: GateServer, agent: bool) -> None:
    """The runtime may not list its attachment yet."""
    if not agent:
        node.stop_agent()
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    adding = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 1)
    listed: dict[str, Any] = {"cni.dev/valid-attachments": []}
    assert node.call("GC", netconf(**listed), container="", ifname="").status == 0
    own_gate.behaviour = status(200)
    assert adding.result().status == 0
    assert disagreements(node) == []


# calls that wait for policy


def test_del_by_an_agent_cancels_a_one_shot_add_that_waits_for_policy(own_pods: MakePod, node: Node, directory: Path) -> None:
    node.stop_agent()
    pod = make(own_pods, directory)
    adding = begin(pod)
    node.start_agent()
    pod.delete()
    file_of(pod, directory).touch()
    assert adding.result().output["code"] == 3
    assert remains(node) == []
    assert pod.netns.links() == []


def test_one_shot_add_that_waits_for_policy_continues_in_an_agent(own_pods: MakePod, node: Node, directory: Path) -> None:
    node.stop_agent()
    pod = make(own_pods, directory)
    adding = begin(pod)
    node.start_agent()
    file_of(pod, directory).touch()
    assert is_set_up(adding.result())
    assert disagreements(node) == []


# processes that hold the lock


def test_starting_agent_names_a_stopped_call_that_holds_the_lock(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    node.stop_agent()
    pod = own_pods()
    adding = pod.begin("ADD")
    lock = node.state_dir / "lock" / "state"
    wait_until(lambda: lock.exists() and b"ADD" in lock.read_bytes())
    pid = int(lock.read_text().split()[1].rstrip(","))
    os.kill(pid, signal.SIGSTOP)
    log = tmp_path / "log"
    directories = ["--state-dir", str(node.state_dir), "--run-dir", str(node.run_dir)]
    with log.open("wb") as file:
        agent = subprocess.Popen(
            ["ip", "netns", "exec", node.netns.name, str(BIN / "svc-agent"), "run", *directories], stderr=file
        )
    try:
        wait_until(lambda: f"process {pid} (ADD {pod.container} eth0), which is stopped" in log.read_text())
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(node.is_answered)
    assert adding.result().status == 0
    agent.terminate()
    assert agent.wait(START_SECONDS) == 0


@pytest.mark.parametrize("recorded", ["/etc/passwd", "elsewhere.sock"])
def test_error_names_the_socket_of_an_agent_that_listens_elsewhere(own_pods: MakePod, node: Node, recorded: str) -> None:
    """The agent works. Only the install record, or the agent's options, are wrong."""
    pod = own_pods()
    pod.add()
    pid, record = node.agent_pid, node.bin_dir / "svc.install"
    sound, wrong = record.read_text(), str(node.directory / recorded)
    record.write_text(sound.replace(f"socket={node.socket}\n", f"socket={wrong}\n"))
    wait_until(lambda: "runs on state directory" in pod.call("STATUS").output["msg"])  # takes over a second on a busy machine
    for verb in ("ADD", "DEL", "CHECK"):
        began = time.monotonic()
        called = pod.call(verb)
        assert time.monotonic() - began < 5
        assert (called.status, called.output["code"]) == (1, 5)
        expected = f"an agent, process {pid}, runs on state directory '{node.state_dir}', but it listens on '{node.socket}'"
        assert expected in called.output["msg"]
        assert f"repeat `svcctl install` with --socket {node.socket}" in called.output["details"]
        assert "kill" not in called.output["details"]
    record.write_text(sound)
    assert pod.call("STATUS").status == 0
    pod.delete()
    assert remains(node) == []


def test_truncated_install_record_fails_the_call(own_pods: MakePod, node: Node) -> None:
    """A truncated path would name another state directory, in which a DEL would release nothing."""
    pod = own_pods()
    pod.add()
    node.stop_agent()
    record = node.bin_dir / "svc.install"
    sound = record.read_bytes()
    for cut in (b"state_dir=" + bytes(node.state_dir.parent) + b"/sta", b"run_dir="):
        record.write_bytes(sound[: sound.index(cut) + len(cut)])
        assert pod.failed("DEL").output["msg"] == f"cannot use {record}: it is damaged"
    assert not (node.state_dir.parent / "sta").exists()
    record.write_bytes(sound)
    pod.delete()
    assert remains(node) == []


def test_locks_of_an_unprivileged_user_do_not_block_calls_or_agent(own_pods: MakePod, node: Node) -> None:
    """In earlier builds every user could enter the directories of these files."""
    open_to_all(node.directory)
    node.stop_agent()
    for folder in (node.state_dir, node.run_dir):
        folder.chmod(0o755)
    files = (node.run_dir / EARLIER_SOCKET, node.state_dir / EARLIER_STATE, node.state_dir / EARLIER_CALLS)
    for file in files:
        file.chmod(0o644)
    with ExitStack() as stack:
        for file in files:
            stack.enter_context(held_by(file, "user"))
        own_pods().add()  # without an agent
        node.start_agent()
        own_pods().add()
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
    assert stat.S_IMODE(node.state_dir.stat().st_mode) == 0o700


# socket and directories


def test_removed_socket_is_created_again(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    node.socket.unlink()
    wait_until(node.is_answered)
    assert " queue=" in pod.call("ADD").stderr
    assert disagreements(node) == []


def test_removed_run_directory_is_created_again(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    node.run_dir.rename(node.directory / "gone")
    wait_until(node.is_answered)
    assert " queue=" in pod.call("ADD").stderr
    second = node.netns.run(
        str(BIN / "svc-agent"), "run", "--state-dir", str(node.directory / "other"), "--run-dir", str(node.run_dir), check=False
    )
    assert "another agent runs on" in second.stderr


def test_directory_in_place_of_the_socket_is_logged_once(own_pods: MakePod, node: Node) -> None:
    """The agent retries, and serves calls when the directory has been removed."""
    node.socket.unlink()
    node.socket.mkdir()
    expected = f"{str(node.socket)!r} is a directory, and no call reaches the agent: remove it"
    wait_until(lambda: expected in node.log.read_text())
    time.sleep(2.2)
    assert node.log.read_text().count(str(node.socket)) == 2  # including the line of the start
    assert list(node.run_dir.glob(".[0-9]*")) == []
    node.socket.rmdir()
    wait_until(node.is_answered)
    assert " queue=" in own_pods().call("ADD").stderr


def move_state_dir(node: Node) -> str:
    """Move the state directory away, and return the error that calls then get."""
    node.state_dir.rename(node.directory / "gone")
    return f"state directory '{node.state_dir}' was removed or replaced while the agent ran"


def test_add_reports_a_removed_state_directory(own_pods: MakePod, node: Node) -> None:
    """svc creates no new store in its place, which would cause an error about missing pools."""
    own_pods().add()
    pod = own_pods()
    expected = move_state_dir(node)
    error = pod.failed("ADD").output
    assert (error["code"], error["msg"]) == (5, expected)
    assert not (node.state_dir / "store.db").exists()
    assert node.wait_agent() == 1


def test_add_in_a_cluster_reports_a_removed_state_directory(
    web: Pod, cluster_node: ClusterNode, sandbox: Callable[[], Netns]
) -> None:
    """Its row would be in a deleted file, so the agent rolls the ADD back."""
    cluster_node.site.add_pod("refused")
    refused = web.copy(container="refused", netns=sandbox(), args="K8S_POD_NAME=refused;K8S_POD_NAMESPACE=default")
    web.add()
    expected = move_state_dir(cluster_node)
    error = refused.failed("ADD").output
    assert (error["code"], error["msg"]) == (5, expected)
    assert refused.netns.links() == []
    assert cluster_node.wait_agent() == 1
    (cluster_node.directory / "gone").rename(cluster_node.state_dir)
    cluster_node.start_agent()
    assert set(cluster.audit([cluster_node]).allocations) == set(web.addresses)
    web.delete()


def test_waiting_add_reports_a_removed_state_directory(own_pods: MakePod, node: Node, own_gate: GateServer) -> None:
    """The cause is neither a DEL nor another ADD of the container."""
    pod = own_pods(readiness_gates=[own_gate.url], **LONG)
    adding = pod.begin("ADD")
    wait_until(lambda: own_gate.connection_count > 0)
    expected = move_state_dir(node)
    began = time.monotonic()
    error = adding.result().output
    assert (error["code"], error["msg"]) == (5, expected)
    assert time.monotonic() - began < 5
    assert node.wait_agent() == 1


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "removed"])
def test_agent_without_its_state_directory_exits(node: Node, replaced: bool) -> None:
    node.state_dir.rename(node.directory / "gone")
    if replaced:
        node.state_dir.mkdir()
    assert node.wait_agent() == 1
    assert f"state directory '{node.state_dir}' was removed or replaced" in node.log.read_text()
    assert not node.socket.exists()


# recovery


def test_calls_are_served_while_an_agent_recovers(web: Pod, cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """The datastore of an interrupted ADD does not answer. That of another network does."""
    web.add()
    cluster_node.apply_pools()
    cluster_node.kill_agent()
    with closing(Journal(cluster_node.state_dir / "journal.db")) as journal:
        (record,) = journal.all()
        record.state = ADDING
        journal.update(record)
    other = Pod(cluster_node, sandbox(), "c1", netconf(name="here"))
    with cluster_node.silenced(cluster_node.site):
        began = time.monotonic()
        cluster_node.start_agent(recovered=False)
        other.add()
        other.delete()
        assert time.monotonic() - began < 8, "the calls waited for the silent datastore, whose timeout is 10 s"
    web.delete()
    wait_until(lambda: cluster.remains([cluster_node]) == [])


def test_interrupted_adds_are_released_together(own_pods: MakePod, node: Node) -> None:
    """Recovery writes the releases of many interrupted ADDs together."""
    made = [own_pods() for _ in range(30)]
    for pod in made:
        pod.add()
    node.kill_agent()
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for record in journal.all():
            record.state = ADDING
            journal.update(record)
    node.start_agent()
    assert remains(node) == []
