"""The agent's check for another version of the package on the disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import svc
from svc.agent.places import UpgradeCheck
from svc.attach.context import Context
from svc.metrics import Metrics

REASON = "the agent runs version 1.0, and version {} has been installed since: restart svc-agent"


class Disk:
    """The disk as a check sees it, and what the check has reported."""

    def __init__(self, file: Path, patch: pytest.MonkeyPatch) -> None:
        self.version = "1.0"
        self.context: Any = SimpleNamespace(restart_reason="", metrics=Metrics())
        self._file = file
        file.touch()
        patch.setattr(svc, "__file__", str(file))
        patch.setattr(svc, "__version__", "1.0", raising=False)
        patch.setattr(svc, "installed_version", lambda: self.version)
        self._check = UpgradeCheck(cast(Context, self.context))

    def replace(self, version: str) -> None:
        self._file.write_text(version)
        self.version = version

    def remove(self) -> None:
        self._file.unlink()

    def check(self, count: int) -> str:
        """Check so often, and return the reason for a restart."""
        for _ in range(count):
            self._check.run()
        return str(self.context.restart_reason)

    @property
    def changes(self) -> float:
        return float(self.context.metrics.read()["package_changes_total", ()])


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "__init__.py", monkeypatch)


def test_same_package_is_not_reported(disk: Disk) -> None:
    assert (disk.check(5), disk.changes) == ("", 0)


def test_other_version_is_reported_once_at_the_second_check(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.replace("2.0")
    assert disk.check(1) == ""
    assert disk.check(5) == REASON.format("2.0")
    assert (disk.changes, caplog.messages) == (1, [REASON.format("2.0")])


def test_version_that_is_written_late_is_corrected(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.replace("0.0.0")  # the package is there, and its metadata are not
    assert disk.check(3) == REASON.format("0.0.0")
    disk.version = "2.0"
    assert disk.check(2) == REASON.format("2.0")
    assert disk.changes == 1
    assert caplog.messages == [REASON.format("0.0.0"), REASON.format("2.0")]


def test_removed_package_is_reported_until_another_one_is_there(disk: Disk) -> None:
    disk.remove()
    assert disk.check(2) == REASON.format("none")
    disk.replace("3.0")
    assert disk.check(2) == REASON.format("3.0")
    assert disk.changes == 2
