"""The native executable without an agent, and the record of its installation."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.polling import wait_until
from harness.shim import (
    ATTACHMENT,
    CALLS,
    NETCONF,
    FakeAgent,
    Handler,
    Shim,
    error_of,
    hang,
    write_one_shot,
)
from svc.cni.frame import STDIN_LIMIT, pack_alive, pack_handover, pack_reply

# No agent


@pytest.mark.parametrize("verb", CALLS)
def test_without_an_agent_the_one_shot_takes_over(shim_without_agent: Shim, verb: str) -> None:
    """It gets the input of the executable, and its exit status is that of the executable."""
    own = {"CNI_COMMAND": verb, **ATTACHMENT, "TRACEPARENT": "00-1-2-03", "PATH": "/bin", "HOME": "/root"}
    result = shim_without_agent.run_with(own | {"PYTHONPATH": "/tmp", "LD_PRELOAD": "", "TRACESTATE": "a=b"})
    assert result.returncode == 7
    printed = json.loads(result.stdout)
    record = str(shim_without_agent.path.parent / "svc.install")
    assert printed["arguments"] == ["-I", "-m", "svc.cni", "--signed", "--name", "svc", "--install", record]
    assert sorted(printed["environment"]) == sorted(f"{name}={value}" for name, value in own.items())
    assert printed["stdin"] == NETCONF.decode()
    assert printed["descriptors"] == ["0", "1", "2", "3"]  # 3 is the descriptor that lists them


# An agent that stops


def handing_over(continuation: bytes, seconds: float, next_one: Handler | None = None) -> Handler:
    """Return a handler that hands the call over. Then the socket is deleted, or `next_one` replies."""

    def handle(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        if agent.received[-1].frame.continuation and next_one:
            connection.sendall(pack_reply(0, b"by the next agent", b""))
            return
        if not next_one:
            agent.path.unlink()
        connection.sendall(pack_alive() + pack_handover(continuation, seconds))

    return handle


@pytest.mark.parametrize("continuation", [b"7", b"18446744073709551615"])
def test_next_agent_gets_the_same_request(shim: Shim, continuation: bytes) -> None:
    """It includes the data that the first agent has handed over."""
    with FakeAgent(shim.socket, handing_over(continuation, 20, hang)) as agent:
        result = shim.run("ADD")
    assert (result.returncode, result.stdout) == (0, b"by the next agent")
    first, second = (received.frame for received in agent.received)
    assert (first.continuation, second.continuation) == (b"", continuation)
    assert replace(first, continuation=continuation) == second
    assert agent.received[0].descriptor == agent.received[1].descriptor is not None


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.0, 0, 5), (0.5, 0.5, 5)])
def test_one_shot_continues_if_no_agent_starts(shim_without_agent: Shim, seconds: float, least: float, most: float) -> None:
    """It starts only after the wait in which an agent may start."""
    began = time.monotonic()
    with FakeAgent(shim_without_agent.socket, handing_over(b"77", seconds)):
        printed = json.loads(shim_without_agent.run("ADD").stdout)
    assert least <= time.monotonic() - began < most
    assert printed["arguments"][-2:] == ["--intent", "77"]
    assert printed["stdin"] == NETCONF.decode()


def test_wait_for_the_next_agent_is_limited(fast_shim: Shim, tmp_path: Path) -> None:
    """Its limit of 15 s is 300 ms here, and applies even if the deadline of the call is later."""
    fast_shim.record(f"socket={fast_shim.socket}\npython={write_one_shot(tmp_path / 'python')}\n")
    with FakeAgent(fast_shim.socket, handing_over(b"77", 3600)):
        assert json.loads(fast_shim.run("ADD").stdout)["arguments"][-2:] == ["--intent", "77"]


@pytest.mark.parametrize("size", [0, 1 << 16, STDIN_LIMIT])
def test_one_shot_gets_all_of_stdin(shim_without_agent: Shim, size: int) -> None:
    """The input may be larger than a pipe's buffer."""
    assert json.loads(shim_without_agent.run("GC", b" " * size).stdout)["stdin"] == " " * size


def write_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_shot_ends_with_the_executable(shim: Shim, tmp_path: Path, number: int) -> None:
    """If the runtime kills the executable, the process that does the work must end too."""
    python = write_program(tmp_path / "python", f"echo $$ >{tmp_path}/draft; mv {tmp_path}/draft {tmp_path}/pid; exec sleep 60")
    shim.record(f"socket={shim.socket}\npython={python}\n")
    with subprocess.Popen([shim.path], env={"CNI_COMMAND": "STATUS"}, stdin=subprocess.DEVNULL) as process:
        wait_until((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        process.send_signal(number)
    assert process.returncode == -number
    wait_until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("exit 0", "ended without an answer"),
        ("exit 1", "ended without an answer"),
        ("echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'svc'\" >&2; exit 1", "No module named 'svc'"),
        ("echo usage: something else; exit 0", "ended without an answer"),
        ("echo '{}'; exit 0", "ended without an answer"),
        ("kill -9 $$", "was killed"),
        (f"exec {sys.executable} -I -S -m svc.cni", "No module named"),
    ],
    ids=["true", "false", "no package", "another program", "one that knows JSON", "killed", "a Python without svc"],
)
def test_one_shot_without_a_result_is_an_error(shim: Shim, tmp_path: Path, verb: str, program: str, what: str) -> None:
    """The JSON error contains a fix. The one-shot's own lines go to standard error."""
    shim.record(f"socket={shim.socket}\npython={write_program(tmp_path / 'python', program)}\n")
    result = shim.run(verb)
    error = json.loads(result.stdout)
    assert (result.returncode, error["code"], error["cniVersion"]) == (1, 50 if verb == "STATUS" else 5, "1.0.0")
    assert f"{tmp_path}/python" in error["msg"]
    assert what in error["msg"]
    assert "svcctl install" in error["details"]
    assert (result.stderr != b"") == ("echo Traceback" in program or "exec" in program)


@pytest.mark.parametrize(("verb", "limit"), [("STATUS", 1), ("CHECK", 10), ("ADD", 90), ("DEL", 90)])
def test_hanging_one_shot_is_killed(fast_shim: Shim, tmp_path: Path, verb: str, limit: int) -> None:
    """Seconds have 20 ms here."""
    python = write_program(tmp_path / "python", f"echo $$ >{tmp_path}/pid; exec sleep 60")
    fast_shim.record(f"socket={fast_shim.socket}\npython={python}\n")
    began = time.monotonic()
    error = error_of(fast_shim.run(verb))
    assert time.monotonic() - began < limit / 50 + 2
    assert error["code"] == (50 if verb == "STATUS" else 5)
    assert f"{python} gave no sign of svc within {limit} s" in error["msg"]
    assert "svcctl install" in error["details"]
    if verb != "STATUS":  # the shell has not written it yet
        wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_status_of_a_hanging_one_shot_takes_a_second(shim: Shim, tmp_path: Path) -> None:
    shim.record(f"socket={shim.socket}\npython={write_program(tmp_path / 'python', 'exec sleep 60')}\n")
    began = time.monotonic()
    assert error_of(shim.run("STATUS"))["code"] == 50
    assert 0.9 < time.monotonic() - began < 3


@pytest.mark.parametrize("blocked", ["", "trap '' CHLD; "], ids=["", "of a parent that ignores its children"])
def test_sign_of_life_removes_the_time_limit(fast_shim: Shim, tmp_path: Path, blocked: str) -> None:
    """A call may wait for a readiness gate. The sign of life is not part of the result."""
    python = write_program(tmp_path / "python", "echo svc; sleep 0.5; printf '{}'")
    fast_shim.record(f"socket={fast_shim.socket}\npython={python}\n")
    command = ["/bin/sh", "-c", f'{blocked}exec "$0"', str(fast_shim.path)]
    environment = {"CNI_COMMAND": "CHECK", **ATTACHMENT, "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=environment, input=NETCONF, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}", b"")


def test_empty_result_after_a_sign_of_life(shim: Shim, tmp_path: Path) -> None:
    """It is valid for a DEL, but an ADD must have a result."""
    shim.record(f"socket={shim.socket}\npython={write_program(tmp_path / 'python', 'echo svc')}\n")
    assert (shim.run("DEL").returncode, shim.run("DEL").stdout) == (0, b"")
    assert "ended without an answer" in error_of(shim.run("ADD"))["msg"]


def test_missing_record_is_named(executable: Path, tmp_path: Path) -> None:
    """Without the record no Python with the package is known."""
    write_program(tmp_path / "python3", "exit 1")
    (tmp_path / "svc-other").hardlink_to(executable)
    error = error_of(Shim(tmp_path / "svc-other", tmp_path).run("ADD"))
    assert f"{tmp_path}/python3 ended without an answer" in error["msg"]
    assert "EXECUTABLE.install, which is missing" in error["details"]


@pytest.mark.parametrize("there", ["nothing", "stale socket", "file", "file on the way"])
def test_stale_socket_counts_as_no_agent(shim_without_agent: Shim, there: str) -> None:
    """A killed agent leaves such a socket."""
    if there == "stale socket":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(shim_without_agent.socket))
    if there == "file":
        shim_without_agent.socket.touch()
    if there == "file on the way":
        one_shot = shim_without_agent.path.parent.parent / "python"
        shim_without_agent.record(f"socket={shim_without_agent.path}/agent.sock\npython={one_shot}\n")
    assert shim_without_agent.run("DEL").returncode == 7


@pytest.mark.parametrize("verb", CALLS)
def test_one_shot_that_cannot_run_is_an_error(shim: Shim, verb: str) -> None:
    """The error names the interpreter, the cause, and the agent's socket."""
    error = error_of(shim.run(verb))
    assert (error["code"], error["cniVersion"]) == (50 if verb == "STATUS" else 5, "1.0.0")
    assert error["msg"].startswith("the agent is not running and /nonexistent/python3")
    assert "No such file" in error["msg"]
    assert str(shim.socket) in error["details"]


# The install record


@pytest.mark.parametrize(
    "text", ["", "\0" * 200, "socket=", "socket=relative\n", "python=/usr/bin/python3\n", "socket=/x\0\nend=record\n", "sock",
     "socket=/x\npython=/p\nstate_dir=/var/li"],
    ids=["empty", "zeros", "cut", "relative", "no socket", "a zero", "cut early", "cut in the state directory"],
)  # fmt: skip
@pytest.mark.parametrize("verb", CALLS)
def test_damaged_record_is_an_error(shim: Shim, verb: str, text: str) -> None:
    """A crash can damage the file. The default socket may belong to another deployment."""
    shim.record(text, end="")
    error = error_of(shim.run(verb))
    assert error["code"] == (50 if verb == "STATUS" else 5)
    assert error["msg"] == f"cannot use {shim.path.parent}/svc.install: it is damaged"
    assert "repeat `svcctl install`" in error["details"]


@pytest.mark.parametrize("wait", ["", "wait=60\n"])
def test_every_cut_of_a_record_is_an_error(shim: Shim, agent: FakeAgent, wait: str) -> None:
    """Without `wait`, an earlier build may have written one that ends with its files. What precedes them is whole then."""
    text = f"socket={shim.socket}\npython=/p\nstate_dir=/d\nrun_dir=/r\n{wait}file=0123456789abcdef {shim.path}\nend=record\n"
    whole = ["end="] if wait else ["end=", "file"]
    for size in range(0, len(text), 3):
        cut = text[:size]
        shim.record(cut, end="")
        result = shim.run("STATUS")
        assert result.returncode == (0 if any(f"\n{each}" in cut for each in whole) else 1), cut
        if result.returncode:
            assert error_of(result)["msg"].endswith("svc.install: it is damaged")
    shim.record(text, end="")
    assert shim.run("STATUS").returncode == 0


def test_record_may_contain_more_than_is_read(shim: Shim, agent: FakeAgent) -> None:
    """It may have empty lines, other keys, and no newline at the end."""
    shim.record(f"names=default\n\n# socket=/x\npython\nsocket\nXsocket=/y\nsocket=\nsocket={shim.socket}")
    assert shim.run("STATUS").returncode == 0


def test_record_is_found_beside_the_executable_itself(shim: Shim, agent: FakeAgent, tmp_path: Path) -> None:
    """A record beside a symbolic link to it is not used."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/svc").symlink_to(shim.path)
    assert Shim(tmp_path / "elsewhere/svc", shim.socket).run("STATUS").returncode == 0


def test_record_with_the_name_of_the_executable_precedes_the_common_one(shim: Shim, agent: FakeAgent) -> None:
    """So several deployments can share a directory. The plugin name of the call is not used."""
    other = shim.named("other")
    for name, profile in (("svc", ""), ("other", "profile=calico\n")):
        shim.record(f"socket={shim.socket}\n{profile}", name)
    assert other.run("STATUS").returncode == shim.run("STATUS").returncode == 0
    assert [(each.frame.name, each.frame.profile) for each in agent.received] == [("other", "calico"), ("svc", "")]


def test_executable_without_its_own_record_uses_the_common_one(shim: Shim, agent: FakeAgent) -> None:
    """Older executables have only the common record."""
    shim.record(f"socket={shim.socket}\nprofile=/etc/names.toml")
    assert shim.named("svc-ipam").run("STATUS").returncode == 0
    assert agent.received[0].frame.profile == "/etc/names.toml"


def test_executable_of_another_profile_needs_a_record(shim: Shim, agent: FakeAgent) -> None:
    """With the default names it would look for its containers in another state directory."""
    error = error_of(shim.named("calico").run("ADD"))
    assert error["msg"] == f"cannot use {shim.path.parent}/calico.install: No such file or directory"
    assert agent.received == []


def test_record_of_the_previous_release_is_used_with_its_files(shim: Shim, agent: FakeAgent) -> None:
    text = f"socket={shim.socket}\npython=/p\nstate_dir=/d\nrun_dir=/r\n"
    shim.record(text, end=f"file=0123456789abcdef {shim.path}\n")
    assert shim.run("STATUS").returncode == 0
    shim.record(text, end="")
    assert error_of(shim.run("STATUS"))["msg"].endswith("it is damaged")


def test_replaced_executable_keeps_its_record(shim: Shim, agent: FakeAgent) -> None:
    """An installation replaces the file while the executable waits for its input."""
    other = shim.named("other")
    shim.record(f"socket={shim.socket}\nprofile=calico\n", "other")
    with subprocess.Popen(
        [other.path], env={"CNI_COMMAND": "STATUS"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        shutil.copy(shim.path, shim.path.with_name("draft"))
        os.rename(shim.path.with_name("draft"), other.path)
        running.communicate(NETCONF)
    assert running.returncode == 0
    assert agent.received[0].frame.profile == "calico"


def test_environment_does_not_choose_the_profile(shim: Shim, agent: FakeAgent) -> None:
    """The installation chooses it."""
    assert shim.run("STATUS", profile="x", PROFILE="x", CNI_PROFILE="x", SVC_PROFILE="x").returncode == 0
    assert agent.received[0].frame.profile == ""
