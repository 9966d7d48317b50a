"""svcctl store: backup while an agent runs, restore without an agent."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.netns import Netns
from harness.node import Node, netconf

pytestmark = pytest.mark.root


def content(node: Node, *options: str) -> str:
    return node.svcctl(*options, "pool", "get").stdout + node.svcctl(*options, "ipam", "show", "--show-blocks").stdout


def test_store_can_be_backed_up_while_the_agent_runs(node: Node, sandbox: Callable[[], Netns], tmp_path: Path) -> None:
    """Only root can read the backup. svcctl does not replace an existing file."""
    box = sandbox()
    node.add(netconf(), box)
    copy = tmp_path / "copy"
    printed = node.svcctl("store", "backup", str(copy)).stdout
    assert printed == f"{copy} written\ndatastore: embedded store {node.state_dir}/store.db\n"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob("*copy*")] == ["copy"]
    refused = node.svcctl("store", "backup", str(copy), check=False)
    assert (refused.returncode, "exists already" in refused.stderr) == (1, True)
    node.delete(netconf(), box)


def test_restore_replaces_the_store_by_the_backup(node: Node, sandbox: Callable[[], Netns], tmp_path: Path) -> None:
    """Restore refuses to run while an agent runs. It keeps the replaced store and its log. The agent then uses the backup."""
    copy, box = tmp_path / "copy", sandbox()
    node.svcctl("store", "backup", str(copy))
    before = content(node)
    node.svcctl("pool", "delete", "pool6")
    changed = content(node)
    refused = node.svcctl("store", "restore", str(copy), check=False)
    assert refused.returncode == 1
    assert refused.stderr == f"Error: an agent runs: process {node.agent_pid} (agent): stop it, and repeat\n"
    assert content(node) == changed
    assert node.stop_agent() == 0
    printed = node.svcctl("store", "restore", str(copy)).stdout.splitlines()
    assert content(node) == before
    kept = Path(printed[1].removeprefix("replaced store kept as "))
    assert kept.parent == node.state_dir
    (tmp_path / "old").mkdir()
    kept.rename(tmp_path / "old" / "store.db")
    assert content(node, "--state-dir", str(tmp_path / "old")) == changed
    node.start_agent()
    node.add(netconf(), box)
    node.delete(netconf(), box)
