"""Listener of the agent: requests, deadlines, and clients that are slow, broken or disconnected."""

import array
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import svc
from harness.frames import parse_reply
from svc.agent import listener as listening
from svc.agent.listener import Listener
from svc.cni.call_io import CallInput
from svc.cni.frame import pack_request
from svc.cni.introspection_frame import pack_document

TIMEOUT_SECONDS = 20.0
SHORT_SECONDS = 0.1  # for deadlines that a test waits for
FRAME = CallInput("svc", {"CNI_COMMAND": "ADD"}, b"{}")
REQUEST = pack_request(FRAME)


class Server:
    """Listener with its own thread; it answers each request with the length of its input."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames: list[CallInput] = []
        self.descriptors: list[int] = []
        self.introspected: list[bytes] = []
        self.listener = Listener(path, self._on_request, self._on_introspection)
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="listener")
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopped:
            self.listener.poll(wait=True)

    def _on_introspection(self, connection: socket.socket, received: bytes) -> None:
        with connection:
            self.introspected.append(received)

    def _on_request(self, connection: socket.socket, inputs: CallInput) -> None:
        self.frames.append(inputs)
        self.descriptors.append(inputs.netns_fd)
        inputs.close()
        connection.setblocking(True)
        with connection, suppress(OSError):
            connection.sendall(b"%d" % len(inputs.stdin))

    def close(self) -> None:
        if self._stopped:
            return
        self.listener.stop_accepting()
        self._stopped = True
        self.listener.wake()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()
        self.listener.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "run" / "agent.sock")
    yield server
    server.close()


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[[], socket.socket]]:
    with ExitStack() as stack:

        def make() -> socket.socket:
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(TIMEOUT_SECONDS)
            client.connect(str(server.path))
            return client

        yield make


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.001)


def answer(client: socket.socket) -> bytes:
    """Return all bytes until the connection is closed; empty if the listener dropped it."""
    received = b""
    with suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            received += data
    return received


def send_descriptors(client: socket.socket, data: bytes, fds: list[int]) -> None:
    client.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


Connect = Callable[[], socket.socket]


def test_complete_request_is_forwarded(server: Server, connect: Connect) -> None:
    client = connect()
    client.sendall(REQUEST)
    assert answer(client) == b"2"
    assert (server.frames, server.descriptors) == ([FRAME], [-1])


def test_request_may_arrive_byte_by_byte(server: Server, connect: Connect) -> None:
    client = connect()
    for place in range(len(REQUEST)):
        client.sendall(REQUEST[place : place + 1])
    assert answer(client) == b"2"


def test_large_request_arrives_complete(server: Server, connect: Connect) -> None:
    """It is larger than any buffer on its way."""
    client = connect()
    client.sendall(pack_request(CallInput("svc", {}, b"x" * 1_000_000)))
    assert answer(client) == b"1000000"


@pytest.mark.parametrize("pieces", [1, 4, 1000])
def test_introspection_request_is_passed_on_unread(server: Server, connect: Connect, pieces: int) -> None:
    """Its receiver gets the bytes that the listener needed to recognise it, and its connection. A descriptor is closed."""
    frame = pack_document(b"{}", 2)
    before = set(os.listdir("/proc/self/fd"))
    client = connect()
    send_descriptors(client, frame[:pieces], [0])
    if frame[pieces:]:
        with suppress(BrokenPipeError):
            client.sendall(frame[pieces:])
    assert answer(client) == b""
    (received,) = server.introspected
    assert frame.startswith(received)
    assert len(received) >= 4
    client.close()
    wait_for(lambda: set(os.listdir("/proc/self/fd")) == before)
    assert server.frames == []


@pytest.mark.parametrize("magic", [b"SVCi", b"SVC9", b"SVCJ"])
def test_other_magic_is_refused_as_before(server: Server, connect: Connect, magic: bytes) -> None:
    """Clients that know only other layouts read the versions from the reply."""
    client = connect()
    client.sendall(magic + b"9.8.7".ljust(28, b"\0"))
    reply = parse_reply(answer(client))
    assert "the executable is of version 9.8.7" in reply.stdout.decode()
    assert server.introspected == []


@pytest.mark.parametrize("size", [0, 1, 5, len(REQUEST) - 1])
def test_incomplete_request_is_dropped_at_its_deadline(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """It is not dropped earlier or much later, and it delays no other client."""
    monkeypatch.setattr(listening, "READ_SECONDS", SHORT_SECONDS)
    started = time.monotonic()
    slow, quick = connect(), connect()
    slow.sendall(REQUEST[:size])
    quick.sendall(REQUEST)
    assert answer(quick) == b"2"
    assert answer(slow) == b""
    assert SHORT_SECONDS <= time.monotonic() - started < 10
    assert server.frames == [FRAME]


def test_slow_bytes_do_not_extend_the_deadline(server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the connection, not from the last byte."""
    monkeypatch.setattr(listening, "READ_SECONDS", SHORT_SECONDS)
    client, deadline = connect(), time.monotonic() + TIMEOUT_SECONDS
    client.sendall(pack_request(CallInput("svc", {}, b"x" * 1_000_000))[:20])
    with suppress(BrokenPipeError, ConnectionResetError):
        while time.monotonic() < deadline:
            client.sendall(b"x")
            time.sleep(SHORT_SECONDS / 20)
    assert time.monotonic() < deadline
    assert server.frames == []


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"SVC1" + b"\xff" * 20, b"SVC2" + b"\xff" * 68, REQUEST + b"more", os.urandom(100_000)],
    ids=["http", "lengths of an earlier build", "lengths", "surplus", "noise"],
)
def test_garbage_is_dropped_at_once(server: Server, connect: Connect, garbage: bytes) -> None:
    """The listener does not wait for the deadline, and goes on serving other clients."""
    client = connect()
    with suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(garbage)
    assert answer(client) == b""
    other = connect()
    other.sendall(REQUEST)
    assert answer(other) == b"2"


def test_reply_to_another_version_says_what_to_install(server: Server, connect: Connect) -> None:
    """The reply names both versions."""
    client = connect()
    client.sendall(b"SVC7" + b"9.8.7".ljust(28, b"\0") + bytes(1000))
    reply = parse_reply(answer(client))
    error = json.loads(reply.stdout)
    assert (reply.status, error["code"]) == (1, 5)
    assert error["msg"].startswith(f"the executable is of version 9.8.7, the agent of {svc.__version__}")
    assert "install" in error["details"]


def test_refused_requests_are_logged_once(server: Server, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """The line names the process that sent them."""
    for _ in range(50):
        client = connect()
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert answer(client) == b""
    (line,) = caplog.messages
    assert line.startswith(f"refused a request of process {os.getpid()}: frame starts with b'GET ', not SVC2")


@pytest.mark.parametrize("size", [0, 7, len(REQUEST) - 1])
def test_client_that_disconnects_early_is_removed(server: Server, connect: Connect, size: int) -> None:
    client = connect()
    client.sendall(REQUEST[:size])
    client.close()
    other = connect()
    other.sendall(REQUEST)
    assert answer(other) == b"2"
    wait_for(lambda: not server.listener._clients)


def test_request_of_a_disconnected_client_is_forwarded(server: Server, connect: Connect) -> None:
    """The worker decides whether to carry it out: it does so for a DEL."""
    client = connect()
    client.sendall(REQUEST)
    client.close()
    wait_for(lambda: server.frames == [FRAME])


def test_descriptor_is_forwarded_with_its_request(server: Server, connect: Connect) -> None:
    """The receiver has to close it."""
    client = connect()
    with open("/etc/hostname", "rb") as file:
        send_descriptors(client, REQUEST, [file.fileno()])
        assert answer(client) == b"2"
    assert server.descriptors[0] >= 0


@pytest.mark.parametrize("number", [2, 4, 50])
def test_surplus_descriptors_are_closed(server: Server, connect: Connect, number: int) -> None:
    """The listener forwards the first and closes the others."""
    before = len(os.listdir("/proc/self/fd"))
    client = connect()
    with open("/etc/hostname", "rb") as file:
        send_descriptors(client, REQUEST[:3], [file.fileno()] * number)
        send_descriptors(client, REQUEST[3:], [file.fileno()] * number)
        assert answer(client) == b"2"
    client.close()
    assert server.descriptors[0] >= 0
    wait_for(lambda: len(os.listdir("/proc/self/fd")) == before)


@pytest.mark.parametrize("end", ["deadline", "garbage", "hang-up"])
def test_descriptor_of_a_dropped_client_is_closed(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(listening, "READ_SECONDS", SHORT_SECONDS if end == "deadline" else TIMEOUT_SECONDS)
    before = len(os.listdir("/proc/self/fd"))
    client = connect()
    with open("/etc/hostname", "rb") as file:
        send_descriptors(client, b"nonsense" if end == "garbage" else REQUEST[:3], [file.fileno()])
    if end != "hang-up":
        assert answer(client) == b""
    client.close()
    wait_for(lambda: len(os.listdir("/proc/self/fd")) == before)


def test_many_clients_are_served_at_once(server: Server, connect: Connect) -> None:
    """Half of them never complete their request, which does not delay the others."""
    clients = [connect() for _ in range(300)]
    for number, client in enumerate(clients):
        client.sendall(REQUEST if number % 2 else REQUEST[:10])
    assert [answer(client) for client in clients[1::2]] == [b"2"] * 150
    assert len(server.frames) == 150


def test_client_of_another_user_is_refused(server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused even if the permissions of the file let it connect."""
    monkeypatch.setattr(listening, "_peer", lambda connection: (1, os.geteuid() + 1))
    client = connect()
    with suppress(BrokenPipeError):
        client.sendall(REQUEST)
    assert answer(client) == b""
    assert server.frames == []


def test_only_the_owner_can_use_the_socket(server: Server) -> None:
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


def test_socket_that_a_killed_agent_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as old:
        old.bind(str(path))
    server = Server(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        client.sendall(REQUEST)
        assert answer(client) == b"2"
    server.close()


def test_close_drops_incomplete_requests(server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is removed, so that the next call runs without an agent at once."""
    monkeypatch.setattr(listening, "LAST_SECONDS", SHORT_SECONDS)
    half = connect()
    half.sendall(REQUEST[:10])
    wait_for(lambda: len(server.listener._clients) == 1)
    server.close()
    assert answer(half) == b""
    assert not server.path.exists()


def test_close_forwards_requests_that_arrive_in_time(server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connected client is served; a later one is refused."""
    monkeypatch.setattr(listening, "LAST_SECONDS", TIMEOUT_SECONDS)
    half = connect()
    half.sendall(REQUEST[:10])
    wait_for(lambda: len(server.listener._clients) == 1)
    closing = threading.Thread(target=server.close)
    closing.start()
    wait_for(lambda: not server.path.exists())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as late, pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        late.connect(str(server.path))
    half.sendall(REQUEST[10:])
    assert answer(half) == b"2"
    closing.join(TIMEOUT_SECONDS)
    assert server.frames == [FRAME]


def test_wake_can_be_repeated(server: Server) -> None:
    """A signal handler calls it any number of times, also after the listener was closed."""
    for _ in range(10_000):
        server.listener.wake()
    server.close()
    server.listener.wake()


def test_wake_all_ends_the_polls_of_all_threads(server: Server) -> None:
    """One thread polls all the time, like a worker that finishes the queued calls."""
    polling_done = threading.Event()
    waiting = [threading.Thread(target=server.listener.poll, kwargs={"wait": True}) for _ in range(8)]
    for thread in waiting:
        thread.start()

    def poll_repeatedly() -> None:
        while not polling_done.is_set():
            server.listener.poll(wait=False)

    polling = threading.Thread(target=poll_repeatedly)
    polling.start()
    server.listener.wake_all()
    for thread in waiting:
        thread.join(TIMEOUT_SECONDS)
    polling_done.set()
    polling.join(TIMEOUT_SECONDS)
    assert not any(thread.is_alive() for thread in waiting)
