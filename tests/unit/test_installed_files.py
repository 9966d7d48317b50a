"""Installed files that another program has removed."""

from pathlib import Path
from typing import Any

import pytest

from svc.admin.installed_files import missing_files
from svc.admin.node_status import DEGRADED, NodeStatus
from svc.model.errors import CallerError
from svc.netconf.installed import Installed, add_installed


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    folders = [tmp_path / name for name in ("bin", "conf")]
    for folder in folders:
        folder.mkdir()
    entry = Installed("", str(folders[0]), ("svc", "svc-ipam"), str(folders[1] / "10-svc.conflist"))
    for path in (folders[0] / "svc", folders[0] / "svc-ipam", folders[1] / "10-svc.conflist"):
        path.touch()
    add_installed(tmp_path / "state", entry)
    return entry


def test_removed_executable_is_a_problem(installed: Installed, tmp_path: Path) -> None:
    """A package manager may empty the directory."""
    assert missing_files(tmp_path / "state") == []
    Path(installed.bin_dir, "svc").unlink()
    missing = str(Path(installed.bin_dir, "svc"))
    assert missing_files(tmp_path / "state") == [missing]
    node = NodeStatus(tmp_path / "state", tmp_path / "agent.sock", _unknown, _unknown)
    (problem,) = [each for each in node.read(20)["problems"] if missing in each["text"]]
    assert (problem["level"], problem["fix"].startswith("repeat it")) == (DEGRADED, True)


def _unknown() -> dict[str, Any]:
    raise CallerError("the networks of this node have several datastores", details="name one with --netconf")


def test_list_on_the_host_counts_for_one_in_a_container(installed: Installed, tmp_path: Path) -> None:
    Path(installed.network_list).unlink()
    assert missing_files(tmp_path / "state") == [installed.network_list]
    host = tmp_path / "host.conflist"
    host.touch()
    entry = Installed("", installed.bin_dir, installed.executables, installed.network_list, str(host))
    add_installed(tmp_path / "state", entry)
    assert missing_files(tmp_path / "state") == []


def test_directories_that_are_not_here_are_not_known(installed: Installed, tmp_path: Path) -> None:
    Path(installed.bin_dir).rename(tmp_path / "elsewhere")
    assert missing_files(tmp_path / "state") == []
