"""The native executable: the request that the agent gets, with concurrent and killed calls."""

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from harness.shim import (
    ATTACHMENT,
    CALLS,
    NETCONF,
    TIMEOUT_SECONDS,
    FakeAgent,
    Shim,
    answering,
    error_of,
)
from svc.cni.call_io import CallInput
from svc.cni.frame import STDIN_LIMIT, pack_reply

# The request


@pytest.mark.parametrize("verb", CALLS)
def test_agent_gets_the_whole_call(shim: Shim, agent: FakeAgent, verb: str) -> None:
    """Name, environment and stdin arrive unchanged."""
    assert shim.run(verb, CNI_ARGS="A=1;B=2").returncode == 0
    (received,) = agent.received
    assert received.frame == CallInput("svc", {"CNI_COMMAND": verb, "CNI_ARGS": "A=1;B=2", **ATTACHMENT}, NETCONF, True)


def test_only_variables_of_the_call_are_sent(shim: Shim, agent: FakeAgent) -> None:
    """The agent does not get secrets and settings of the runtime."""
    own = {
        "CNI_COMMAND": "DEL",
        **ATTACHMENT,
        "CNI_": "x",
        "CNI_EMPTY": "",
        "CNI_BYTES": "\udcff=ä",
        "TRACEPARENT": "00-1-2-03",
    }
    other = {"PATH": "/bin", "HOME": "/root", "AWS_SECRET": "s", "XCNI_A": "1", "TRACEPARENT_A": "1", "TRACESTATE": "a=b"}
    shim.run_with(own | other)
    assert agent.received[0].frame.environment == own


def test_too_large_environment_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """The kernel allows more than the frame can hold."""
    error = error_of(shim.run("ADD", CNI_ARGS="a" * 100_000, CNI_MORE="a" * 100_000))
    assert (error["code"], agent.received) == (4, [])


@pytest.mark.root
def test_descriptor_is_the_network_namespace(shim: Shim, agent: FakeAgent) -> None:
    """It comes with the first byte, so that the agent needs no path."""
    holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout
        holder.stdout.readline()
        namespace = f"/proc/{holder.pid}/ns/net"
        shim.run("ADD", CNI_NETNS=namespace)
        status = os.stat(namespace)
        holder.communicate(b"\n")
    assert agent.received[0].descriptor == (status.st_dev, status.st_ino)
    assert agent.received[0].descriptor != (os.stat("/proc/self/ns/net").st_dev, os.stat("/proc/self/ns/net").st_ino)


@pytest.mark.parametrize("netns", ["/nonexistent/netns", "\n", "relative"])
def test_missing_netns_is_left_to_the_agent(shim: Shim, agent: FakeAgent, netns: str) -> None:
    """DEL must succeed without it and ADD must fail. The agent decides that."""
    assert shim.run("DEL", CNI_NETNS=netns).returncode == 0
    (received,) = agent.received
    assert (received.frame.has_descriptor, received.descriptor) == (False, None)
    assert received.frame.environment["CNI_NETNS"] == netns


def test_netns_path_of_a_pipe_does_not_block(shim: Shim, agent: FakeAgent, tmp_path: Path) -> None:
    """A normal open of a pipe without a writer blocks."""
    os.mkfifo(tmp_path / "fifo")
    assert shim.run("ADD", CNI_NETNS=str(tmp_path / "fifo")).returncode == 0
    assert agent.received[0].descriptor


# stdin


def test_stdin_may_have_a_mebibyte(shim: Shim, agent: FakeAgent) -> None:
    """A GC on a full node lists every attachment."""
    stdin = NETCONF.ljust(STDIN_LIMIT)
    assert shim.run("GC", stdin).returncode == 0
    assert agent.received[0].frame.stdin == stdin


def test_stdin_over_a_mebibyte_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """The error names the limit."""
    error = error_of(shim.run("GC", NETCONF.ljust(STDIN_LIMIT + 1)))
    assert (error["code"], error["cniVersion"], agent.received) == (7, "1.0.0", [])
    assert "1 MiB" in error["msg"]


def test_endless_stdin_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """The executable reads only up to its limit."""
    assert error_of(shim.run_in_shell("</dev/zero", "ADD"))["code"] == 7


def test_unreadable_stdin_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """A directory cannot be read."""
    error = error_of(shim.run_in_shell("</", "ADD"))
    assert error["code"] == 5
    assert "directory" in error["msg"].lower()


def test_stdin_that_does_not_end_is_an_error(fast_shim: Shim) -> None:
    """The runtime does not close it."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as other_end:
        other_end.write(NETCONF)
        error = error_of(fast_shim.run_in_shell("", "ADD", stdin=stdin))
    assert (error["code"], error["cniVersion"]) == (5, "1.0.0")
    assert "10 s" in error["msg"]


@pytest.mark.parametrize("redirections", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_do_no_harm(shim: Shim, redirections: str) -> None:
    """Otherwise the agent's socket would become one of them, and get the executable's output."""

    def handle(agent: FakeAgent, connection: socket.socket) -> None:
        answering(3, b"out" * 100_000, b"err" * 100_000)(agent, connection)
        assert connection.recv(1) == b""

    with FakeAgent(shim.socket, handle) as agent:
        assert shim.run_in_shell(redirections, "ADD").returncode == 3
        assert agent.received[0].frame.stdin == b""


# Concurrent and killed calls


def test_two_hundred_concurrent_calls(shim: Shim) -> None:
    """Each gets its own reply."""
    count = 200
    all_there = threading.Barrier(count)

    def echo(agent: FakeAgent, connection: socket.socket) -> None:
        received = agent.receive(connection)
        all_there.wait(TIMEOUT_SECONDS)
        connection.sendall(pack_reply(0, received.frame.environment["CNI_CONTAINERID"].encode(), b""))

    with FakeAgent(shim.socket, echo):
        calls = []
        for index in range(count):
            environment = {"CNI_COMMAND": "ADD", **ATTACHMENT, "CNI_CONTAINERID": f"c{index}"}
            calls.append(subprocess.Popen([shim.path], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in calls]
    assert outputs == [f"c{index}".encode() for index in range(count)]
    assert {process.returncode for process in calls} == {0}


def test_call_holds_only_its_descriptors(shim: Shim) -> None:
    """It has the standard descriptors, the socket and the namespace, and no child. A kill leaves nothing to clean up."""
    seen = []

    def look(agent: FakeAgent, connection: socket.socket) -> None:
        process = Path(f"/proc/{agent.receive(connection).pid}")
        seen.append((len(list((process / "fd").iterdir())), (process / f"task/{process.name}/children").read_text()))
        connection.sendall(pack_reply(0, b"result", b"log"))

    with FakeAgent(shim.socket, look):
        assert shim.run("ADD").returncode == 0
    assert seen == [(5, "")]


def test_killed_call_closes_its_connection(shim: Shim) -> None:
    """The agent detects that the client no longer waits."""

    def kill(agent: FakeAgent, connection: socket.socket) -> None:
        os.kill(agent.receive(connection).pid, signal.SIGKILL)
        assert connection.recv(1) == b""

    with FakeAgent(shim.socket, kill):
        assert shim.run("ADD").returncode == -signal.SIGKILL
