"""Calls with umask 0: svc makes no directory that other users can write, because it would refuse it later."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod

pytestmark = pytest.mark.root


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("agent", [True, False])
def test_created_parents_are_writable_only_by_root(tmp_path: Path, sandbox: Callable[[], Netns], agent: bool) -> None:
    new = tmp_path / "new"
    with Node(new / "deep" / "node", agent=False) as node:
        node.state_dir, node.run_dir = new / "other" / "a" / "state", new / "other" / "b" / "run"
        node.socket = node.run_dir / "agent.sock"
        node.prepare("install", "--bin-dir", str(node.bin_dir))
        for turn in range(2):
            if agent:
                node.start_agent()
            pod = Pod(node, sandbox(), f"c{turn}", netconf(log_file_path=str(new / "logs" / "x" / "cni.log")))
            node.apply_pools()
            pod.add()
            called = pod.call("DEL")
            assert (called.status, "cannot be written" in called.stderr) == (0, False), called
            if agent:
                node.stop_agent()
    modes = {path: path.stat().st_mode & 0o777 for path in (new, *new.rglob("*")) if path.is_dir()}
    assert [path for path, mode in modes.items() if mode & 0o022] == []
    assert (modes[new], modes[new / "logs"], modes[new / "logs" / "x"]) == (0o755, 0o750, 0o750)


def test_directory_that_other_users_may_write_is_refused_with_one_fix(node: Node, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    command = [str(node.programs / "svc-agent"), "run", "--state-dir", str(tmp_path / "open" / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "has mode 0777, so that other users may replace its files" in done.stderr
    assert f"chmod go-w {tmp_path}/open" in done.stderr
    assert "name a directory" not in done.stderr
