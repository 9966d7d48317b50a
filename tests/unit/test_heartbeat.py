"""Signs of life: which clients get them, when they are sent, and what ends them."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from svc.agent import heartbeat as module
from svc.agent.heartbeat import Heartbeat, watchdog_seconds
from svc.agent.queue import Job
from svc.cni.frame import pack_alive

TIMEOUT_SECONDS = 20.0
TICK_SECONDS, FIRST_SECONDS, SIGN_SECONDS, PROOF_SECONDS = 0.01, 0.03, 0.05, 0.1


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", TICK_SECONDS)
    monkeypatch.setattr(module, "FIRST_SECONDS", FIRST_SECONDS)
    monkeypatch.setattr(module, "SIGN_SECONDS", SIGN_SECONDS)
    monkeypatch.setattr(module, "PROOF_SECONDS", PROOF_SECONDS)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    connection, client = socket.socketpair()
    client.settimeout(TIMEOUT_SECONDS)
    with connection, client:
        yield connection, client


def run_at_once(job: Job) -> None:
    job.run(job)


def never(_job: Job) -> None:
    """Never run the job, like a pool without a worker."""


@contextmanager
def running(
    put: Callable[[Job], None] = run_at_once,
    *,
    busy: bool = False,
    poll: Callable[[], None] = lambda: None,
    watchdog: float = 0.0,
) -> Iterator[Heartbeat]:
    heartbeat = Heartbeat(poll, put, lambda: busy, watchdog)
    heartbeat.start()
    try:
        yield heartbeat
    finally:
        heartbeat.stop()


Ends = tuple[socket.socket, socket.socket]


def test_client_gets_signs_until_its_reply(ends: Ends) -> None:
    with running() as heartbeat:
        began = time.monotonic()
        heartbeat.add(ends[0])
        assert ends[1].recv(44) == pack_alive()
        assert time.monotonic() - began >= FIRST_SECONDS
        assert ends[1].recv(44) == pack_alive()
        assert time.monotonic() - began >= FIRST_SECONDS + SIGN_SECONDS
        heartbeat.remove(ends[0])
        ends[0].sendall(b"reply")
        ends[0].shutdown(socket.SHUT_WR)
        rest = b"".join(iter(lambda: ends[1].recv(1000), b""))
    assert rest.replace(pack_alive(), b"") == b"reply"
    assert rest.endswith(b"reply")


def test_proof_sends_the_sign_that_was_due(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof of an idle agent is old: the sign does not wait for a further tick, or a DEL would be spooled."""
    jobs: list[Job] = []
    with running(jobs.append) as heartbeat:
        time.sleep(PROOF_SECONDS)
        heartbeat.add(ends[0])
        wait_for(lambda: len(jobs) == 1)
        time.sleep(FIRST_SECONDS)
        monkeypatch.setattr(heartbeat, "_tick", lambda: None)
        jobs[0].run(jobs[0])
        assert ends[1].recv(44) == pack_alive()


def test_agent_sends_no_signs_if_its_workers_take_no_job(ends: Ends) -> None:
    """The client must detect that the workers are stuck."""
    with running(never) as heartbeat:
        time.sleep(PROOF_SECONDS)  # the proof of the start is valid until then
        heartbeat.add(ends[0])
        ends[1].settimeout(2 * (SIGN_SECONDS + PROOF_SECONDS))
        with pytest.raises(TimeoutError):
            ends[1].recv(1)


def test_workers_that_are_all_busy_need_not_take_a_job(ends: Ends) -> None:
    with running(never, busy=True) as heartbeat:
        time.sleep(PROOF_SECONDS)
        heartbeat.add(ends[0])
        assert ends[1].recv(44) == pack_alive()


def test_heartbeat_polls_the_listener_if_no_worker_does() -> None:
    polls: list[float] = []
    with running(poll=lambda: polls.append(time.monotonic())):
        wait_for(lambda: len(polls) > 2)


def test_idle_agent_need_not_prove_anything() -> None:
    jobs: list[Job] = []
    polls: list[int] = []
    with running(jobs.append, poll=lambda: polls.append(1)):
        wait_for(lambda: len(polls) > 5)
    assert jobs == []


def test_client_that_does_not_read_does_not_delay_others(ends: Ends) -> None:
    ends[0].setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ends[0].send(bytes(1 << 16))
    other, client = socket.socketpair()
    with other, client, running() as heartbeat:
        client.settimeout(TIMEOUT_SECONDS)
        heartbeat.add(ends[0])
        heartbeat.add(other)
        assert client.recv(44) == pack_alive()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(TIMEOUT_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def test_watchdog_gets_a_sign_in_half_of_its_timeout(manager: socket.socket) -> None:
    with running(watchdog=0.1):
        assert manager.recv(100) == b"WATCHDOG=1"
        began = time.monotonic()
        assert [manager.recv(100) for _ in range(4)] == [b"WATCHDOG=1"] * 4
        assert time.monotonic() - began >= 0.15


def test_watchdog_gets_no_sign_if_no_worker_takes_a_job(manager: socket.socket) -> None:
    with running(never, watchdog=0.1):
        time.sleep(PROOF_SECONDS + SIGN_SECONDS)
        manager.setblocking(False)
        with suppress(BlockingIOError):  # signs that were sent before the proof expired
            while True:
                manager.recv(100)
        time.sleep(PROOF_SECONDS)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


@pytest.mark.parametrize(
    ("pid", "microseconds", "seconds"),
    [("", "", 0), ("", "30000000", 30), ("1", "30000000", 0), ("", "x", 0), ("self", "500000", 0.5)],
)
def test_environment_sets_the_watchdog(monkeypatch: pytest.MonkeyPatch, pid: str, microseconds: str, seconds: float) -> None:
    """sd_watchdog_enabled(3) defines the variables."""
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "self" else pid)
    assert watchdog_seconds() == seconds


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_draining_agent_sends_signs_without_a_proof(ends: tuple[socket.socket, socket.socket]) -> None:
    """Its idle workers have ended, and the others take no job after their call."""
    connection, client = ends
    with running(never) as heartbeat:
        time.sleep(2 * PROOF_SECONDS)
        heartbeat.drain()
        heartbeat.add(connection)
        assert [client.recv(len(pack_alive())) for _ in range(3)] == [pack_alive()] * 3
