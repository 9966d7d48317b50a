"""The parked: waits end at their deadline, with their client, or with the agent."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from svc.agent.parked import ParkedCalls
from svc.waits.wait import Wait, WaitOutcome

TIMEOUT_SECONDS = 20.0


@pytest.fixture
def parked() -> Iterator[ParkedCalls]:
    with closing(ParkedCalls()) as parked:
        yield parked


class Caller:
    """A client, the agent's end of its connection, and a wait."""

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


def hold(parked: ParkedCalls, caller: Caller) -> Caller:
    parked.park(caller.wait, caller.connection)
    return caller


def test_no_thread_before_the_first(parked: ParkedCalls) -> None:
    assert all(thread.name != "parked" for thread in threading.enumerate())


def test_without_a_thread_nobody_waits(
    parked: ParkedCalls, callers: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system gives none: as if it were too late already. The next one asks again."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", refuse)
        assert hold(parked, callers()).wait.outcome is WaitOutcome.TIMEOUT
    later = hold(parked, callers(0.05))
    assert later.ended.wait(TIMEOUT_SECONDS)


def test_deadline_ends_a_wait(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    """Each its own, in any order of arrival."""
    late, later = hold(parked, callers()), hold(parked, callers(0.05))
    assert later.ended.wait(TIMEOUT_SECONDS)
    assert (late.wait.outcome, later.wait.outcome) == (None, WaitOutcome.TIMEOUT)


def test_client_that_hangs_up_ends_its_wait(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    gone, there = hold(parked, callers()), hold(parked, callers())
    gone.client.close()
    assert gone.ended.wait(TIMEOUT_SECONDS)
    assert (gone.wait.outcome, there.wait.outcome) == (WaitOutcome.DISCONNECTED, None)


def test_client_that_has_hung_up_before_is_seen(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    caller = callers()
    caller.client.close()
    assert hold(parked, caller).ended.wait(TIMEOUT_SECONDS)
    assert caller.wait.outcome is WaitOutcome.DISCONNECTED


def test_client_that_talks_is_let_talk(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    caller = hold(parked, callers())
    caller.client.send(b"hello?")
    other = hold(parked, callers(0.05))
    assert other.ended.wait(TIMEOUT_SECONDS)
    assert caller.wait.outcome is None


def test_wait_that_ended_elsewhere_is_forgotten(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    """Its connection may be closed, and the number of it be another's."""
    for _ in range(100):
        caller = hold(parked, callers())
        caller.wait.end(WaitOutcome.READY)
        caller.close()
    other = hold(parked, callers(0.05))
    assert other.ended.wait(TIMEOUT_SECONDS)
    assert other.wait.outcome is WaitOutcome.TIMEOUT


def test_dismissal_ends_every_wait_there_is_and_will_be(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    first = hold(parked, callers())
    parked.end_all()
    second = hold(parked, callers())
    assert (first.wait.outcome, second.wait.outcome) == (WaitOutcome.SHUTDOWN, WaitOutcome.SHUTDOWN)


def test_deadline_of_another_age_keeps_no_other_from_its_own(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    """The largest number that a network configuration takes, in seconds."""
    far = hold(parked, callers(2**31 - 1))
    time.sleep(0.05)  # the thread waits for it by now
    near = hold(parked, callers(0.05))
    assert near.ended.wait(TIMEOUT_SECONDS)
    assert (far.wait.outcome, near.wait.outcome) == (None, WaitOutcome.TIMEOUT)


def test_ended_waits_are_forgotten_long_before_their_deadlines(parked: ParkedCalls, callers: Callable[..., Caller]) -> None:
    ended = [hold(parked, callers(86400)) for _ in range(100)]
    for caller in ended:
        caller.wait.end(WaitOutcome.READY)
    there = hold(parked, callers(0.05))
    assert there.ended.wait(TIMEOUT_SECONDS)
    assert len(parked._deadlines) < len(ended) / 2
