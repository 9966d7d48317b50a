"""The native executable: the agent's reply and the deadlines for it. Also the client in Python."""

import os
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from harness.shim import (
    ATTACHMENT,
    CALLS,
    NETCONF,
    TIMEOUT_SECONDS,
    FakeAgent,
    Handler,
    Shim,
    answering,
    error_of,
    hang,
    sending,
)
from svc.cni.agent_client import call
from svc.cni.call_io import CallInput, Reply
from svc.cni.frame import REPLY_LIMIT, STDIN_LIMIT, FrameError, pack_alive, pack_reply, pack_timeout_extension

# The reply


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_reply_is_printed_and_its_status_kept(shim: Shim, status: int) -> None:
    """The output equals the reply byte for byte."""
    with FakeAgent(shim.socket, answering(status, b"\0out\xff\n", b"err\n")):
        result = shim.run("ADD")
    assert (result.returncode, result.stdout, result.stderr) == (status, b"\0out\xff\n", b"err\n")


def test_reply_comes_in_single_bytes(shim: Shim) -> None:
    """A stream has no message boundaries."""
    with FakeAgent(shim.socket, answering(1, b"result", b"log", piece=1)):
        result = shim.run("ADD")
    assert (result.returncode, result.stdout, result.stderr) == (1, b"result", b"log")


@pytest.mark.parametrize("piece", [17, 4097, 1 << 20])
def test_largest_reply_is_printed_completely(shim: Shim, piece: int) -> None:
    """It is larger than the buffer of any pipe."""
    stdout = os.urandom(1 << 16) * (REPLY_LIMIT >> 16) if piece == 1 << 20 else os.urandom(100_000)
    with FakeAgent(shim.socket, answering(0, stdout, b"", piece)):
        result = shim.run("ADD")
    assert (result.returncode, result.stdout, result.stderr) == (0, stdout, b"")


@pytest.mark.parametrize("over", [-1, 0, 1, 4096])
def test_reply_about_as_large_as_its_buffer(shim: Shim, over: int) -> None:
    """The buffer has 64 KiB, including the header. Larger replies need an allocation."""
    stdout, stderr = os.urandom((1 << 16) - 44 - 5), b"5" * (5 + over)
    with FakeAgent(shim.socket, answering(3, stdout, stderr, piece=60_000)):
        result = shim.run("ADD")
    assert (result.returncode, result.stdout, result.stderr) == (3, stdout, stderr)


def test_reply_arrives_with_the_request_for_more_time(shim: Shim) -> None:
    """One read returns all earlier requests for more time and the reply."""
    with FakeAgent(
        shim.socket, sending(2 * (pack_timeout_extension(TIMEOUT_SECONDS) + pack_alive()) + pack_reply(0, b"done", b"log"))
    ):
        result = shim.run("CHECK")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"done", b"log")


def test_success_of_an_add_without_a_result_is_an_error(shim: Shim) -> None:
    """Another program on the socket may send zeros."""
    with FakeAgent(shim.socket, answering(0, b"", b"")):
        result = shim.run("ADD")
    assert result.returncode == 1
    assert "the agent sent no result" in error_of(result)["msg"]


def test_error_of_a_broken_reply_has_the_version_of_the_call(shim: Shim) -> None:
    """The version of the network configuration is read first."""
    with FakeAgent(shim.socket, sending(b"x" * 4096)):
        result = shim.run_with({"CNI_COMMAND": "GC", "CNI_PATH": "/"}, b'{"cniVersion":"0.4.0"}')
    assert error_of(result)["cniVersion"] == "0.4.0"


def test_reply_is_written_to_a_nonblocking_pipe(shim: Shim) -> None:
    """Some runtimes use such pipes. The executable waits if the pipe is full."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    stdout = os.urandom(1 << 20)
    with FakeAgent(shim.socket, answering(0, stdout)), os.fdopen(reading, "rb") as output:
        with subprocess.Popen([shim.path], env={"CNI_COMMAND": "STATUS"}, stdin=subprocess.DEVNULL, stdout=writing) as process:
            os.close(writing)
            assert output.read() == stdout
    assert process.returncode == 0


def test_result_for_a_closed_pipe_is_a_failure(shim: Shim, agent: FakeAgent) -> None:
    """SIGPIPE does not kill the executable."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as stdout:
        result = shim.run_in_shell("", "STATUS", stdin=subprocess.DEVNULL, stdout=stdout)
    assert result.returncode == 1


def test_result_that_is_not_read_fails_in_time(fast_shim: Shim) -> None:
    """A full pipe blocks the executable for at most 10 s."""
    reading, writing = os.pipe()
    with (
        FakeAgent(fast_shim.socket, answering(0, bytes(1 << 20))),
        os.fdopen(reading, "rb"),
        os.fdopen(writing, "wb") as stdout,
    ):
        result = fast_shim.run_in_shell("", "GC", stdin=subprocess.DEVNULL, stdout=stdout)
    assert result.returncode == 1


def test_refusal_before_the_end_of_the_request_is_printed(shim: Shim) -> None:
    """The agent need not read a request that it refuses."""

    def refuse(_: FakeAgent, connection: socket.socket) -> None:
        connection.sendall(pack_reply(1, b'{"code":7}', b""))

    with FakeAgent(shim.socket, refuse):
        result = shim.run("GC", NETCONF.ljust(STDIN_LIMIT))
    assert (result.returncode, result.stdout) == (1, b'{"code":7}')


REPLY = pack_reply(0, b"result", b"log")
HEADER = b"SVC2" + bytes(28)


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 43, 44, len(REPLY) - 1])
def test_connection_closed_early_is_an_error(shim: Shim, verb: str, size: int) -> None:
    """A partial result is not printed."""
    with FakeAgent(shim.socket, sending(REPLY[:size])):
        error = error_of(shim.run(verb))
    assert (error["code"], error["cniVersion"]) == (50 if verb == "STATUS" else 5, "1.0.0")
    assert "closed" in error["msg"]
    assert str(shim.socket) in error["details"]


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol"),
        (b"SVC3" + bytes(12), "protocol"),
        (HEADER + b"\0\2\0\0" + bytes(8), "protocol"),
        (HEADER + bytes(4) + (REPLY_LIMIT + 1).to_bytes(4, "little") + bytes(4), "16 MiB"),
        (HEADER + bytes(4) + b"\xff" * 8, "16 MiB"),
    ],
    ids=["other protocol", "half a version", "status 512", "too large", "far too large"],
)
def test_invalid_reply_is_an_error(shim: Shim, reply: bytes, word: str) -> None:
    """Another program may listen on the socket."""
    with FakeAgent(shim.socket, sending(reply)):
        error = error_of(shim.run("ADD"))
    assert error["code"] == 5
    assert word in error["msg"]


# Deadlines


def test_status_is_answered_within_a_second(shim: Shim) -> None:
    """Runtimes hold a lock during STATUS."""
    with FakeAgent(shim.socket, hang):
        error = error_of(shim.run("STATUS"))
    assert error["code"] == 50
    assert "within 1 s" in error["msg"]


@pytest.mark.parametrize(
    ("verb", "limit"), [("ADD", "90 s"), ("DEL", "90 s"), ("CHECK", "10 s"), ("GC", "90 s"), ("STATUS", "1 s")]
)
def test_every_verb_has_a_deadline(fast_shim: Shim, verb: str, limit: str) -> None:
    """The error names the deadline, even if the agent continues to send signs of life."""
    with FakeAgent(fast_shim.socket, with_signs_of_life(TIMEOUT_SECONDS)):
        error = error_of(fast_shim.run(verb))
    assert error["code"] == (50 if verb == "STATUS" else 5)
    assert f"within {limit}" in error["msg"]


@pytest.mark.parametrize(
    ("verb", "limit"), [("ADD", "5 s"), ("DEL", "5 s"), ("CHECK", "5 s"), ("GC", "5 s"), ("STATUS", "1 s")]
)
@pytest.mark.parametrize(
    "first", [b"", pack_alive(), pack_timeout_extension(TIMEOUT_SECONDS), HEADER + bytes(3), pack_reply(0, b"text", b"")[:-1]]
)
def test_silent_agent_counts_as_hung(fast_shim: Shim, verb: str, limit: str, first: bytes) -> None:
    """It can be silent from the beginning, after a sign of life, or in the middle of a frame."""

    def stop(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        connection.sendall(first)
        assert connection.recv(1) == b""

    with FakeAgent(fast_shim.socket, stop):
        error = error_of(fast_shim.run(verb))
    assert error["code"] == (50 if verb == "STATUS" else 5)
    if first != pack_timeout_extension(TIMEOUT_SECONDS) or verb != "STATUS":
        assert error["msg"] == f"the agent does not respond: it is stopped or hung: no sign of life within {limit}"


def with_signs_of_life(seconds: float) -> Handler:
    """Return a handler that sends signs of life until the executable ends, or for this time and then replies."""

    def live(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        until = time.monotonic() + seconds
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < until:
                connection.sendall(pack_alive())
                time.sleep(0.005)
            connection.sendall(pack_reply(0, b"done", b""))

    return live


def test_signs_of_life_extend_a_call(fast_shim: Shim) -> None:
    """It may last longer than the limit of silence, whose 5 s are 100 ms here."""
    with FakeAgent(fast_shim.socket, with_signs_of_life(0.3)):
        result = fast_shim.run("ADD")
    assert (result.returncode, result.stdout) == (0, b"done")


def test_agent_may_ask_for_more_time(fast_shim: Shim) -> None:
    """It can do so repeatedly. CHECK has 200 ms here."""

    def wait(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        for _ in range(40):
            connection.sendall(pack_timeout_extension(TIMEOUT_SECONDS))
            time.sleep(0.01)
        connection.sendall(pack_reply(0, b"done", b""))

    with FakeAgent(fast_shim.socket, wait):
        result = fast_shim.run("CHECK")
    assert (result.returncode, result.stdout) == (0, b"done")


def test_extended_deadline_is_enforced(fast_shim: Shim) -> None:
    def wait(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        connection.sendall(pack_timeout_extension(0.03))
        assert connection.recv(1) == b""

    with FakeAgent(fast_shim.socket, wait):
        assert "did not answer within the time that it asked for" in error_of(fast_shim.run("CHECK"))["msg"]


def test_deadline_applies_to_the_whole_reply(fast_shim: Shim) -> None:
    """The agent sends single bytes slowly."""

    def trickle(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        connection.sendall(HEADER + bytes(4) + (1 << 20).to_bytes(4, "little") + bytes(4))
        pause = threading.Event()
        with suppress(BrokenPipeError, ConnectionResetError):
            while True:
                connection.sendall(b"x")
                pause.wait(0.001)

    with FakeAgent(fast_shim.socket, trickle):
        assert "within 5 s" in error_of(fast_shim.run("CHECK"))["msg"]


@pytest.mark.parametrize(("verb", "limit"), [("GC", "2 s"), ("STATUS", "1 s")])
def test_request_that_is_not_read_fails_in_time(fast_shim: Shim, verb: str, limit: str) -> None:
    """The agent hangs before it reads."""
    given_up = threading.Event()

    def ignore(_: FakeAgent, __: socket.socket) -> None:
        given_up.wait(TIMEOUT_SECONDS)

    with FakeAgent(fast_shim.socket, ignore):
        error = error_of(fast_shim.run(verb, NETCONF.ljust(STDIN_LIMIT)))
        given_up.set()
    assert error["code"] == (50 if verb == "STATUS" else 5)
    assert f"within {limit}" in error["msg"]


def test_full_backlog_fails_in_time(fast_shim: Shim) -> None:
    """A one-shot beside an agent that hangs before it accepts could do harm."""
    with (
        socket.socket(socket.AF_UNIX) as not_reading,
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
    ):
        not_reading.bind(str(fast_shim.socket))
        not_reading.listen(0)
        first.connect(str(fast_shim.socket))
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.connect(str(fast_shim.socket))
        error = error_of(fast_shim.run("ADD"))
    assert error["code"] == 5
    assert "within 2 s" in error["msg"]


# Versions


def previous_release(agent: FakeAgent, connection: socket.socket) -> None:
    """Return an agent of an earlier build, which closes the connection of any request in another version."""
    if connection.recv(4, socket.MSG_PEEK) == b"SVC1":
        agent.receive(connection)
        connection.sendall(pack_timeout_extension(TIMEOUT_SECONDS, 1) + pack_reply(3, b"out", b"err", 1))


@pytest.mark.parametrize("stdin", [NETCONF, NETCONF.ljust(STDIN_LIMIT)], ids=["usual", "largest"])
def test_agent_of_the_previous_release_is_used(shim: Shim, stdin: bytes) -> None:
    """The executable sends the request again in that release's format."""
    with FakeAgent(shim.socket, previous_release) as agent:
        result = shim.run("ADD", stdin)
    assert (result.returncode, result.stdout, result.stderr) == (3, b"out", b"err")
    (received,) = agent.received
    assert received.frame == CallInput("svc", {"CNI_COMMAND": "ADD", **ATTACHMENT}, stdin, True, protocol=1)
    assert received.descriptor is not None


def test_agent_of_the_previous_release_sends_no_signs_of_life(fast_shim: Shim) -> None:
    """It has the whole time of the verb, whose 10 s are 100 ms here."""

    def serve(agent: FakeAgent, connection: socket.socket) -> None:
        if connection.recv(4, socket.MSG_PEEK) == b"SVC1":
            hang(agent, connection)

    with FakeAgent(fast_shim.socket, serve):
        assert error_of(fast_shim.run("CHECK"))["msg"] == "the agent did not answer within 10 s"


@pytest.mark.parametrize("digit", ["3", "9"])
def test_agent_with_another_protocol_is_an_error(shim: Shim, digit: str) -> None:
    """The error names both versions and what to install."""
    with FakeAgent(shim.socket, sending(f"SVC{digit}".encode() + b"9.8.7".ljust(28, b"\0") + bytes(12))):
        error = error_of(shim.run("STATUS"))
    assert error["code"] == 50
    assert error["msg"] == "the agent is of version 9.8.7, this executable of 1.2.3: they have no protocol in common"
    assert "install the newer version of both" in error["details"]


def test_executable_names_its_version(shim: Shim, agent: FakeAgent) -> None:
    shim.run("STATUS")
    assert agent.received[0].frame.version == "1.2.3"


# The client in Python

CALL = CallInput("svc", {"CNI_COMMAND": "STATUS"}, NETCONF)


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.mark.parametrize("stdin", [NETCONF, bytes(STDIN_LIMIT)], ids=["usual", "largest"])
def test_client_makes_the_same_call(socket_path: Path, stdin: bytes) -> None:
    """It sends a descriptor with the first byte, and the caller keeps the descriptor."""
    with FakeAgent(socket_path, answering(7, b"out", b"err", piece=1)) as agent, open("/proc/self/ns/net", "rb") as netns:
        frame = CallInput("svc", CALL.environment, stdin)
        assert call(str(socket_path), frame, netns_fd=netns.fileno(), timeout=TIMEOUT_SECONDS) == Reply(7, b"out", b"err")
        status = os.fstat(netns.fileno())
    assert agent.received[0].frame == CallInput("svc", CALL.environment, stdin, True)
    assert agent.received[0].descriptor == (status.st_dev, status.st_ino)


def test_client_gives_up_at_its_timeout(socket_path: Path) -> None:
    """A hanging agent must not block its tools."""
    with FakeAgent(socket_path, hang), pytest.raises(TimeoutError):
        call(str(socket_path), CALL, timeout=0.05)


def test_client_reports_invalid_replies(socket_path: Path) -> None:
    """The connection is closed early, has another protocol, or has no listener."""

    def refuse(_: FakeAgent, connection: socket.socket) -> None:
        connection.sendall(REPLY[:-1])  # closed with the request unread: a reset

    with FakeAgent(socket_path, refuse), pytest.raises(ConnectionError, match="closed"):
        call(str(socket_path), CALL, timeout=TIMEOUT_SECONDS)
    socket_path.unlink()
    with FakeAgent(socket_path, sending(REPLY[:-1])), pytest.raises(ConnectionError, match="closed"):
        call(str(socket_path), CALL, timeout=TIMEOUT_SECONDS)
    socket_path.unlink()
    with FakeAgent(socket_path, sending(b"HTTP/1.1")), pytest.raises(FrameError):
        call(str(socket_path), CALL, timeout=TIMEOUT_SECONDS)
    with pytest.raises(ConnectionRefusedError):
        call(str(socket_path), CALL, timeout=TIMEOUT_SECONDS)
