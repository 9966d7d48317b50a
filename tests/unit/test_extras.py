"""The command that installs an extra is that of the tool that has installed svc."""

import sys
from pathlib import Path

import pytest

from svc import __distribution__
from svc.extras import install_command

PIP = f"{sys.executable} -m pip install '{__distribution__}[etcd]'"


def installed_by(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = folder / f"{__distribution__.replace('-', '_')}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {__distribution__}\nVersion: 1.0\n")
    (information / "INSTALLER").write_text(name)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("installer", "command"), [("pip\n", PIP), ("uv\n", PIP), ("", PIP), ("dpkg\n", f"apt install {__distribution__}-etcd")]
)
def test_command_of_each_installer(installer: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_by(installer, tmp_path, monkeypatch)
    assert install_command("etcd") == command


def test_source_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert install_command("etcd") == PIP
