"""The lobby: waits end at their deadline, with their client, or with the agent."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from svc.agent.lobby import Lobby
from svc.waits.wait import End, Wait

PATIENCE = 20.0


@pytest.fixture
def lobby() -> Iterator[Lobby]:
    with closing(Lobby()) as lobby:
        yield lobby


class Caller:
    """A client, the agent's end of its connection, and a wait."""

    def __init__(self, seconds: float = PATIENCE) -> None:
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

    def make(seconds: float = PATIENCE) -> Caller:
        made.append(Caller(seconds))
        return made[-1]

    yield make
    for caller in made:
        caller.close()


def hold(lobby: Lobby, caller: Caller) -> Caller:
    lobby.hold(caller.wait, caller.connection)
    return caller


def test_no_thread_before_the_first(lobby: Lobby) -> None:
    assert all(thread.name != "lobby" for thread in threading.enumerate())


def test_without_a_thread_nobody_waits(lobby: Lobby, callers: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives none: as if it were too late already. The next one asks again."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", refuse)
        assert hold(lobby, callers()).wait.outcome is End.LATE
    later = hold(lobby, callers(0.05))
    assert later.ended.wait(PATIENCE)


def test_deadline_ends_a_wait(lobby: Lobby, callers: Callable[..., Caller]) -> None:
    """Each its own, in whatever order they came."""
    late, later = hold(lobby, callers()), hold(lobby, callers(0.05))
    assert later.ended.wait(PATIENCE)
    assert (late.wait.outcome, later.wait.outcome) == (None, End.LATE)


def test_client_that_hangs_up_ends_its_wait(lobby: Lobby, callers: Callable[..., Caller]) -> None:
    gone, there = hold(lobby, callers()), hold(lobby, callers())
    gone.client.close()
    assert gone.ended.wait(PATIENCE)
    assert (gone.wait.outcome, there.wait.outcome) == (End.GONE, None)


def test_client_that_has_hung_up_before_is_seen(lobby: Lobby, callers: Callable[..., Caller]) -> None:
    caller = callers()
    caller.client.close()
    assert hold(lobby, caller).ended.wait(PATIENCE)
    assert caller.wait.outcome is End.GONE


def test_client_that_talks_is_let_talk(lobby: Lobby, callers: Callable[..., Caller]) -> None:
    caller = hold(lobby, callers())
    caller.client.send(b"hello?")
    other = hold(lobby, callers(0.05))
    assert other.ended.wait(PATIENCE)
    assert caller.wait.outcome is None


def test_wait_that_ended_elsewhere_is_forgotten(lobby: Lobby, callers: Callable[..., Caller]) -> None:
    """Its connection may be closed, and the number of it be another's."""
    for _ in range(100):
        caller = hold(lobby, callers())
        caller.wait.end(End.DONE)
        caller.close()
    other = hold(lobby, callers(0.05))
    assert other.ended.wait(PATIENCE)
    assert other.wait.outcome is End.LATE


def test_dismissal_ends_every_wait_there_is_and_will_be(lobby: Lobby, callers: Callable[..., Caller]) -> None:
    first = hold(lobby, callers())
    lobby.dismiss()
    second = hold(lobby, callers())
    assert (first.wait.outcome, second.wait.outcome) == (End.STOPPING, End.STOPPING)


def test_deadline_of_another_age_keeps_no_other_from_its_own(lobby: Lobby, callers: Callable[..., Caller]) -> None:
    """The largest number that a network configuration takes, in seconds."""
    far = hold(lobby, callers(2**31 - 1))
    time.sleep(0.05)  # the thread waits for it by now
    near = hold(lobby, callers(0.05))
    assert near.ended.wait(PATIENCE)
    assert (far.wait.outcome, near.wait.outcome) == (None, End.LATE)


def test_ended_waits_are_forgotten_long_before_their_deadlines(lobby: Lobby, callers: Callable[..., Caller]) -> None:
    ended = [hold(lobby, callers(86400)) for _ in range(100)]
    for caller in ended:
        caller.wait.end(End.DONE)
    there = hold(lobby, callers(0.05))
    assert there.ended.wait(PATIENCE)
    assert len(lobby._deadlines) < len(ended) / 2
