"""Signs of life: the clients that get them, when, and what ends them."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from svc.agent import heartbeat as beating
from svc.agent.heartbeat import Heartbeat, watchdog_seconds
from svc.agent.queue import Job
from svc.cni.frame import pack_alive

PATIENCE = 20.0
TICK, SIGN, PROOF = 0.01, 0.05, 0.1


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beating, "TICK_SECONDS", TICK)
    monkeypatch.setattr(beating, "SIGN_SECONDS", SIGN)
    monkeypatch.setattr(beating, "PROOF_SECONDS", PROOF)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    connection, client = socket.socketpair()
    client.settimeout(PATIENCE)
    with connection, client:
        yield connection, client


def run_at_once(job: Job) -> None:
    job.run(job)


def never(_job: Job) -> None:
    """Never take a job, as a pool without a worker."""


@contextmanager
def running(
    put: Callable[[Job], None] = run_at_once,
    *,
    busy: bool = False,
    poll: Callable[[], None] = lambda: None,
    watchdog: float = 0.0,
) -> Iterator[Heartbeat]:
    heart = Heartbeat(poll, put, lambda: busy, watchdog)
    heart.start()
    try:
        yield heart
    finally:
        heart.stop()


Ends = tuple[socket.socket, socket.socket]


def test_client_gets_signs_until_its_reply(ends: Ends) -> None:
    with running() as heart:
        began = time.monotonic()
        heart.add(ends[0])
        assert ends[1].recv(44) == pack_alive()
        assert time.monotonic() - began >= SIGN
        assert ends[1].recv(44) == pack_alive()
        heart.remove(ends[0])
        ends[0].sendall(b"reply")
        ends[0].shutdown(socket.SHUT_WR)
        rest = b"".join(iter(lambda: ends[1].recv(1000), b""))
    assert rest.replace(pack_alive(), b"") == b"reply"
    assert rest.endswith(b"reply")


def test_agent_whose_workers_take_no_job_gives_no_signs(ends: Ends) -> None:
    """That they are stuck is what the client is to learn."""
    with running(never) as heart:
        time.sleep(PROOF)  # what was proved at the start counts for so long
        heart.add(ends[0])
        ends[1].settimeout(2 * (SIGN + PROOF))
        with pytest.raises(TimeoutError):
            ends[1].recv(1)


def test_workers_that_are_all_busy_need_not_take_a_job(ends: Ends) -> None:
    with running(never, busy=True) as heart:
        time.sleep(PROOF)
        heart.add(ends[0])
        assert ends[1].recv(44) == pack_alive()


def test_requests_are_read_where_no_worker_listens() -> None:
    polls: list[float] = []
    with running(poll=lambda: polls.append(time.monotonic())):
        wait_for(lambda: len(polls) > 2)


def test_idle_agent_need_not_prove_anything() -> None:
    jobs: list[Job] = []
    polls: list[int] = []
    with running(jobs.append, poll=lambda: polls.append(1)):
        wait_for(lambda: len(polls) > 5)
    assert jobs == []


def test_client_that_does_not_read_holds_nobody_up(ends: Ends) -> None:
    ends[0].setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ends[0].send(bytes(1 << 16))
    other, client = socket.socketpair()
    with other, client, running() as heart:
        client.settimeout(PATIENCE)
        heart.add(ends[0])
        heart.add(other)
        assert client.recv(44) == pack_alive()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def test_watchdog_gets_a_sign_in_half_of_its_time(manager: socket.socket) -> None:
    with running(watchdog=0.1):
        assert manager.recv(100) == b"WATCHDOG=1"
        began = time.monotonic()
        assert [manager.recv(100) for _ in range(4)] == [b"WATCHDOG=1"] * 4
        assert time.monotonic() - began >= 0.15


def test_watchdog_gets_none_where_no_worker_takes_a_job(manager: socket.socket) -> None:
    with running(never, watchdog=0.1):
        time.sleep(PROOF + SIGN)
        manager.setblocking(False)
        with suppress(BlockingIOError):  # what was sent before the proof grew old
            while True:
                manager.recv(100)
        time.sleep(PROOF)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


@pytest.mark.parametrize(
    ("pid", "microseconds", "seconds"),
    [("", "", 0), ("", "30000000", 30), ("1", "30000000", 0), ("", "x", 0), ("self", "500000", 0.5)],
)
def test_watchdog_is_asked_for_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, pid: str, microseconds: str, seconds: float
) -> None:
    """As sd_watchdog_enabled(3) has it."""
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "self" else pid)
    assert watchdog_seconds() == seconds


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_agent_that_drains_signs_without_a_proof(ends: tuple[socket.socket, socket.socket]) -> None:
    """Its idle workers have ended, and those that carry out calls take no other job."""
    connection, client = ends
    with running(never) as heart:
        time.sleep(2 * PROOF)
        heart.drain()
        heart.add(connection)
        assert [client.recv(len(pack_alive())) for _ in range(3)] == [pack_alive()] * 3
