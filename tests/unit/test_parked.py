"""Parked calls: a wait ends at its deadline, with its client, or when the agent stops."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from svc.agent.parked import ParkedCalls
from svc.call_trace import CallTrace
from svc.waits.wait import Wait, WaitOutcome

TIMEOUT_SECONDS = 20.0


@pytest.fixture
def parked() -> Iterator[ParkedCalls]:
    with closing(ParkedCalls()) as parked:
        yield parked


class Caller:
    """Client, the agent's end of its connection, and a wait."""

    def __init__(self, seconds: float = TIMEOUT_SECONDS) -> None:
        self.client, self.connection = socket.socketpair()
        self.wait = Wait(time.monotonic() + seconds)
        self.ended = threading.Event()
        self.wait.then(self.ended.set)

    def close(self) -> None:
        self.client.close()
        self.connection.close()


@pytest.fixture
def callers() -> Iterator[Callable[..., Caller]]:
    made: list[Caller] = []

    def make(seconds: float = TIMEOUT_SECONDS) -> Caller:
        made.append(Caller(seconds))
        return made[-1]

    yield make
    for caller in made:
        caller.close()


def park(parked: ParkedCalls, caller: Caller) -> Caller:
    parked.park(caller.wait, caller.connection, CallTrace("0"))
    return caller


def test_no_thread_exists_before_the_first_call(parked: ParkedCalls) -> None:
    assert all(thread.name != "parked" for thread in threading.enumerate())


def test_wait_ends_at_once_if_no_thread_can_be_started(
    parked: ParkedCalls, callers: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with a timeout. The next call tries again to start the thread."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", refuse)
        assert park(parked, callers()).wait.outcome is WaitOutcome.TIMEOUT
    later = park(parked, callers(0.05))
    assert later.ended.wait(TIMEOUT_SECONDS)


def test_deadline_ends_a_wait(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    """Each wait has its own deadline, in any order of arrival."""
    late, later = park(parked, callers()), park(parked, callers(0.05))
    assert later.ended.wait(TIMEOUT_SECONDS)
    assert (late.wait.outcome, later.wait.outcome) == (None, WaitOutcome.TIMEOUT)


def test_client_that_disconnects_ends_its_wait(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    disconnected, connected = park(parked, callers()), park(parked, callers())
    disconnected.client.close()
    assert disconnected.ended.wait(TIMEOUT_SECONDS)
    assert (disconnected.wait.outcome, connected.wait.outcome) == (WaitOutcome.DISCONNECTED, None)


def test_client_that_disconnected_before_ends_its_wait(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    caller = callers()
    caller.client.close()
    assert park(parked, caller).ended.wait(TIMEOUT_SECONDS)
    assert caller.wait.outcome is WaitOutcome.DISCONNECTED


def test_data_of_a_client_does_not_end_its_wait(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    caller = park(parked, callers())
    caller.client.send(b"hello?")
    other = park(parked, callers(0.05))
    assert other.ended.wait(TIMEOUT_SECONDS)
    assert caller.wait.outcome is None


def test_wait_that_has_ended_is_removed(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    """Its connection may be closed, and its descriptor may belong to another connection."""
    for _ in range(100):
        caller = park(parked, callers())
        caller.wait.end(WaitOutcome.READY)
        caller.close()
    other = park(parked, callers(0.05))
    assert other.ended.wait(TIMEOUT_SECONDS)
    assert other.wait.outcome is WaitOutcome.TIMEOUT


def test_end_all_ends_current_and_later_waits(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    first = park(parked, callers())
    parked.end_all()
    second = park(parked, callers())
    assert (first.wait.outcome, second.wait.outcome) == (WaitOutcome.SHUTDOWN, WaitOutcome.SHUTDOWN)


def test_distant_deadline_does_not_delay_a_near_one(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    """The distant deadline is the largest that a network configuration permits."""
    far = park(parked, callers(2**31 - 1))
    time.sleep(0.05)  # until the thread waits for it
    near = park(parked, callers(0.05))
    assert near.ended.wait(TIMEOUT_SECONDS)
    assert (far.wait.outcome, near.wait.outcome) == (None, WaitOutcome.TIMEOUT)


def test_ended_waits_are_removed_before_their_deadlines(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    ended = [park(parked, callers(86400)) for _ in range(100)]
    for caller in ended:
        caller.wait.end(WaitOutcome.READY)
    last = park(parked, callers(0.05))
    assert last.ended.wait(TIMEOUT_SECONDS)
    assert len(parked._deadlines) < len(ended) / 2
