"""Threads that serve introspection requests: refusals, limits, and clients that do not read."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from harness.polling import wait_until
from svc.agent import introspection_server as serving
from svc.agent.introspection_server import IntrospectionServer
from svc.cni.introspection_frame import REPLY_LIMIT, REQUEST_LIMIT, DocumentReader, pack_document

TIMEOUT_SECONDS = 20.0
LARGE = {"data": "x" * (4 << 20)}  # more than the buffers of a connection


class Agent:
    """Server whose answer a test sets, and its clients."""

    def __init__(self) -> None:
        self.answer: Callable[[bytes], dict[str, Any]] = lambda document: {"data": json.loads(document)}
        self.server = IntrospectionServer(lambda: lambda document: self.answer(document))
        self._stack = ExitStack()

    def connect(self, data: bytes) -> socket.socket:
        """Return a client that has sent the data, of which the agent has read the first four bytes."""
        agent_end, client = socket.socketpair()
        self._stack.enter_context(client)
        client.settimeout(TIMEOUT_SECONDS)
        client.sendall(data[4:])
        self.server.accept(agent_end, data[:4])
        return client

    def ask(self, data: bytes) -> Any:
        return reply(self.connect(data))

    def close(self) -> None:
        self._stack.close()
        wait_until(lambda: all(thread.name != "introspection" for thread in threading.enumerate()))


def reply(client: socket.socket) -> Any:
    reader, document = DocumentReader(REPLY_LIMIT), None
    while document is None:
        data = client.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        document = reader.feed(data)
    with suppress(ConnectionResetError):  # the agent has not read the rest of a request that it refuses
        assert client.recv(1) == b""
    return json.loads(document)


def request(document: bytes = b"{}") -> bytes:
    return pack_document(document, REPLY_LIMIT)


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.close()


def test_request_is_answered(agent: Agent) -> None:
    assert agent.ask(request(b'{"kind": "state"}')) == {"data": {"kind": "state"}}


def test_too_large_request_is_refused_with_field_value_and_remedy(agent: Agent) -> None:
    size = REQUEST_LIMIT + 1
    error = agent.ask(request(b"x" * size))["error"]
    assert error == {
        "field": "length",
        "value": size,
        "problem": f"is more than {REQUEST_LIMIT} bytes",
        "remedy": "send a shorter request: it needs a kind and few options",
    }


def test_surplus_bytes_are_refused(agent: Agent) -> None:
    error = agent.ask(request() + b"x")["error"]
    assert error["problem"] == "1 bytes follow the end of the document"
    assert "docs/reference/introspection.md" in error["remedy"]


def test_too_large_reply_becomes_an_error(agent: Agent) -> None:
    agent.answer = lambda _: {"data": "x" * REPLY_LIMIT}
    error = agent.ask(request())["error"]
    assert f"more than {REPLY_LIMIT}" in error["problem"]
    assert error["remedy"] == "ask for one container"


def test_failure_is_answered_and_logged(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: bytes) -> dict[str, Any]:
        raise KeyError("absent")

    agent.answer = fail
    assert agent.ask(request())["error"]["problem"] == "internal error: KeyError: 'absent'"
    assert "an introspection request failed" in caplog.text


def test_replaced_package_is_named(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade in place, the modules of the kinds may be those of another version."""

    def load() -> Any:
        raise ImportError("gone")

    monkeypatch.setattr(serving, "is_package_changed", lambda: True)
    agent.server = IntrospectionServer(load)
    error = agent.ask(request())["error"]
    assert (error["problem"], error["remedy"]) == (
        "svc was replaced or removed on disk since its agent started",
        "restart svc-agent",
    )


def test_clients_that_do_not_read_do_not_block_others(agent: Agent) -> None:
    """One of them is ended in favour of a further client: the one to which the agent has been writing for the longest time."""
    agent.answer = lambda _: LARGE
    slow = [agent.connect(request()) for _ in range(serving.MAX_REQUESTS)]
    wait_until(lambda: len(agent.server._transfers) == serving.MAX_REQUESTS)
    assert agent.ask(request()) == LARGE
    ended = 0
    for client in slow:
        try:
            assert reply(client) == LARGE
        except ConnectionError:
            ended += 1
    assert ended == 1


def test_client_that_sends_nothing_further_is_dropped(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "READ_SECONDS", 0.05)
    client = agent.connect(request()[:8])
    assert client.recv(1) == b""


def test_client_that_does_not_read_is_dropped(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies to the whole reply: a client that reads slowly ends as well."""
    monkeypatch.setattr(serving, "REPLY_SECONDS", 0.2)
    agent.answer = lambda _: LARGE
    client = agent.connect(request())
    wait_until(lambda: bool(agent.server._transfers))
    wait_until(lambda: not agent.server._transfers)
    with pytest.raises(ConnectionError):
        reply(client)


def test_number_of_running_requests_is_limited(agent: Agent) -> None:
    """A further one is refused at once if none waits for its client."""
    gate, waiting = threading.Event(), threading.Semaphore(0)

    def wait(_: bytes) -> dict[str, Any]:
        waiting.release()
        gate.wait(TIMEOUT_SECONDS)
        return {"data": 1}

    agent.answer = wait
    running = [agent.connect(request()) for _ in range(serving.MAX_REQUESTS)]
    assert all(waiting.acquire(timeout=TIMEOUT_SECONDS) for _ in running), "each has its request, so no transfer can be ended"
    error = agent.ask(request())["error"]
    assert (error["problem"], error["remedy"]) == ("8 introspection requests are being served", "try again later")
    gate.set()
    assert [reply(client) for client in running] == [{"data": 1}] * serving.MAX_REQUESTS
    assert agent.ask(request()) == {"data": 1}


def test_lack_of_threads_is_answered(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert agent.ask(request())["error"]["problem"] == "the system has no further thread"
    assert agent.ask(request()) == {"data": {}}
