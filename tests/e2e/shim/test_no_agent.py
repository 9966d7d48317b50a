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
def test_without_an_agent_the_one_shot_takes_over(lonely_shim: Shim, verb: str) -> None:
    """It gets what the executable got, and its end is the executable's."""
    ours = {"CNI_COMMAND": verb, **ATTACHMENT, "TRACEPARENT": "00-1-2-03", "PATH": "/bin", "HOME": "/root"}
    result = lonely_shim.run_with(ours | {"PYTHONPATH": "/tmp", "LD_PRELOAD": "", "TRACESTATE": "a=b"})
    assert result.returncode == 7
    told = json.loads(result.stdout)
    record = str(lonely_shim.path.parent / "svc.install")
    assert told["arguments"] == ["-I", "-m", "svc.cni", "--signed", "--name", "svc", "--install", record]
    assert sorted(told["environment"]) == sorted(f"{name}={value}" for name, value in ours.items())
    assert told["stdin"] == NETCONF.decode()
    assert told["descriptors"] == ["0", "1", "2", "3"]  # 3 lists them


# An agent that stops


def handing_over(continuation: bytes, seconds: float, next_one: Handler | None = None) -> Handler:
    """Then it is gone, or another one serves."""

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
    """With what the first one has handed over."""
    with FakeAgent(shim.socket, handing_over(continuation, 20, hang)) as agent:
        result = shim.run("ADD")
    assert (result.returncode, result.stdout) == (0, b"by the next agent")
    first, second = (received.frame for received in agent.received)
    assert (first.continuation, second.continuation) == (b"", continuation)
    assert replace(first, continuation=continuation) == second
    assert agent.received[0].descriptor == agent.received[1].descriptor is not None


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.0, 0, 5), (0.5, 0.5, 5)])
def test_one_shot_goes_on_where_no_agent_comes(lonely_shim: Shim, seconds: float, least: float, most: float) -> None:
    """Not before the wait is over, in which another one may come."""
    began = time.monotonic()
    with FakeAgent(lonely_shim.socket, handing_over(b"77", seconds)):
        told = json.loads(lonely_shim.run("ADD").stdout)
    assert least <= time.monotonic() - began < most
    assert told["arguments"][-2:] == ["--intent", "77"]
    assert told["stdin"] == NETCONF.decode()


def test_next_agent_is_not_looked_for_for_ever(hasty_shim: Shim, tmp_path: Path) -> None:
    """15 s are 300 ms here, however long the wait could go on."""
    hasty_shim.record(f"socket={hasty_shim.socket}\npython={write_one_shot(tmp_path / 'python')}\n")
    with FakeAgent(hasty_shim.socket, handing_over(b"77", 3600)):
        assert json.loads(hasty_shim.run("ADD").stdout)["arguments"][-2:] == ["--intent", "77"]


@pytest.mark.parametrize("size", [0, 1 << 16, STDIN_LIMIT])
def test_one_shot_gets_all_of_stdin(lonely_shim: Shim, size: int) -> None:
    """More than a pipe would hold."""
    assert json.loads(lonely_shim.run("GC", b" " * size).stdout)["stdin"] == " " * size


def write_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_shot_dies_with_the_executable(shim: Shim, tmp_path: Path, number: int) -> None:
    """The runtime's kill is for the process that does the work, too."""
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
def test_one_shot_without_an_answer_is_an_error(shim: Shim, tmp_path: Path, verb: str, program: str, what: str) -> None:
    """In JSON, with a remedy; its own lines go where they always go."""
    shim.record(f"socket={shim.socket}\npython={write_program(tmp_path / 'python', program)}\n")
    result = shim.run(verb)
    error = json.loads(result.stdout)
    assert (result.returncode, error["code"], error["cniVersion"]) == (1, 50 if verb == "STATUS" else 5, "1.0.0")
    assert f"{tmp_path}/python" in error["msg"]
    assert what in error["msg"]
    assert "svcctl install" in error["details"]
    assert (result.stderr != b"") == ("echo Traceback" in program or "exec" in program)


@pytest.mark.parametrize(("verb", "limit"), [("STATUS", 1), ("CHECK", 10), ("ADD", 90), ("DEL", 90)])
def test_one_shot_that_hangs_is_given_up(hasty_shim: Shim, tmp_path: Path, verb: str, limit: int) -> None:
    """And killed. Seconds have 20 ms here."""
    python = write_program(tmp_path / "python", f"echo $$ >{tmp_path}/pid; exec sleep 60")
    hasty_shim.record(f"socket={hasty_shim.socket}\npython={python}\n")
    began = time.monotonic()
    error = error_of(hasty_shim.run(verb))
    assert time.monotonic() - began < limit / 50 + 2
    assert error["code"] == (50 if verb == "STATUS" else 5)
    assert f"{python} gave no sign of svc within {limit} s" in error["msg"]
    assert "svcctl install" in error["details"]
    if verb != "STATUS":  # the shell has not come so far
        wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_status_of_a_one_shot_that_hangs_takes_a_second(shim: Shim, tmp_path: Path) -> None:
    shim.record(f"socket={shim.socket}\npython={write_program(tmp_path / 'python', 'exec sleep 60')}\n")
    began = time.monotonic()
    assert error_of(shim.run("STATUS"))["code"] == 50
    assert 0.9 < time.monotonic() - began < 3


@pytest.mark.parametrize("blocked", ["", "trap '' CHLD; "], ids=["", "of a parent that ignores its children"])
def test_sign_of_svc_lifts_the_limit(hasty_shim: Shim, tmp_path: Path, blocked: str) -> None:
    """A call may wait at a gate. The sign of life does not belong to the answer."""
    python = write_program(tmp_path / "python", "echo svc; sleep 0.5; printf '{}'")
    hasty_shim.record(f"socket={hasty_shim.socket}\npython={python}\n")
    command = ["/bin/sh", "-c", f'{blocked}exec "$0"', str(hasty_shim.path)]
    environment = {"CNI_COMMAND": "CHECK", **ATTACHMENT, "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=environment, input=NETCONF, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}", b"")


def test_signed_one_shot_may_say_nothing_more(shim: Shim, tmp_path: Path) -> None:
    """A DEL answers so, but an ADD has a result."""
    shim.record(f"socket={shim.socket}\npython={write_program(tmp_path / 'python', 'echo svc')}\n")
    assert (shim.run("DEL").returncode, shim.run("DEL").stdout) == (0, b"")
    assert "ended without an answer" in error_of(shim.run("ADD"))["msg"]


def test_missing_record_is_named(executable: Path, tmp_path: Path) -> None:
    """No file says which Python has the package."""
    write_program(tmp_path / "python3", "exit 1")
    (tmp_path / "svc-other").hardlink_to(executable)
    error = error_of(Shim(tmp_path / "svc-other", tmp_path).run("ADD"))
    assert f"{tmp_path}/python3 ended without an answer" in error["msg"]
    assert "EXECUTABLE.install, which is missing" in error["details"]


@pytest.mark.parametrize("there", ["nothing", "stale socket", "file", "file on the way"])
def test_whatever_is_not_an_agent_is_no_agent(lonely_shim: Shim, there: str) -> None:
    """A socket that a killed agent left behind, for one."""
    if there == "stale socket":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(lonely_shim.socket))
    if there == "file":
        lonely_shim.socket.touch()
    if there == "file on the way":
        one_shot = lonely_shim.path.parent.parent / "python"
        lonely_shim.record(f"socket={lonely_shim.path}/agent.sock\npython={one_shot}\n")
    assert lonely_shim.run("DEL").returncode == 7


@pytest.mark.parametrize("verb", CALLS)
def test_one_shot_that_cannot_run_is_an_error(shim: Shim, verb: str) -> None:
    """It names the interpreter, the cause, and where the agent should be."""
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
    """A crash leaves such files. The default socket may be another deployment's."""
    shim.record(text, end="")
    error = error_of(shim.run(verb))
    assert error["code"] == (50 if verb == "STATUS" else 5)
    assert error["msg"] == f"cannot use {shim.path.parent}/svc.install: it is damaged"
    assert "repeat `svcctl install`" in error["details"]


def test_record_may_hold_more_than_is_read(shim: Shim, agent: FakeAgent) -> None:
    """Empty lines, other keys, no newline at the end."""
    shim.record(f"names=default\n\n# socket=/x\npython\nsocket\nXsocket=/y\nsocket=\nsocket={shim.socket}")
    assert shim.run("STATUS").returncode == 0


def test_record_is_found_beside_the_executable_itself(shim: Shim, agent: FakeAgent, tmp_path: Path) -> None:
    """Not beside a link to it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/svc").symlink_to(shim.path)
    assert Shim(tmp_path / "elsewhere/svc", shim.socket).run("STATUS").returncode == 0


def test_record_of_ones_own_name_counts_before_the_common_one(shim: Shim, agent: FakeAgent) -> None:
    """So several deployments share a directory; what the call is named does not matter."""
    other = shim.named("other")
    for name, profile in (("svc", ""), ("other", "profile=calico\n")):
        shim.record(f"socket={shim.socket}\n{profile}", name)
    assert other.run("STATUS").returncode == shim.run("STATUS").returncode == 0
    assert [(each.frame.name, each.frame.profile) for each in agent.received] == [("other", "calico"), ("svc", "")]


def test_executable_without_a_record_takes_the_common_one(shim: Shim, agent: FakeAgent) -> None:
    """As every executable did before they had their own."""
    shim.record(f"socket={shim.socket}\nprofile=/etc/names.toml")
    assert shim.named("svc-ipam").run("STATUS").returncode == 0
    assert agent.received[0].frame.profile == "/etc/names.toml"


def test_executable_of_another_profile_needs_a_record(shim: Shim, agent: FakeAgent) -> None:
    """Under the names of svc it would look for its containers in another state directory."""
    error = error_of(shim.named("calico").run("ADD"))
    assert error["msg"] == f"cannot use {shim.path.parent}/calico.install: No such file or directory"
    assert agent.received == []


def test_record_of_the_last_release_counts_with_its_files(shim: Shim, agent: FakeAgent) -> None:
    text = f"socket={shim.socket}\npython=/p\nstate_dir=/d\nrun_dir=/r\n"
    shim.record(text, end=f"file=0123456789abcdef {shim.path}\n")
    assert shim.run("STATUS").returncode == 0
    shim.record(text, end="")
    assert error_of(shim.run("STATUS"))["msg"].endswith("it is damaged")


def test_replaced_executable_keeps_its_record(shim: Shim, agent: FakeAgent) -> None:
    """An installation puts another file in its place while it waits for its input."""
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


def test_environment_has_no_say_in_the_profile(shim: Shim, agent: FakeAgent) -> None:
    """It is the installation's."""
    assert shim.run("STATUS", profile="x", PROFILE="x", CNI_PROFILE="x", SVC_PROFILE="x").returncode == 0
    assert agent.received[0].frame.profile == ""
