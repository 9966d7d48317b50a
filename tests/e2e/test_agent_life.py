"""The agent's start, restart, drain and crash, and calls on a node without an agent."""

import ctypes
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.node import BIN, Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import audit, busy_store, disagreements, edit_journal, remains

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

_TGKILL = 234  # the number of the system call on x86-64
TIMEOUT_SECONDS = 20.0
SHORT_DRAIN_AGENT = (
    "import svc.agent.server as agent, svc.agent.main as main; agent.DRAIN_SECONDS = 0.2; raise SystemExit(main.main())"
)


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Send a signal to one thread, as the kernel does if it chooses this thread for a signal to the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(_TGKILL, pid, thread, number) == 0, os.strerror(ctypes.get_errno())


# restart


def test_restarted_agent_returns_the_recorded_results(own_pods: MakePod, node: Node) -> None:
    pod = own_pods(ipam={"assign_ipv6": "true"})
    first = pod.call("ADD")
    pod.result = first.output
    assert node.stop_agent() == 0
    node.start_agent()
    assert pod.call("ADD").stdout == first.stdout
    assert pod.check().status == 0
    assert disagreements(node) == []
    pod.delete()
    assert remains(node) == []


def test_attachments_of_a_killed_agent_are_kept(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    first = pod.call("ADD")
    pod.result = first.output
    node.kill_agent()
    assert node.socket.exists(), "the socket file of the killed agent is missing"
    node.start_agent()
    assert pod.call("ADD").stdout == first.stdout
    assert pod.check().status == 0
    pod.delete()
    assert remains(node) == []


def test_agent_recovers_after_a_kill_during_adds(own_pods: MakePod, node: Node) -> None:
    """The restarted agent and the runtime's DELs of failed pods remove every unfinished attachment."""
    made = [own_pods() for _ in range(24)]
    with ThreadPoolExecutor(16) as runtime:
        calls = [runtime.submit(pod.call, "ADD") for pod in made]
        wait_until(lambda: bool(audit(node).allocations))
        node.kill_agent()
        statuses = [call.result().status for call in calls]
    node.start_agent()
    assert disagreements(node) == []
    for pod, status in zip(made, statuses, strict=True):
        if status:
            pod.delete()
    kept = [pod for pod, status in zip(made, statuses, strict=True) if not status]
    assert len(audit(node).records) == len(kept)
    for pod in made:
        pod.delete()
    assert remains(node) == []


def test_agent_releases_attachments_of_an_earlier_boot_at_its_start(own_pods: MakePod, node: Node) -> None:
    """A reboot ends every sandbox, and runtimes do not call DEL for sandboxes that they have lost."""
    old, new = own_pods(), own_pods()
    old.add()
    new.add()
    node.stop_agent()
    (record,) = (record for record in audit(node).records if record.id.container_id == old.container)
    record.boot_id = "another-boot"
    edit_journal(node, record)
    node.start_agent()
    assert list(audit(node).allocations) == new.addresses
    assert [record.id.container_id for record in audit(node).records] == [new.container]
    assert new.check().status == 0


# the end of the agent


def test_sigterm_ends_an_idle_agent_with_status_0(node: Node) -> None:
    assert node.stop_agent() == 0
    assert not node.socket.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_any_thread_ends_the_agent(node: Node, number: int) -> None:
    pid = node.agent_pid
    thread = next(int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid)
    signal_thread(pid, thread, number)
    assert node.wait_agent() == 0


@pytest.mark.parametrize("signals", [1, 3], ids=["once", "repeatedly"])
def test_sigterm_finishes_the_call_in_flight(own_pods: MakePod, node: Node, signals: int) -> None:
    pod = own_pods()
    with ThreadPoolExecutor() as runtime:
        with busy_store(node):
            call = runtime.submit(pod.call, "ADD")
            wait_until(lambda: bool(audit(node).records))
            os.kill(node.agent_pid, signal.SIGTERM)
            wait_until(lambda: not node.socket.exists())
            for _ in range(1, signals):
                os.kill(node.agent_pid, signal.SIGTERM)
            wait_until(lambda: not has_pending_signal(node.agent_pid))
        assert node.wait_agent() == 0
        assert call.result().status == 0, call.result()
    assert disagreements(node) == []


def test_next_agent_rolls_back_a_call_that_exceeded_the_drain_deadline(own_pods: MakePod, node: Node) -> None:
    """The agent of this test has a short drain deadline."""
    node.stop_agent()
    node.start_agent(sys.executable, "-c", SHORT_DRAIN_AGENT)
    pod = own_pods()
    with ThreadPoolExecutor() as runtime, busy_store(node):
        call = runtime.submit(pod.call, "ADD")
        wait_until(lambda: bool(audit(node).records))
        assert node.stop_agent() == 1
        called = call.result()
    assert (called.status, called.output["code"]) == (1, 5), called
    assert "the agent closed the connection" in called.output["msg"]
    assert "1 calls were not finished" in node.log.read_text()
    node.start_agent()
    assert remains(node) == []
    pod.add()


def test_calls_during_the_drain_are_executed_without_the_agent(own_pods: MakePod, node: Node) -> None:
    made = [own_pods() for _ in range(24)]
    with ThreadPoolExecutor(24) as runtime:
        calls = [runtime.submit(pod.call, "ADD") for pod in made]
        wait_until(lambda: bool(audit(node).records))
        assert node.stop_agent() == 0
        for pod, call in zip(made, calls, strict=True):
            assert call.result().status == 0, call.result()
            pod.result = call.result().output
    assert disagreements(node) == []
    node.start_agent()
    assert [pod.check().status for pod in made] == [0] * 24


def has_pending_signal(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return any(line.startswith("ShdPnd:") and int(line.split()[1], 16) for line in status.splitlines())


# without an agent


def test_one_shot_calls_return_the_same_results_as_the_agent(own_pods: MakePod, node: Node) -> None:
    served, alone = own_pods(ipam={"assign_ipv6": "true"}), own_pods(ipam={"assign_ipv6": "true"})
    served.add()
    node.stop_agent()
    alone.add()
    assert shape(alone) == shape(served)
    for pod in (served, alone):
        assert pod.check().status == 0, pod.check()
        first = pod.call("ADD")
        assert first.output == pod.result, "an identical ADD must return the recorded result"
    assert disagreements(node) == []
    node.start_agent()
    assert [pod.check().status for pod in (served, alone)] == [0, 0]
    assert alone.call("ADD").output == alone.result
    for pod in (served, alone):
        pod.delete()
    assert remains(node) == []


def test_one_shot_del_and_gc_clean_up(own_pods: MakePod, node: Node) -> None:
    made = [own_pods() for _ in range(3)]
    for pod in made:
        pod.add()
    node.stop_agent()
    made[0].delete()
    made[0].delete()
    keep: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": made[2].container, "ifname": "eth0"}]}
    assert made[1].call("GC", **keep).status == 0
    assert list(audit(node).allocations) == made[2].addresses
    assert disagreements(node) == []
    node.start_agent()
    assert made[2].check().status == 0


def test_one_shot_errors_are_those_of_the_agent(own_pods: MakePod, node: Node) -> None:
    pod = own_pods(ipam={"ipv4_pools": ["nowhere"]})
    served = pod.failed("ADD").output
    node.stop_agent()
    alone = pod.failed("ADD").output
    for output in (served, alone):
        output["details"] = output["details"].rpartition(" [request ")[0]
    assert alone == served


def shape(pod: Pod) -> list[object]:
    """Return the parts of a result that do not depend on the pod."""
    result = pod.result
    return [
        list(result),
        [sorted(interface) for interface in result["interfaces"]],
        [sorted(ip) for ip in result["ips"]],
        len(result["routes"]),
        result["interfaces"][1]["mtu"],
    ]


# the agent and its surroundings


def test_agent_notifies_the_service_manager_of_start_and_stop(node: Node, tmp_path: Path) -> None:
    node.stop_agent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_SECONDS)
        node.start_agent(NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert manager.recv(100) == b"READY=1"
        node.stop_agent()
        assert manager.recv(100) == b"STOPPING=1"


def test_agent_starts_if_the_service_manager_does_not_listen(node: Node, tmp_path: Path) -> None:
    node.stop_agent()
    node.start_agent(NOTIFY_SOCKET=str(tmp_path / "missing"))
    assert node.stop_agent() == 0


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        (
            "--metrics",
            "8.8.8.8:9405",
            "--metrics '8.8.8.8:9405' cannot be used: Cannot assign requested address: name an address",
        ),
        ("--metrics", "[2001:db8::9]:9405", "--metrics '[2001:db8::9]:9405' cannot be used: "),
        ("--metrics", "127.0.0.1:{port}", "cannot be used: Address already in use: name an address of this node and a port"),
        ("--state-dir", "{file}", "--state-dir '{file}' cannot be used: Not a directory: name a directory"),
        ("--state-dir", "{file}/below", "--state-dir '{file}/below' cannot be used: Not a directory"),
        ("--run-dir", "{file}", "--run-dir '{file}' cannot be used: Not a directory: name a directory"),
        ("--socket", "{file}", "--socket '{file}' cannot be used: another kind of file is there: name a path"),
        ("--socket", "{file}/below", "--socket '{file}/below' cannot be used: "),
        (
            "--socket",
            "{dir}/" + "x" * 107,
            "cannot be used: the path is longer than 107 bytes: name a shorter path with --socket\n",
        ),
    ],
)
def test_option_that_cannot_be_used_is_named(tmp_path: Path, option: str, value: str, expected: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "d").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {"file": tmp_path / "file", "dir": tmp_path / "d", "port": taken.getsockname()[1]}
        directories = {"--state-dir": f"{tmp_path}/state", "--run-dir": f"{tmp_path}/run"}
        options = directories | {option: value.format(**words)}
        command = [str(BIN / "svc-agent"), "run", *(word for pair in options.items() for word in pair)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 1
    assert expected.format(**words) in done.stderr
    assert "Errno" not in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("shared", ["state", "run"])
def test_second_agent_on_a_directory_of_the_first_is_refused(node: Node, shared: str, tmp_path: Path) -> None:
    """The recovery of the second agent would roll back the calls of the first."""
    directories = {name: tmp_path / name for name in ("state", "run")} | {shared: node.directory / shared}
    command = [str(BIN / "svc-agent"), "run", *(f"--{name}-dir={path}" for name, path in directories.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 1
    assert f"another agent runs on '{directories[shared]}'" in done.stderr
    assert node.is_answered(), "the first agent must still answer"


def test_state_and_socket_may_share_a_directory(node: Node) -> None:
    node.stop_agent()
    node.run_dir = node.state_dir
    node.socket = node.state_dir / "agent.sock"
    node.start_agent()
    assert node.stop_agent() == 0


def test_agent_and_executable_use_the_configured_socket(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    """The agent reads the path from its configuration file, and the executable from its installation."""
    node.stop_agent()
    node.socket = tmp_path / "elsewhere.sock"
    node.prepare("install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket))
    (tmp_path / "agent.toml").write_text(f'socket = "{node.socket}"\n')
    node.start_agent(options=("--config", str(tmp_path / "agent.toml")))
    pod = own_pods()
    called = pod.call("ADD")
    assert (called.status, " queue=" in called.stderr) == (0, True), "the agent must execute the call"
    pod.delete()
    assert node.stop_agent() == 0


@pytest.mark.parametrize(("given", "wanted"), [("0", "-10"), ("5", "5")], ids=["default", "configured"])
def test_agent_raises_its_priority_if_none_is_configured(node: Node, given: str, wanted: str) -> None:
    """The agent needs the right to do so. The test itself runs at the default priority."""
    node.stop_agent()
    node.start_agent("nice", "-n", given, str(BIN / "svc-agent"))
    possible = subprocess.run(["nice", "-n", wanted, "nice"], capture_output=True, text=True, check=True).stdout
    assert os.getpriority(os.PRIO_PROCESS, node.agent_pid) == int(possible)


def test_only_root_can_use_the_socket(node: Node) -> None:
    mode = node.socket.stat()
    assert (stat.S_IMODE(mode.st_mode), mode.st_uid) == (0o600, 0)
    assert stat.S_IMODE(node.state_dir.stat().st_mode) == 0o700


def test_agent_does_not_load_unused_datastore_clients() -> None:
    """Each client needs 20 to 60 MiB of memory on every node."""
    heavy = {"pyroute2", "kubernetes", "grpc", "etcd3", "yaml", "click", "asyncio"}
    script = "import sys, svc.agent.main; print(*sys.modules)"
    done = subprocess.run([BIN / "python", "-c", script], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(done.stdout.split())
