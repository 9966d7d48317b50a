"""The node's disk is full: whoever calls is told, nothing is lost, and it works again when there is space."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.netns import Netns
from harness.node import Node, netconf
from harness.patience import wait_until
from harness.pod import Pod
from harness.state import faults, remains
from svc.attach.journal import Journal

pytestmark = pytest.mark.root

SPACE = "2m"
MakePod = Callable[[], Pod]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Its state directory is a file system of its own, which is small."""
    state = tmp_path / "node" / "state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SPACE}", "tmpfs", state], check=True)
    try:
        with Node(tmp_path / "node") as node:
            node.apply_pools()
            yield node
            assert node.stop_agent() == 0
            assert "Traceback" not in node.log.read_text()
            subprocess.run(["umount", state], check=True)
    finally:
        if state.is_mount():
            subprocess.run(["umount", "--lazy", state], check=True)


@pytest.fixture
def make(node: Node, sandbox: Callable[[], Netns]) -> MakePod:
    numbers = iter(range(100))
    return lambda: Pod(node, sandbox(), f"c{next(numbers)}", netconf(ipam={"assign_ipv6": "true"}))


def fill(node: Node) -> Path:
    ballast = node.state_dir / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def fails_in_time(make: MakePod) -> dict[str, object]:
    """What is written before may still fit: the error of the first ADD that does not."""
    for _ in range(200):
        called = make().call("ADD")
        if called.status:
            return dict(called.output)
    raise AssertionError("the disk never was full")


def test_full_disk(node: Node, make: MakePod) -> None:
    kept = make()
    kept.add()
    ballast = fill(node)
    made: list[Pod] = []

    def another() -> Pod:
        made.append(make())
        return made[-1]

    error = fails_in_time(another)
    assert error["code"] == 104
    assert "database or disk is full" in str(error["msg"])
    assert "free space on its file system" in str(error["details"])
    told = node.call("STATUS", netconf(ipam={"assign_ipv6": "true"}), container="", ifname="").output
    assert told["code"] == 50
    assert "full" in told["msg"]
    failed = made[-1]
    assert failed.netns.links() == []
    assert kept.check().status == 0
    ballast.unlink()
    failed.add()
    assert failed.check().status == 0
    assert faults(node) == []
    for pod in (kept, *made):
        pod.delete()
    assert remains(node) == []


def test_delete_on_a_full_disk(node: Node, make: MakePod) -> None:
    """Each succeeds at once: its interface goes, and what it holds in the store is released when there is room again."""
    pods = [make() for _ in range(8)]
    for pod in pods:
        pod.add()
    ballast = fill(node)
    for pod in pods:
        pod.delete()
    assert [pod.netns.links() for pod in pods] == [[]] * len(pods)
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        assert {record.state for record in journal.all()} <= {"deleting"}
    node.stop_agent()
    ballast.unlink()
    node.start_agent()
    wait_until(lambda: remains(node) == [])
