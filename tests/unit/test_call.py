"""A call in the agent: what its client receives while the call waits."""

import os
import socket
import time
from collections.abc import Iterator

import pytest

from svc.agent.call import AgentCall
from svc.agent.lanes import Lane
from svc.agent.queue import Job
from svc.cni.call_io import CallInput, Reply
from svc.cni.frame import EXTENSION_LIMIT, ReplyReader
from svc.metrics import Metrics
from svc.waits.wait import Resumable, Wait

REPLY = Reply(0, b"out", b"")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    agent_end, client = socket.socketpair()
    with agent_end, client:
        yield agent_end, client


def run(connection: socket.socket, *deadlines: float) -> None:
    """Run a call, which is remembered after its reply."""
    ended: list[Reply] = []

    def answer(_inputs: CallInput, _trace: object) -> Resumable[Reply]:
        for deadline in deadlines:
            yield Wait(deadline)
        return REPLY

    call = AgentCall(
        connection,
        CallInput("svc", dict(os.environ), b"", protocol=1),
        answer,
        Metrics(),
        lambda: None,
        lambda _trace, reply: ended.append(reply),
    )
    job = Job(Lane("ADD"), "c1", call.run)
    for _ in deadlines:
        assert call.run(job) is not None
    assert call.run(job) is None
    assert ended == [REPLY]


def received(client: socket.socket) -> bytes:
    data = b""
    while chunk := client.recv(1 << 16):
        data += chunk
    return data


def extensions(data: bytes) -> list[float]:
    """Return the seconds of every frame except the last one."""
    whole = len(data) - len(data) % 16 - 16
    return [int.from_bytes(data[start + 8 : start + 12], "little") / 1000 for start in range(0, whole, 16)]


def test_client_of_a_long_wait_gets_timeout_extensions(ends: tuple[socket.socket, socket.socket]) -> None:
    now = time.monotonic()
    run(ends[0], now + 200, now + 100, now + 300)
    data = received(ends[1])
    first, second = extensions(data)  # the wait of 100 s ends before the first extension does
    assert 200 < first < 240
    assert 300 < second < 340
    assert ReplyReader().feed(data) == REPLY


def test_client_of_a_short_wait_gets_no_extension(ends: tuple[socket.socket, socket.socket]) -> None:
    now = time.monotonic()
    run(ends[0], now + 1, now + 30)
    data = received(ends[1])
    assert extensions(data) == []
    assert ReplyReader().feed(data) == REPLY


def test_timeout_extension_has_a_limit(ends: tuple[socket.socket, socket.socket]) -> None:
    run(ends[0], time.monotonic() + 1e9)
    assert extensions(received(ends[1])) == [EXTENSION_LIMIT / 1000]


def test_disconnected_client_is_not_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("svc.agent.call._is_disconnected", lambda _connection: False)
        run(ends[0], time.monotonic() + 1e6)
