"""One-shots, and agents that start and end during a call."""

import gc
import io
import os
import socket
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from harness.shim import FakeAgent, answering
from svc.cni import oneshot
from svc.cni.__main__ import main as entry_point
from svc.cni.locks import StateLock

NETCONF = b'{"cniVersion":"1.0.0","name":"net","type":"svc"}'


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of an installation record; the call is a DEL of an unknown container."""
    path = tmp_path / "record"
    path.write_text(f"state_dir = {tmp_path / 'state'}\nrun_dir = {tmp_path / 'run'}\n")
    call = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/"}
    for name, text in call.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(NETCONF)))
    return str(path)


def serve(monkeypatch: pytest.MonkeyPatch, *agents: bool) -> None:
    """Set the results of the checks for an agent. An agent that is found no longer listens afterwards."""
    results = iter(agents)
    monkeypatch.setattr(oneshot, "is_agent_listening", lambda _: next(results))


def run(record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> tuple[int, bytes]:
    with open(record, "a") as file:
        file.write("end=record\n")
    monkeypatch.setattr(sys, "argv", ["svc", "--name", "svc", "--install", record])
    return oneshot.main(), capsysbinary.readouterr().out


def test_one_shot_continues_if_the_agent_ends_again(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    serve(monkeypatch, True, True, False)
    assert run(record, monkeypatch, capsysbinary) == (0, b"")


def test_error_reports_agents_that_end_again_and_again(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    serve(monkeypatch, *[True] * oneshot.AGENTS)
    status, output = run(record, monkeypatch, capsysbinary)
    assert status == 1
    error = orjson.loads(output)
    assert (error["code"], error["msg"]) == (5, "the agent starts and ends again and again")


def test_error_names_a_call_that_does_not_end(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    """The wait for its lock has a deadline."""
    monkeypatch.setattr(oneshot, "ALONE_SECONDS", 0.05)
    with closing(StateLock(tmp_path / "state", "ADD c0 eth0")) as lock:
        lock.take(0)
        status, output = run(record, monkeypatch, capsysbinary)
    error = orjson.loads(output)
    assert (status, error["code"]) == (1, 11)
    assert "timed out after 0.05 s waiting for lock" in error["msg"]
    assert "(ADD c0 eth0)" in error["msg"]


@pytest.mark.parametrize("recorded", [True, False], ids=["elsewhere", "in the run directory"])
def test_agent_that_has_started_since_gets_the_call(
    record: str, recorded: bool, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    """It started after the executable found no agent. Its socket may have another path than the default."""
    (tmp_path / "run").mkdir()
    path = tmp_path / ("elsewhere.sock" if recorded else "run/agent.sock")
    if recorded:
        with open(record, "a") as file:
            file.write(f"socket = {path}\n")
    with FakeAgent(path, answering_callers) as agent:
        assert run(record, monkeypatch, capsysbinary) == (3, b"by the agent")
    assert [received.frame.environment["CNI_CONTAINERID"] for received in agent.received] == ["c1"]


def answering_callers(agent: FakeAgent, connection: socket.socket) -> None:
    """Answer only clients that send data: one that only checks for an agent sends nothing."""
    if connection.recv(1, socket.MSG_PEEK):
        answering(3, b"by the agent")(agent, connection)


def test_signature_precedes_all_output(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The executable expects it, because another Python would not write it."""
    monkeypatch.setattr(oneshot, "main", lambda: print(*sys.argv) or 3)
    monkeypatch.setattr(sys, "argv", ["svc", "--signed", "--name", "svc"])
    try:
        assert entry_point() == 3
    finally:
        gc.enable()  # for the other tests of this process
    assert capsysbinary.readouterr().out == b"svc\nsvc --name svc\n"


def test_status_needs_the_agent(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("CNI_COMMAND", "STATUS")
    status, output = run(record, monkeypatch, capsysbinary)
    assert (status, orjson.loads(output)["msg"]) == (1, "not ready: the agent is not running")


def test_damaged_record_is_an_error(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "argv", ["svc", "--name", "svc", "--install", record])  # it lacks its last line
    assert oneshot.main() == 1
    assert record in orjson.loads(capsysbinary.readouterr().out)["msg"]


def test_unusable_state_directory_is_an_error(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("")
    status, output = run(record, monkeypatch, capsysbinary)
    assert status == 1
    assert f"state directory {str(tmp_path / 'state')!r} cannot be used" in orjson.loads(output)["msg"]


def test_servers_are_only_tested(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """An embedded store has none. The process ends without a wait for its threads."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    config = b'{"cniVersion":"1.0.0","name":"net","type":"svc","datastore_type":"embedded","ipam":{"type":"svc-ipam"}}'
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(config)))
    with open(record, "a") as file:
        file.write("end=record\n")
    monkeypatch.setattr(sys, "argv", ["svc", "--name", "svc", "--install", record, "--test"])
    assert [oneshot.main()] == ended


def test_agent_that_gives_no_answer_is_an_error(
    record: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    with FakeAgent(tmp_path / "run/agent.sock", lambda agent, connection: None):
        status, output = run(record, monkeypatch, capsysbinary)
    error = orjson.loads(output)
    assert (status, "which has just been started, did not answer" in error["msg"]) == (1, True)
