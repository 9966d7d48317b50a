"""The client of a running agent: long requests, extensions, and agents that do not answer."""

import socket
import threading
import time
from pathlib import Path

import pytest

from harness.shim import FakeAgent
from svc.cni import agent_client
from svc.cni.agent_client import call
from svc.cni.call_io import CallInput, Reply
from svc.cni.frame import pack_reply, pack_timeout_extension

INPUTS = CallInput("svc", {"CNI_COMMAND": "ADD"}, b"{}")
REPLY = pack_reply(0, b"out", b"err")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


def test_request_may_exceed_the_buffer_of_the_socket(path: Path) -> None:
    def answer(agent: FakeAgent, connection: socket.socket) -> None:
        time.sleep(0.02)  # the client cannot send all at once
        agent.receive(connection)
        connection.sendall(REPLY)

    with FakeAgent(path, answer) as agent:
        inputs = CallInput("svc", {"CNI_COMMAND": "ADD"}, b"x" * 1_000_000)
        assert call(str(path), inputs, timeout=30.0) == Reply(0, b"out", b"err")
    assert agent.received[0].frame.stdin == inputs.stdin


def test_agent_may_ask_for_more_time(path: Path) -> None:
    def answer(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        connection.sendall(pack_timeout_extension(30.0))
        time.sleep(0.3)
        connection.sendall(REPLY)

    with FakeAgent(path, answer):
        assert call(str(path), INPUTS, timeout=0.2).status == 0


def test_agent_that_closes_the_connection_is_an_error(path: Path) -> None:
    with FakeAgent(path, lambda agent, connection: connection.sendall(REPLY[:5])):
        with pytest.raises(ConnectionError, match="before the end of its reply"):
            call(str(path), INPUTS, timeout=30.0)


@pytest.mark.parametrize(
    ("silence", "timeout", "text"),
    [(0.05, 30.0, "the agent does not respond"), (30.0, 0.05, "did not answer in time"), (30.0, 0.0, "did not answer in time")],
    ids=["silent", "late", "no time"],
)
def test_agent_that_does_not_answer_is_an_error(
    path: Path, silence: float, timeout: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_client, "SILENCE_SECONDS", silence)
    over = threading.Event()
    with FakeAgent(path, lambda agent, connection: over.wait()):  # type: ignore[arg-type]
        with pytest.raises(TimeoutError, match=text):
            call(str(path), INPUTS, timeout=timeout)
        over.set()
