"""The log file of a network on a real node: rotated by its size, with agent and one-shot calls writing side by side."""

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
PATIENCE = 30.0  # seconds
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) \[([0-9a-f]{8})\] \S.*")
POD = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log" / "cni.log"


def fill(log: Path, size: int = MEGABYTE - 1) -> None:
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(b"x" * (size - 1) + b"\n")


def packed(log: Path) -> list[Path]:
    return sorted(log.parent.glob("cni-*.log.gz"))


def await_packed(log: Path, count: int) -> list[Path]:
    """Compression only affects the disk: it may take its time."""
    deadline = time.monotonic() + PATIENCE
    while len(packed(log)) < count or len(list(log.parent.iterdir())) > count + 1:
        assert time.monotonic() < deadline, list(log.parent.iterdir())
        time.sleep(0.02)
    return packed(log)


@pytest.mark.parametrize("how", ["agent", "one-shot"])
def test_full_file_is_rotated_and_compressed(own_pods: MakePod, node: Node, log: Path, how: str) -> None:
    if how == "one-shot":
        node.stop_agent()
    fill(log)
    called = own_pods(log_file_path=str(log), log_file_max_size=1).call("ADD")
    assert called.status == 0
    assert log.read_text() == called.stderr
    (old,) = await_packed(log, 1)
    assert len(gzip.decompress(old.read_bytes())) == MEGABYTE - 1


def test_rotated_files_are_limited_in_number_and_age(pods: MakePod, log: Path) -> None:
    fill(log)
    for name in ("2020-01-01T00-00-00.000", "2999-01-01T00-00-00.000", "2999-01-01T00-00-00.001"):
        (log.parent / f"cni-{name}.log.gz").write_bytes(b"")
    pod = pods(log_file_path=str(log), log_file_max_size=1, log_file_max_count=2, log_file_max_age=7)
    pod.add()
    deadline = time.monotonic() + PATIENCE
    while len(list(log.parent.iterdir())) != 3:
        assert time.monotonic() < deadline, list(log.parent.iterdir())
        time.sleep(0.02)
    assert {path.name for path in packed(log)} == {f"cni-2999-01-01T00-00-00.00{number}.log.gz" for number in (0, 1)}


def test_calls_side_by_side_lose_no_line(pods: MakePod, log: Path) -> None:
    """Across a rotation in their midst."""
    fill(log, MEGABYTE - 2000)
    made = [pods(log_file_path=str(log), log_file_max_size=1) for _ in range(6)]

    def come_and_go(pod: Pod) -> str:
        return "".join(pod.call(verb).stderr for verb in ("ADD", "CHECK", "DEL") * 3)

    with ThreadPoolExecutor(len(made)) as workers:
        told = sorted("".join(workers.map(come_and_go, made)).splitlines())
    found = [log.read_text(), *(gzip.decompress(path.read_bytes()).decode() for path in await_packed(log, 1))]
    lines = sorted(line for text in found for line in text.splitlines() if not line.startswith("x"))
    assert lines == told
    assert all(LINE.fullmatch(line) for line in lines)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page, which is taken."""
    place = tmp_path / "disk"
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place))
    (place / "ballast").write_bytes(b"x" * 4096)
    yield place
    run("umount", str(place))


@pytest.mark.parametrize("how", ["agent", "one-shot"])
def test_full_disk_fails_no_call(own_pods: MakePod, node: Node, full_disk: Path, how: str) -> None:
    node.stop_agent()  # one that runs already does not see the mount
    if how == "agent":
        node.start_agent()
    called = own_pods(log_file_path=str(full_disk / "cni.log")).call("ADD")
    assert called.status == 0
    assert f"log file '{full_disk}/cni.log' cannot be written: No space left on device" in called.stderr


def test_line_that_a_full_disk_cuts_off_is_taken_back(full_disk: Path) -> None:
    """Or the next one would be glued to it."""
    (full_disk / "ballast").write_bytes(b"")
    log = full_disk / "cni.log"
    assert not append(str(log), b"whole\n", MEGABYTE)
    with pytest.raises(OSError, match="No space left"):
        append(str(log), b"x" * 5000 + b"\n", MEGABYTE)
    assert not append(str(log), b"next\n", MEGABYTE)
    assert log.read_bytes() == b"whole\nnext\n"


def test_lines_name_the_pod(pods: MakePod, log: Path) -> None:
    """Those of an error, too."""
    pod = pods(args=POD, log_file_path=str(log))
    pod.add()
    pod.failed("ADD", mtu=60)
    pod.delete()
    lines = log.read_text().splitlines()
    assert lines
    assert all(" pod=shop/web-0 " in line and f"container={pod.container}" in line for line in lines)


def test_add_is_one_line_with_its_phases(pods: MakePod, log: Path) -> None:
    """Nothing else stands in the log at the level that is the default, once forwarding is on."""
    pods().add()
    pods(log_file_path=str(log)).add()
    (line,) = log.read_text().splitlines()
    assert LINE.fullmatch(line)
    for phase in ("queue", "ipam", "kernel", "journal", "total"):
        assert re.search(rf" {phase}=\d+\.\d\d\b", line), line
