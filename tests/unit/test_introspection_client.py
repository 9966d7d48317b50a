"""Client for introspection requests: agents that are old, foreign, silent or absent."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

import svc
from harness.agent_program import Program, Reply
from harness.svcctl import Cli
from svc.admin.agent_client import NoAgent, OldAgent, ask, ask_version
from svc.agent import listener as listening
from svc.agent.listener import Listener
from svc.cni.introspection_frame import REPLY_LIMIT, pack_document
from svc.cni.locks import AGENT, DRAINING, StateLock
from svc.model.errors import CallerError

TIMEOUT_SECONDS = 20.0
SHORT_SECONDS = 0.2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.sock"


@pytest.fixture
def replies(tmp_path: Path, path: Path) -> Iterator[Callable[[Reply], Path]]:
    programs: list[Program] = []

    def start(reply: Reply) -> Path:
        programs.append(Program(path, reply))
        return path

    yield start
    for program in programs:
        program.close()


def test_data_are_returned(tmp_path: Path, replies: Callable[[Reply], Path]) -> None:
    """They may come in pieces."""

    def reply(connection: socket.socket) -> None:
        frame = pack_document(b'{"data": {"a": 1}}', REPLY_LIMIT)
        for piece in (frame[:10], frame[10:]):
            connection.sendall(piece)
            time.sleep(0.01)

    assert ask(tmp_path, replies(reply), "threads") == {"a": 1}


@pytest.mark.parametrize("kind", ["state", "attachments", "calls", "reconcile"])
@pytest.mark.parametrize("data", [None, 5, [], {}, {"agent": {}}])
def test_reply_of_another_form_is_recognised(tmp_path: Path, replies: Callable[[Reply], Path], kind: str, data: Any) -> None:
    document = pack_document(orjson.dumps({"data": data}), REPLY_LIMIT)
    path = replies(lambda connection: connection.sendall(document))
    with pytest.raises(NoAgent, match=f"is not an agent of version {svc.__version__}: in its reply, data") as caught:
        ask(tmp_path, path, kind)
    assert caught.value.details.startswith("restart svc-agent")


def test_reply_of_another_form_is_an_error_of_commands(tmp_path: Path, replies: Callable[[Reply], Path]) -> None:
    """The status counts it as an agent that is down. The journal replaces it for `attachments`, if there is one."""
    document = pack_document(b'{"data": null}', REPLY_LIMIT)
    replies(lambda connection: connection.sendall(document))
    cli = Cli(tmp_path)
    for words in (["attachments"], ["reconcile"], ["explain", "--container", "c1"]):
        assert "is not an agent of version" in cli.fails(*words)
    result = cli("status")
    assert result.exit_code == 4
    assert "is not an agent of version" in " ".join(result.output.split())


def test_refusal_names_version_field_value_and_remedy(tmp_path: Path, replies: Callable[[Reply], Path]) -> None:
    refusal = {"field": "kind", "value": "x", "problem": "is not a kind of request", "remedy": "use state"}
    document = orjson.dumps({"version": "9.8.7", "error": refusal})
    with pytest.raises(CallerError) as caught:
        ask(tmp_path, replies(lambda connection: connection.sendall(pack_document(document, REPLY_LIMIT))), "x")
    assert caught.value.msg == 'the agent (of version 9.8.7) refused: kind = "x" is not a kind of request'
    assert caught.value.details == "use state"


def test_agent_of_an_earlier_release_is_named_with_the_remedy(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listener refuses the magic as it refuses another layout of calls."""
    monkeypatch.setattr(listening, "INTROSPECTION", "")
    over = threading.Event()
    with closing(Listener(path, lambda *_: None, lambda *_: None)) as listener:

        def serve() -> None:
            while not over.is_set():
                listener.poll(wait=True)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(OldAgent) as caught:
                ask(tmp_path, path, "state")
            assert ask_version(tmp_path, path) == svc.__version__
        finally:
            over.set()
            listener.wake()
            thread.join()
    assert f"the agent is of version {svc.__version__}, which cannot be inspected" in caught.value.msg
    assert caught.value.details == "install the newer version of both, and restart svc-agent"


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", pack_document(b"nonsense", 100), pack_document(b"[]", 100),
             pack_document(b"{}", 100), pack_document(b'{"error": 5}', 100)],
)  # fmt: skip
def test_other_programs_are_recognised(tmp_path: Path, replies: Callable[[Reply], Path], data: bytes) -> None:
    with pytest.raises(NoAgent, match="is not svc-agent: ") as caught:
        ask(tmp_path, replies(lambda connection: connection.sendall(data)), "state")
    assert "--run-dir" in caught.value.details


def test_connection_that_closes_without_a_reply_is_named(tmp_path: Path, replies: Callable[[Reply], Path]) -> None:
    """So an agent treats users other than root."""
    with pytest.raises(NoAgent, match="closed the connection") as caught:
        ask(tmp_path, replies(lambda _: None), "state")
    assert "run this as root" in caught.value.details


def test_silent_agent_is_given_up_in_time(tmp_path: Path, replies: Callable[[Reply], Path]) -> None:
    """The limit applies to the whole reply: single bytes do not extend it."""

    def dribble(connection: socket.socket) -> None:
        for byte in pack_document(b'{"data": 1}', 100):
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    path, began = replies(dribble), time.monotonic()
    with pytest.raises(NoAgent, match="does not answer on "):
        ask(tmp_path, path, "state", seconds=SHORT_SECONDS)
    assert time.monotonic() - began < 10 * SHORT_SECONDS


def test_missing_socket_is_named(tmp_path: Path, path: Path) -> None:
    with pytest.raises(NoAgent, match=rf"the agent does not run: socket '{path}' does not exist: start it"):
        ask(tmp_path, path, "state")


def test_socket_without_a_listener_is_named(tmp_path: Path, path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    with pytest.raises(NoAgent, match=rf"the agent does not run: no process listens on '{path}'"):
        ask(tmp_path, path, "state")


def test_agent_that_stops_is_named(tmp_path: Path, path: Path) -> None:
    """It has already removed its socket."""
    state = tmp_path / "state"
    with closing(StateLock(state, AGENT, path)) as lock:
        lock.take_as_agent(TIMEOUT_SECONDS)
        lock.admit_earlier_calls()
        lock.drain(TIMEOUT_SECONDS)
        with pytest.raises(NoAgent, match=f"the agent is stopping: process .*{DRAINING}"):
            ask(state, path, "state")


def test_agent_without_its_socket_is_named(tmp_path: Path, path: Path) -> None:
    """It is just starting, or another program has removed the socket."""
    state = tmp_path / "state"
    with closing(StateLock(state, AGENT, path)) as lock:
        lock.take_as_agent(TIMEOUT_SECONDS)
        with pytest.raises(NoAgent, match=rf"process {os.getpid()} \(agent\) does not listen on "):
            ask(state, path, "state")


def test_path_that_cannot_be_a_socket_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200)
    with pytest.raises((NoAgent, CallerError), match="too long"):
        ask(tmp_path, path, "state")
