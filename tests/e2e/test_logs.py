"""The log lines of a call: where they are written, at which level, and with the request ID of the error."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.node import Node
from harness.pod import Pod

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) \[([0-9a-f]{8})\] \S.*")


def request_of(details: str) -> str:
    """Return the request ID of an error."""
    found = re.search(r"\[request ([0-9a-f]{8})\]$", details)
    assert found, details
    return found[1]


def lines(text: str) -> list[str]:
    """Return the lines of the text, and require that each has the known form."""
    found = text.splitlines()
    assert found
    assert all(LINE.fullmatch(line) for line in found), text
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "down" / "cni.log"


def test_log_file_gets_the_lines_of_the_call(pods: MakePod, log: Path) -> None:
    """Missing directories are created."""
    pod = pods(log_file_path=str(log))
    called = pod.call("ADD")
    assert log.read_text() == called.stderr
    line = lines(called.stderr)[-1]
    for part in ("verb=ADD", f"container={pod.container}", "ifname=eth0", "network=net", called.output["ips"][0]["address"]):
        assert part in line


def test_log_file_is_appended_to(pods: MakePod, log: Path) -> None:
    pod = pods(log_file_path=str(log))
    pod.add()
    pod.delete()
    verbs = [line.split("verb=")[1].split()[0] for line in lines(log.read_text())]
    assert sorted(set(verbs)) == ["ADD", "DEL"]
    assert verbs[-1] == "DEL"


def test_without_a_log_file_standard_error_has_the_lines(pods: MakePod) -> None:
    assert lines(pods().call("ADD").stderr)


def test_error_has_the_request_id_of_its_log_lines(pods: MakePod, shared_node: Node, log: Path) -> None:
    called = pods(log_file_path=str(log), ipam={"ipv4_pools": ["nowhere"]}).failed("ADD")
    request = request_of(called.output["details"])
    for text in (called.stderr, log.read_text()):
        assert all(f"[{request}]" in line for line in lines(text))
        assert "(nowhere) does not exist" in text
    assert request in shared_node.log.read_text(), "the agent's own log lacks the request ID"


INVALID: list[dict[str, Any]] = [
    {"mtu": 60},
    {"cniVersion": "9.9.9"},
    {"ifname": "a/b"},
    {"log_level": "LOUD", "log_file_max_size": "many", "ipam": {"type": "dhcp"}},
]


@pytest.mark.parametrize("invalid", INVALID, ids=lambda invalid: next(iter(invalid)))
def test_invalid_call_is_in_the_log_file(pods: MakePod, log: Path, invalid: dict[str, Any]) -> None:
    """Operators search the log file for the request ID of an error."""
    called = pods(log_file_path=str(log), **invalid).failed("ADD")
    assert request_of(called.output["details"]) in log.read_text()
    assert log.read_text() == called.stderr


def test_every_call_has_its_own_request_id(pods: MakePod) -> None:
    seen = {request_of(pods(mtu=60).failed("ADD").output["details"]) for _ in range(5)}
    assert len(seen) == 5


def test_log_lines_have_the_trace_of_the_runtime(pods: MakePod, shared_node: Node) -> None:
    pod = pods()
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    called = shared_node.call("ADD", pod.config, container=pod.container, netns=pod.netns.path, extra={"TRACEPARENT": parent})
    assert f"traceparent={parent}" in called.stderr


@pytest.mark.parametrize(("level", "is_logged"), [("ERROR", False), ("WARNING", False), ("INFO", True), ("debug", True)])
def test_level_decides_whether_an_add_is_logged(pods: MakePod, log: Path, level: str, is_logged: bool) -> None:
    pods(log_file_path=str(log), log_level=level).add()
    assert log.exists() == is_logged


def test_errors_are_logged_at_every_level(pods: MakePod, log: Path) -> None:
    pods(log_file_path=str(log), log_level="ERROR", ipam={"ipv4_pools": ["nowhere"]}).failed("ADD")
    assert " ERROR " in log.read_text()


@pytest.mark.parametrize("kind", ["directory", "below a file", "nothing below /proc"])
def test_call_succeeds_if_its_log_file_cannot_be_written(pods: MakePod, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    path = {
        "directory": tmp_path,
        "below a file": tmp_path / "file" / "cni.log",
        "nothing below /proc": Path("/proc/no/log"),
    }[kind]
    called = pods(log_file_path=str(path)).call("ADD")
    assert called.status == 0
    assert f"log file '{path}' cannot be written" in called.stderr


def test_pipe_without_a_reader_as_log_file_does_not_block(pods: MakePod, tmp_path: Path) -> None:
    """To open such a pipe would block the call."""
    os.mkfifo(tmp_path / "pipe")
    assert pods(log_file_path=str(tmp_path / "pipe")).call("ADD").status == 0


def test_value_with_a_line_break_cannot_forge_a_line(pods: MakePod) -> None:
    called = pods(ipam={"ipv4_pools": ["x\n2026-01-01 00:00:00.000 INFO [00000000] all is well"]}).call("ADD")
    assert called.status == 1
    assert all(LINE.fullmatch(line) for line in called.stderr.splitlines())
    assert not any(line.endswith("all is well") and "[00000000]" in line[:50] for line in called.stderr.splitlines())


def test_verb_with_a_line_break_cannot_forge_a_line(pods: MakePod) -> None:
    called = pods().failed("ADD\n2026-01-01 00:00:00.000 INFO [00000000] all is well")
    assert all(LINE.fullmatch(line) for line in called.stderr.splitlines())
    assert "[00000000]" not in "".join(line[:50] for line in called.stderr.splitlines())


def test_one_shot_call_writes_the_log_file(own_pods: MakePod, node: Node, log: Path) -> None:
    node.stop_agent()
    pod = own_pods(log_file_path=str(log))
    called = pod.call("ADD")
    assert log.read_text() == called.stderr
    assert all("verb=ADD" in line for line in lines(called.stderr))
