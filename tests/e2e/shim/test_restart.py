"""The native executable after the end of an agent: for a moment it expects the next one, before it runs the one-shot."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from harness.shim import ATTACHMENT, NETCONF, FakeAgent, Shim, answering
from svc.agent.stop_mark import leave_mark, mark_of

GIVEN_UP = 7  # exit status of the one-shot of these tests
EXPECTED_SECONDS = 2.5
STATUS_SECONDS = 1.0
SOON_SECONDS = 0.9  # for a call that does not wait


def begin(shim: Shim, verb: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [shim.path], env={"CNI_COMMAND": verb, **ATTACHMENT}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(NETCONF)
    process.stdin.close()
    process.stdin = None
    return process


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_call_in_a_restart_is_served_by_the_next_agent(shim_without_agent: Shim, verb: str) -> None:
    leave_mark(shim_without_agent.socket)
    calling = begin(shim_without_agent, verb)
    time.sleep(0.3)
    with FakeAgent(shim_without_agent.socket, answering(0, b"by the next agent")) as agent:
        stdout, _ = calling.communicate()
    assert (calling.returncode, stdout) == (0, b"by the next agent")
    assert [received.frame.environment["CNI_COMMAND"] for received in agent.received] == [verb]


def test_one_shot_takes_over_if_no_agent_follows(shim_without_agent: Shim) -> None:
    leave_mark(shim_without_agent.socket)
    began = time.monotonic()
    result = shim_without_agent.run("ADD")
    seconds = time.monotonic() - began
    assert (result.returncode, json.loads(result.stdout)["stdin"]) == (GIVEN_UP, NETCONF.decode())
    assert seconds >= EXPECTED_SECONDS - 0.1


def test_status_waits_for_its_limit_at_most(shim_without_agent: Shim) -> None:
    """A runtime cannot work while it waits for STATUS."""
    leave_mark(shim_without_agent.socket)
    began = time.monotonic()
    assert shim_without_agent.run("STATUS").returncode == GIVEN_UP
    assert STATUS_SECONDS - 0.1 <= time.monotonic() - began < EXPECTED_SECONDS


@pytest.mark.parametrize("seconds", [-3600.0, -EXPECTED_SECONDS, 3600.0], ids=["old", "over", "of the future"])
def test_other_marks_delay_no_call(shim_without_agent: Shim, seconds: float) -> None:
    """The clock may have been set back since the mark was made."""
    mark = mark_of(shim_without_agent.socket)
    mark.touch()
    os.utime(mark, (time.time() + seconds,) * 2)
    began = time.monotonic()
    assert shim_without_agent.run("ADD").returncode == GIVEN_UP
    assert time.monotonic() - began < SOON_SECONDS


def test_longest_path_of_a_socket_has_a_mark(shim_without_agent: Shim, tmp_path: Path) -> None:
    """The path of the mark is longer than that of a socket may be."""
    folder = tmp_path / "x"
    folder.mkdir()
    link = Path("/proc/self/cwd")
    path = link / ("y" * (107 - len(str(link)) - 1))
    assert len(str(path)) == 107
    shim_without_agent.record(f"socket={path}\npython={tmp_path / 'python'}\n")
    (folder / f"{path.name}.stopped").touch()
    began = time.monotonic()
    done = subprocess.run(
        [shim_without_agent.path],
        env={"CNI_COMMAND": "ADD", **ATTACHMENT},
        input=NETCONF,
        capture_output=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == GIVEN_UP
    assert time.monotonic() - began >= EXPECTED_SECONDS - 0.5
