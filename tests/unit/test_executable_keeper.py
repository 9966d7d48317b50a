"""Executables that another program removed after `svcctl install`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.shim import compile_shim
from svc.admin.executable_keeper import ExecutableKeeper
from svc.admin.installation import Installation, install
from svc.atomic_file import replace
from svc.names import DEFAULT
from svc.netconf.installed import read_installed, remove_installed


@pytest.fixture
def wanted(tmp_path: Path) -> Installation:
    """Install the executables, without a network."""
    folder = tmp_path.resolve()
    settings = Installation(
        names=DEFAULT, profile="", state_dir=folder / "state", run_dir=folder / "run", bin_dir=folder / "bin", conf_dir=None,
        host_conf_dir=None, unit_dir=None, datastore="embedded", netconf=None, installation=None, without=(), cni_version=None,
        service_account=None, socket=None, executable=compile_shim(folder / "built"), systemd=False,
    )  # fmt: skip
    install(settings, print, lambda: None)
    return settings


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mode) for file in folder.iterdir()}


def test_removed_files_are_put_back(wanted: Installation) -> None:
    lines: list[str] = []
    keeper = ExecutableKeeper(wanted, lambda line, _: lines.append(line))
    before = content(wanted.bin_dir)
    keeper.look()
    for name in before:
        (wanted.bin_dir / name).unlink()
    keeper.look()
    assert content(wanted.bin_dir) == {}  # a removal may be a part of `svcctl uninstall`
    keeper.look()
    assert content(wanted.bin_dir) == before
    assert sorted(lines) == sorted(f"{wanted.bin_dir / name} put back: another program removed it" for name in before)


def test_the_files_of_a_later_installation_are_put_back(wanted: Installation) -> None:
    """It may run beside a watch, as during an update with a surge."""
    keeper = ExecutableKeeper(wanted, lambda *_: None)
    plugin = wanted.bin_dir / DEFAULT.plugin
    keeper.look()
    replace(plugin, (b"later",), 0o755)
    keeper.look()
    plugin.unlink()
    keeper.look()
    keeper.look()
    assert plugin.read_bytes() == b"later"


def test_a_file_that_is_missing_at_first_does_not_keep_the_others_away(wanted: Installation) -> None:
    keeper = ExecutableKeeper(wanted, lambda *_: None)
    (wanted.bin_dir / DEFAULT.ipam_plugin).unlink()
    keeper.look()
    (wanted.bin_dir / DEFAULT.plugin).unlink()
    keeper.look()
    keeper.look()
    assert (wanted.bin_dir / DEFAULT.plugin).exists()


def test_uninstalled_files_stay_removed(wanted: Installation) -> None:
    keeper = ExecutableKeeper(wanted, lambda *_: pytest.fail("nothing is to be reported"))
    keeper.look()
    (wanted.bin_dir / DEFAULT.plugin).unlink()
    assert remove_installed(wanted.state_dir, "", str(wanted.bin_dir))
    keeper.look()
    keeper.look()
    assert not (wanted.bin_dir / DEFAULT.plugin).exists()


def test_uninstalled_files_stay_removed_if_that_cannot_be_printed(wanted: Installation) -> None:
    words = "--state-dir", str(wanted.state_dir), "uninstall", "--bin-dir", str(wanted.bin_dir)
    statement = "from svc.ctl.main import main; main(prog_name='svcctl')"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", statement, *words], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, b"cannot be written" in done.stderr) == (1, True)
    assert content(wanted.bin_dir) == {}
    assert read_installed(wanted.state_dir) == ()


def test_changed_files_and_removed_directories_stay(wanted: Installation) -> None:
    """Another version may have been installed."""
    keeper = ExecutableKeeper(wanted, lambda *_: pytest.fail("nothing is to be reported"))
    keeper.look()
    (wanted.bin_dir / DEFAULT.plugin).write_bytes(b"other")
    keeper.look()
    keeper.look()
    assert (wanted.bin_dir / DEFAULT.plugin).read_bytes() == b"other"
    shutil.rmtree(wanted.bin_dir)
    keeper.look()
    keeper.look()
    assert not wanted.bin_dir.exists()
