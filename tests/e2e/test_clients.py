"""The agent's socket and its clients: the silent, the broken, the unwelcome, and those that end while they wait."""

import array
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import orjson
import pytest

from harness.netns import run
from harness.node import Node, netconf
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import State, audit, busy_store, faults, remains
from svc.cni.agent_client import call
from svc.cni.call_io import Reply
from svc.cni.frame import Frame, pack_request, parse_reply

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
Connect = Callable[[], socket.socket]

PATIENCE = 20.0
VERSION = pack_request(Frame("svc", {"CNI_COMMAND": "VERSION"}, b"", False))


@pytest.fixture
def connect(shared_node: Node) -> Iterator[Connect]:
    """Opens connections to the agent."""
    with ExitStack() as stack:

        def make() -> socket.socket:
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(PATIENCE)
            client.connect(str(shared_node.socket))
            return client

        yield make


def received(client: socket.socket) -> bytes:
    """All that comes until the connection ends; empty when it was dropped."""
    data = b""
    try:
        while chunk := client.recv(1 << 16):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def descriptors(node: Node) -> int:
    return len(os.listdir(f"/proc/{node.agent_pid}/fd"))


def send_with(client: socket.socket, data: bytes, fds: list[int]) -> None:
    client.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def frame(pod: Pod, verb: str = "ADD", **environment: str) -> Frame:
    """What the executable sends for a call of the pod."""
    variables = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": pod.container,
        "CNI_IFNAME": pod.ifname,
        "CNI_NETNS": pod.netns.path,
        **environment,
    }
    return Frame("svc", variables, orjson.dumps(pod.config), False)


def output(reply: Reply) -> Any:
    return orjson.loads(reply.stdout)


# those who do not speak


def test_silent_clients_are_dropped_and_keep_nobody_waiting(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    """Nothing, half a header, half a request, and one that sends a byte now and then."""
    started = time.monotonic()
    clients = [connect() for _ in range(200)]
    for client, sent in zip(clients, (b"", VERSION[:10], VERSION[:-1]), strict=False):
        client.sendall(sent)
    pod = pods()
    pod.add()
    pod.delete()
    assert time.monotonic() - started < 4, "served while they all were connected"
    connected = descriptors(shared_node)
    drip(clients[-1])
    assert [received(client) for client in clients] == [b""] * 200
    assert time.monotonic() - started > 4, "they had their time"
    wait_until(lambda: descriptors(shared_node) == connected - 200)


def drip(client: socket.socket) -> None:
    """Until the other end has closed."""
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
def test_garbage_costs_the_connection_at_once(connect: Connect, shared_node: Node, data: bytes) -> None:
    before, started = State.read(shared_node), time.monotonic()
    client = connect()
    client.sendall(data)
    assert received(client) == b""
    assert time.monotonic() - started < 4, "before silent ones are dropped"
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


# those who send descriptors


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


def test_descriptor_that_is_no_namespace_is_refused(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    with open("/etc/hostname") as file:
        reply = call(str(shared_node.socket), frame(pod), netns_fd=file.fileno(), timeout=PATIENCE)
    assert (reply.status, output(reply)["code"]) == (1, 4)
    assert remains(shared_node) == []


def test_descriptor_of_the_nodes_own_namespace_is_refused(pods: MakePod, shared_node: Node) -> None:
    """For every path."""
    pod = pods()
    with open(shared_node.netns.path) as file:
        reply = call(str(shared_node.socket), frame(pod), netns_fd=file.fileno(), timeout=PATIENCE)
    assert (reply.status, output(reply)["code"]) == (1, 8)
    assert remains(shared_node) == []


def test_descriptor_counts_and_not_the_path(pods: MakePod, shared_node: Node) -> None:
    """The path may lead elsewhere in the agent's mount namespace, or nowhere; the result tells it all the same."""
    pod = pods()
    with open(pod.netns.path) as file:
        request = frame(pod, CNI_NETNS="/run/netns/of-another-mount-namespace")
        reply = call(str(shared_node.socket), request, netns_fd=file.fileno(), timeout=PATIENCE)
    assert reply.status == 0, reply
    result = output(reply)
    assert result["interfaces"][1]["sandbox"] == "/run/netns/of-another-mount-namespace"
    assert pod.netns.addresses("eth0") == [result["ips"][0]["address"]]


def test_path_counts_where_no_descriptor_came(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    reply = call(str(shared_node.socket), frame(pod), timeout=PATIENCE)
    assert reply.status == 0, reply
    assert pod.netns.links() == ["eth0"]


# those who are not root

STRANGER = """
import os, socket, sys
directory = os.open(sys.argv[1], os.O_PATH)  # while still allowed to
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


def stranger_gets(node: Node) -> str:
    """What becomes of a call by a user who is not root."""
    command = [sys.executable, "-c", STRANGER, str(node.run_dir), VERSION.hex()]
    return run(*command).stdout.strip()


def test_socket_cannot_be_reached_by_others(shared_node: Node) -> None:
    assert stranger_gets(shared_node) == "PermissionError"


def test_stranger_who_reaches_the_socket_is_dropped(shared_node: Node) -> None:
    """As after an administrator has loosened its mode."""
    shared_node.socket.chmod(0o666)
    try:
        assert stranger_gets(shared_node) in ("dropped", "ConnectionResetError", "BrokenPipeError")
    finally:
        shared_node.socket.chmod(0o600)


# those who die while they wait


def is_journalled(pod: Pod) -> bool:
    return any(record.id.container_id == pod.container for record in audit(pod.node).records)


def hang_up_in_the_queue(connect: Connect, pod: Pod, verb: str) -> None:
    """A caller that is killed after its request was taken: a later call was answered by then."""
    with connect() as caller:
        caller.sendall(pack_request(frame(pod, verb)))
        assert " queue=" in pod.node.call("STATUS", netconf()).stderr, "the agent has answered, whatever it says of the store"


def test_add_whose_caller_was_killed_is_taken_down_by_the_del(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    """The agent cannot know that the runtime gave up; every runtime then calls DEL."""
    pod = pods()
    with busy_store(shared_node), connect() as caller:
        caller.sendall(pack_request(frame(pod)))
        wait_until(lambda: is_journalled(pod))
        caller.close()
    pod.delete()
    assert remains(shared_node) == []
    assert pod.netns.links() == []


def test_add_whose_caller_was_killed_in_the_queue_is_not_begun(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    """It waits for another call of its container; no client would get its result."""
    first = pods()
    with ThreadPoolExecutor() as runtime:
        with busy_store(shared_node):
            served = runtime.submit(first.call, "ADD")
            wait_until(lambda: is_journalled(first))
            hang_up_in_the_queue(connect, first.copy(ifname="eth1"), "ADD")
        assert served.result().status == 0
    assert shared_node.call("GC", netconf(name="none"), container=first.container).status == 1, "it waits behind both"
    assert first.netns.links() == ["eth0"]
    assert faults(shared_node) == []


def test_del_whose_caller_was_killed_in_the_queue_is_carried_out(connect: Connect, pods: MakePod, shared_node: Node) -> None:
    """Everything is deleted, also when no client waits for the answer."""
    pod = pods()
    with ThreadPoolExecutor() as runtime:
        with busy_store(shared_node):
            served = runtime.submit(pod.call, "ADD")
            wait_until(lambda: is_journalled(pod))
            hang_up_in_the_queue(connect, pod, "DEL")
        assert served.result().status == 0
    wait_until(lambda: remains(shared_node) == [])


def test_killed_executable_leaves_nothing_of_its_own(pods: MakePod, shared_node: Node) -> None:
    """It has no state: no file, no process, no child."""
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
