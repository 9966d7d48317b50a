"""The log file of a network on a real node: it is rotated by size, while agent and one-shot calls write to it."""

import gzip
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.netns import run
from harness.node import Node
from harness.pod import Pod
from svc.logs.log_file import append

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

MEGABYTE = 1 << 20
TIMEOUT_SECONDS = 30.0
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) \[([0-9a-f]{8})\] \S.*")
POD = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log" / "cni.log"


def fill(log: Path, size: int = MEGABYTE - 1) -> None:
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(b"x" * (size - 1) + b"\n")


def compressed(log: Path) -> list[Path]:
    return sorted(log.parent.glob("cni-*.log.gz"))


def await_compressed(log: Path, count: int) -> list[Path]:
    """Wait until `count` rotated files are compressed, and return them."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(compressed(log)) < count or len(list(log.parent.iterdir())) > count + 1:
        assert time.monotonic() < deadline, list(log.parent.iterdir())
        time.sleep(0.02)
    return compressed(log)


@pytest.mark.parametrize("how", ["agent", "one-shot"])
def test_full_file_is_rotated_and_compressed(own_pods: MakePod, node: Node, log: Path, how: str) -> None:
    if how == "one-shot":
        node.stop_agent()
    fill(log)
    called = own_pods(log_file_path=str(log), log_file_max_size=1).call("ADD")
    assert called.status == 0
    assert log.read_text() == called.stderr
    (old,) = await_compressed(log, 1)
    assert len(gzip.decompress(old.read_bytes())) == MEGABYTE - 1


def test_rotated_files_are_limited_in_number_and_age(pods: MakePod, log: Path) -> None:
    fill(log)
    for name in ("2020-01-01T00-00-00.000", "2999-01-01T00-00-00.000", "2999-01-01T00-00-00.001"):
        (log.parent / f"cni-{name}.log.gz").write_bytes(b"")
    pod = pods(log_file_path=str(log), log_file_max_size=1, log_file_max_count=2, log_file_max_age=7)
    pod.add()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(list(log.parent.iterdir())) != 3:
        assert time.monotonic() < deadline, list(log.parent.iterdir())
        time.sleep(0.02)
    assert {path.name for path in compressed(log)} == {f"cni-2999-01-01T00-00-00.00{number}.log.gz" for number in (0, 1)}


def test_concurrent_calls_lose_no_line(pods: MakePod, log: Path) -> None:
    """The file is rotated during the calls."""
    fill(log, MEGABYTE - 2000)
    made = [pods(log_file_path=str(log), log_file_max_size=1) for _ in range(6)]

    def run_calls(pod: Pod) -> str:
        return "".join(pod.call(verb).stderr for verb in ("ADD", "CHECK", "DEL") * 3)

    with ThreadPoolExecutor(len(made)) as workers:
        expected = sorted("".join(workers.map(run_calls, made)).splitlines())
    found = [log.read_text(), *(gzip.decompress(path.read_bytes()).decode() for path in await_compressed(log, 1))]
    lines = sorted(line for text in found for line in text.splitlines() if not line.startswith("x"))
    assert lines == expected
    assert all(LINE.fullmatch(line) for line in lines)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of one page, and fill it."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(mount_point))
    (mount_point / "ballast").write_bytes(b"x" * 4096)
    yield mount_point
    run("umount", str(mount_point))


@pytest.mark.parametrize("how", ["agent", "one-shot"])
def test_call_succeeds_on_a_full_disk(own_pods: MakePod, node: Node, full_disk: Path, how: str) -> None:
    node.stop_agent()  # a running agent does not see the mount
    if how == "agent":
        node.start_agent()
    called = own_pods(log_file_path=str(full_disk / "cni.log")).call("ADD")
    assert called.status == 0
    assert f"log file '{full_disk}/cni.log' cannot be written: No space left on device" in called.stderr


def test_incomplete_line_on_a_full_disk_is_removed(full_disk: Path) -> None:
    """Otherwise the next line would be appended to it."""
    (full_disk / "ballast").write_bytes(b"")
    log = full_disk / "cni.log"
    assert not append(str(log), b"whole\n", MEGABYTE)
    with pytest.raises(OSError, match="No space left"):
        append(str(log), b"x" * 5000 + b"\n", MEGABYTE)
    assert not append(str(log), b"next\n", MEGABYTE)
    assert log.read_bytes() == b"whole\nnext\n"


def test_lines_name_the_pod(pods: MakePod, log: Path) -> None:
    """This includes the lines of an error."""
    pod = pods(args=POD, log_file_path=str(log))
    pod.add()
    pod.failed("ADD", mtu=60)
    pod.delete()
    lines = log.read_text().splitlines()
    assert lines
    assert all(" pod=shop/web-0 " in line and f"container={pod.container}" in line for line in lines)


def test_add_is_one_line_with_its_phases(pods: MakePod, log: Path) -> None:
    """At the default level the log has no other line if forwarding is already enabled."""
    pods().add()
    pods(log_file_path=str(log)).add()
    (line,) = log.read_text().splitlines()
    assert LINE.fullmatch(line)
    for phase in ("queue", "ipam", "kernel", "journal", "total"):
        assert re.search(rf" {phase}=\d+\.\d\d\b", line), line
