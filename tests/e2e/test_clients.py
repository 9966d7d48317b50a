"""The agent's socket and clients that are silent, send garbage, are not root, or end while they wait."""

import array
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.frames import parse_reply
from harness.netns import run
from harness.node import Node, netconf
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import State, audit, busy_store, disagreements, remains
from svc.cni.agent_client import call
from svc.cni.call_io import CallInput, Reply
from svc.cni.frame import pack_request

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
Connect = Callable[[], socket.socket]

TIMEOUT_SECONDS = 20.0
VERSION = pack_request(CallInput("svc", {"CNI_COMMAND": "VERSION"}, b""))


@pytest.fixture
def connect(shared_node: Node) -> Iterator[Connect]:
    """Return a function that opens connections to the agent."""
    with ExitStack() as stack:

        def make() -> socket.socket:
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(TIMEOUT_SECONDS)
            client.connect(str(shared_node.socket))
            return client

        yield make


def received(client: socket.socket) -> bytes:
    """Return all data until the end of the connection. It is empty if the agent dropped the connection."""
    data = b""
    try:
        while chunk := client.recv(1 << 16):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def descriptors(node: Node) -> int:
    """Return the number of the agent's descriptors, without the netlink socket that each thread opens at its first use."""
    process = Path(f"/proc/{node.agent_pid}")
    netlink = {f"socket:[{line.split()[-1]}]" for line in (process / "net" / "netlink").read_text().splitlines()}
    found = []
    for fd in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the directory was read
            found.append(os.readlink(fd))
    return len([target for target in found if target not in netlink])


def send_with(client: socket.socket, data: bytes, fds: list[int]) -> None:
    client.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def frame(pod: Pod, verb: str = "ADD", **environment: str) -> CallInput:
    """Return the frame that the executable sends for a call of the pod."""
    variables = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": pod.container,
        "CNI_IFNAME": pod.ifname,
        "CNI_NETNS": pod.netns.path,
        **environment,
    }
    return CallInput("svc", variables, orjson.dumps(pod.config))


def output(reply: Reply) -> Any:
    return orjson.loads(reply.stdout)


# silent and broken clients


def test_silent_clients_are_dropped_and_do_not_delay_calls(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    """The clients send nothing, half a header, half a request, or a byte now and then."""
    started = time.monotonic()
    clients = [connect() for _ in range(200)]
    for client, sent in zip(clients, (b"", VERSION[:10], VERSION[:-1]), strict=False):
        client.sendall(sent)
    pod = pods()
    pod.add()
    pod.delete()
    assert time.monotonic() - started < 4, "the agent must execute calls while all clients are connected"
    connected = descriptors(shared_node)
    drip(clients[-1])
    assert [received(client) for client in clients] == [b""] * 200
    assert time.monotonic() - started > 4, "the agent dropped the clients too early"
    wait_until(lambda: descriptors(shared_node) == connected - 200)


def drip(client: socket.socket) -> None:
    """Send a byte now and then until the agent closes the connection."""
    for byte in VERSION:
        try:
            client.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.3)


GARBAGE = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "wrong magic": b"SVC!" + VERSION[4:],
    "huge name": b"SVC1" + b"\xff" * 4 + bytes(16),
    "huge profile": b"SVC1" + bytes(4) + b"\xff" * 4 + bytes(12),
    "huge environment": b"SVC1" + bytes(8) + b"\xff" * 4 + bytes(8),
    "huge input": b"SVC1" + bytes(12) + b"\xff" * 4 + bytes(4),
    "unknown flags": VERSION[:68] + b"\x02\0\0\0" + VERSION[72:],
    "more than a request": VERSION + b"x",
    "two requests": VERSION + VERSION,
    "environment without an end": b"SVC1" + b"\x03\0\0\0" + bytes(4) + b"\x03\0\0\0" + bytes(8) + b"svcA=b",
    "environment without names": b"SVC1" + b"\x03\0\0\0" + bytes(4) + b"\x04\0\0\0" + bytes(8) + b"svcabc\0",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_the_connection_at_once(connect: Connect, shared_node: Node, data: bytes) -> None:
    before, started = State.read(shared_node), time.monotonic()
    client = connect()
    client.sendall(data)
    assert received(client) == b""
    assert time.monotonic() - started < 4, "the agent must drop it earlier than a silent client"
    assert shared_node.call("STATUS", netconf()).status == 0
    assert State.read(shared_node) == before


def test_client_that_closes_early_leaves_nothing(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    before = descriptors(shared_node)
    for size in (0, 3, 19, 40):
        client = connect()
        client.sendall(VERSION[:size])
        client.close()
    wait_until(lambda: descriptors(shared_node) == before)
    pods().add()


# clients that send descriptors


def test_surplus_descriptors_are_closed(connect: Connect, shared_node: Node) -> None:
    before = descriptors(shared_node)
    with open("/etc/hostname") as file:
        client = connect()
        send_with(client, VERSION, [file.fileno()] * 250)
        assert parse_reply(received(client)).status == 0
        half = connect()
        send_with(half, VERSION[:5], [file.fileno()] * 250)
        for _ in range(20):
            send_with(half, b"", [file.fileno()] * 250)
        half.close()
    wait_until(lambda: descriptors(shared_node) == before)


def test_descriptor_that_is_not_a_namespace_is_refused(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    with open("/etc/hostname") as file:
        reply = call(str(shared_node.socket), frame(pod), netns_fd=file.fileno(), timeout=TIMEOUT_SECONDS)
    assert (reply.status, output(reply)["code"]) == (1, 4)
    assert remains(shared_node) == []


def test_descriptor_of_the_nodes_own_namespace_is_refused(pods: MakePod, shared_node: Node) -> None:
    """The agent refuses it although the path leads to another namespace."""
    pod = pods()
    with open(shared_node.netns.path) as file:
        reply = call(str(shared_node.socket), frame(pod), netns_fd=file.fileno(), timeout=TIMEOUT_SECONDS)
    assert (reply.status, output(reply)["code"]) == (1, 8)
    assert remains(shared_node) == []


def test_descriptor_takes_precedence_over_the_path(pods: MakePod, shared_node: Node) -> None:
    """In the agent's mount namespace, the path may lead elsewhere or not exist. The result still contains it."""
    pod = pods()
    with open(pod.netns.path) as file:
        request = frame(pod, CNI_NETNS="/run/netns/of-another-mount-namespace")
        reply = call(str(shared_node.socket), request, netns_fd=file.fileno(), timeout=TIMEOUT_SECONDS)
    assert reply.status == 0, reply
    result = output(reply)
    assert result["interfaces"][1]["sandbox"] == "/run/netns/of-another-mount-namespace"
    assert pod.netns.addresses("eth0") == [result["ips"][0]["address"]]


def test_path_is_used_if_no_descriptor_was_sent(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    reply = call(str(shared_node.socket), frame(pod), timeout=TIMEOUT_SECONDS)
    assert reply.status == 0, reply
    assert pod.netns.links() == ["eth0"]


# users other than root

OTHER_USER = """
import os, socket, sys
directory = os.open(sys.argv[1], os.O_PATH)  # only root may open it
os.setgroups([]); os.setgid(65534); os.setuid(65534)
client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
client.settimeout(10)
try:
    client.connect(f"/proc/self/fd/{directory}/agent.sock")
    client.sendall(bytes.fromhex(sys.argv[2]))
    print("answered" if client.recv(1) else "dropped")
except OSError as error:
    print(type(error).__name__)
"""


def response_to_other_user(node: Node) -> str:
    """Return the result of a call by a user other than root."""
    command = [sys.executable, "-c", OTHER_USER, str(node.run_dir), VERSION.hex()]
    return run(*command).stdout.strip()


def test_other_users_cannot_reach_the_socket(shared_node: Node) -> None:
    assert response_to_other_user(shared_node) == "PermissionError"


def test_connection_of_another_user_is_dropped(shared_node: Node) -> None:
    """An administrator may have changed the mode of the socket."""
    shared_node.socket.chmod(0o666)
    try:
        assert response_to_other_user(shared_node) in ("dropped", "ConnectionResetError", "BrokenPipeError")
    finally:
        shared_node.socket.chmod(0o600)


# clients that end while they wait


def is_journalled(pod: Pod) -> bool:
    return any(record.id.container_id == pod.container for record in audit(pod.node).records)


def disconnect_in_the_queue(connect: Connect, pod: Pod, verb: str) -> None:
    """Send a request and close the connection after the agent has accepted it: it has answered a later call."""
    with connect() as caller:
        caller.sendall(pack_request(frame(pod, verb)))
        assert " queue=" in pod.node.call("STATUS", netconf()).stderr, "the agent must answer; the status does not matter"


def test_del_tears_down_an_add_whose_caller_was_killed(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    """The agent cannot know that the runtime was killed, but every runtime then calls DEL."""
    pod = pods()
    with busy_store(shared_node), connect() as caller:
        caller.sendall(pack_request(frame(pod)))
        wait_until(lambda: is_journalled(pod))
        caller.close()
    pod.delete()
    assert remains(shared_node) == []
    assert pod.netns.links() == []


def test_queued_add_whose_caller_was_killed_is_not_started(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    """The ADD waits for another call of its container, and no client would get its result."""
    first = pods()
    with ThreadPoolExecutor() as runtime:
        with busy_store(shared_node):
            served = runtime.submit(first.call, "ADD")
            wait_until(lambda: is_journalled(first))
            disconnect_in_the_queue(connect, first.copy(ifname="eth1"), "ADD")
        assert served.result().status == 0
    assert shared_node.call("GC", netconf(name="none"), container=first.container).status == 1, "this call waits for both ADDs"
    assert first.netns.links() == ["eth0"]
    assert disagreements(shared_node) == []


def test_queued_del_whose_caller_was_killed_is_executed(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    """DEL removes the attachment although no client waits for the answer."""
    pod = pods()
    with ThreadPoolExecutor() as runtime:
        with busy_store(shared_node):
            served = runtime.submit(pod.call, "ADD")
            wait_until(lambda: is_journalled(pod))
            disconnect_in_the_queue(connect, pod, "DEL")
        assert served.result().status == 0
    wait_until(lambda: remains(shared_node) == [])


def test_killed_executable_leaves_no_files(pods: MakePod, shared_node: Node) -> None:
    """The executable has no state on disk and starts no process."""
    pod = pods()
    files = sorted(shared_node.directory.rglob("*"))
    with busy_store(shared_node):
        process = subprocess.Popen(
            ["ip", "netns", "exec", shared_node.netns.name, str(shared_node.bin_dir / "svc")],
            env={**os.environ, **frame(pod).environment},
            stdin=subprocess.PIPE,
        )
        with process:
            assert process.stdin is not None
            process.stdin.write(orjson.dumps(pod.config))
            process.stdin.close()
            wait_until(lambda: is_journalled(pod))
            process.kill()
    pod.delete()
    assert [path for path in sorted(shared_node.directory.rglob("*")) if path not in files] == []
