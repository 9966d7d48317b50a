"""svcctl install and uninstall: directories that are given in several ways, or recorded, and those of several agents."""

from contextlib import closing
from pathlib import Path

import pytest

from harness.svcctl import Cli
from svc.admin.install_records import read_lines
from svc.attach.journal import Journal
from svc.attach.record import ADDED, DELETING, AttachmentId, Record
from svc.netconf.installed import read_installed


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "first")


@pytest.fixture
def unaware(tmp_path: Path) -> Cli:
    """Return a svcctl whose user gives other directories than those of `cli`."""
    return Cli(tmp_path / "other", fresh=False)


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    return tmp_path / "bin"


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    path = tmp_path / "built"
    path.write_bytes(b"\x7fELF: CNI plugin, spec versions ")
    return path


@pytest.fixture
def install(bin_dir: Path, executable: Path) -> tuple[str, ...]:
    return ("install", "--bin-dir", str(bin_dir), "--executable", str(executable))


def attach(cli: Cli, state: str = ADDED, profile: str = "") -> None:
    """Record an attachment in the journal."""
    with closing(Journal(cli.folder / "state" / "journal.db")) as journal:
        key = AttachmentId("net", f"container-{len(journal.all())}", "eth0")
        journal.begin(Record(key, state, "boot", (1, 2), "node", {"kind": "embedded"}, "host0", "", profile=profile))


def settings(bin_dir: Path) -> dict[str, str]:
    return dict(read_lines(bin_dir / "svc.install"))


# repeated installation


def test_recorded_directories_are_the_default(cli: Cli, install: tuple[str, ...], bin_dir: Path, tmp_path: Path) -> None:
    """The pods of the executables stay with their agent."""
    cli.prints(*install, "--socket", str(tmp_path / "socket"))
    before = settings(bin_dir)
    plain = Cli(cli.folder, fresh=False, bare=True)
    assert plain.prints(*install).count("unchanged") == 5
    assert settings(bin_dir) == before
    plain.prints(*install, "--run-dir", str(tmp_path / "run"))
    assert settings(bin_dir)["socket"] == str(tmp_path / "run" / "agent.sock")
    assert settings(bin_dir)["state_dir"] == before["state_dir"]


@pytest.mark.parametrize("state", [ADDED, DELETING])
def test_state_directory_with_attachments_is_not_changed(
    cli: Cli, unaware: Cli, install: tuple[str, ...], bin_dir: Path, state: str
) -> None:
    """Their DELs would release the addresses in the other one. Attachments of other names do not count."""
    cli.prints(*install)
    attach(cli, state)
    before = settings(bin_dir)
    expected = f"executables in '{bin_dir}' belong to state directory '{cli.folder}/state', which has 1 attachments: "
    assert f"{expected}give --state-dir {cli.folder}/state" in unaware.fails(*install)
    assert settings(bin_dir) == before
    assert not (unaware.folder / "state").exists()
    unaware.prints(*install, "--names", "calico")


def test_state_directory_without_attachments_is_changed(
    cli: Cli, unaware: Cli, install: tuple[str, ...], bin_dir: Path
) -> None:
    """The earlier one no longer lists the executables."""
    cli.prints(*install)
    attach(cli, profile="calico")
    unaware.prints(*install)
    assert settings(bin_dir)["state_dir"] == str(unaware.folder / "state")
    assert read_installed(cli.folder / "state") == ()
    assert len(read_installed(unaware.folder / "state")) == 1


def test_state_directory_may_be_given_by_a_link(cli: Cli, unaware: Cli, install: tuple[str, ...], bin_dir: Path) -> None:
    cli.prints(*install)
    attach(cli)
    unaware.folder.mkdir()
    (unaware.folder / "state").symlink_to(cli.folder / "state")
    unaware.prints(*install)
    assert len(read_installed(cli.folder / "state")) == 1


# uninstallation


def test_uninstall_warns_of_attachments(cli: Cli, install: tuple[str, ...], bin_dir: Path) -> None:
    """Pending releases need no executable, and other directories of executables serve the DELs."""
    warning = "warning: 2 attachments are recorded: their DELs will fail until svc is installed again\n"
    cli.prints(*install)
    for state in (ADDED, ADDED, DELETING):
        attach(cli, state)
    attach(cli, profile="calico")
    other = ("uninstall", "--bin-dir", f"{bin_dir}2")
    cli.prints("install", *other[1:], *install[3:])
    assert cli(*other).stderr == ""
    assert cli("uninstall", "--bin-dir", str(bin_dir)).stderr == warning


@pytest.mark.parametrize("paths", [("link",), ("real",), ("link", "real"), ("real", "link")], ids=" ".join)
@pytest.mark.parametrize("last", ["link", "real"])
def test_links_name_the_same_directories(
    cli: Cli, install: tuple[str, ...], tmp_path: Path, paths: tuple[str, ...], last: str
) -> None:
    """Uninstall removes all files of each names profile."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in paths:
        folder = str(tmp_path / path)
        cli.prints(*install, "--bin-dir", folder, "--systemd", "--unit-dir", folder)
        cli.prints(*install, "--bin-dir", folder, "--names", "calico")
    assert len(read_installed(cli.folder / "state")) == 2
    assert "kept" not in cli.prints("uninstall", "--bin-dir", str(tmp_path / last))
    assert "kept" not in cli.prints("uninstall", "--names", "calico", "--bin-dir", str(tmp_path / last))
    assert list((tmp_path / "real").iterdir()) == []
    assert read_installed(cli.folder / "state") == ()


def test_directory_may_become_a_link(cli: Cli, install: tuple[str, ...], bin_dir: Path, tmp_path: Path) -> None:
    cli.prints(*install)
    bin_dir.rename(tmp_path / "real")
    bin_dir.symlink_to(tmp_path / "real")
    assert "kept" not in cli.prints("uninstall", "--bin-dir", str(bin_dir))
    assert list((tmp_path / "real").iterdir()) == []


def test_records_stay_with_executables_in_use(cli: Cli, install: tuple[str, ...], bin_dir: Path, tmp_path: Path) -> None:
    """Two profiles may give the executables the same names."""
    profile = tmp_path / "profile.toml"
    profile.touch()
    cli.prints(*install)
    cli.prints(*install, "--names", str(profile))
    present = {path.name for path in bin_dir.iterdir()}
    assert "removed" not in cli.prints("uninstall", "--bin-dir", str(bin_dir))
    assert {path.name for path in bin_dir.iterdir()} == present
    assert cli.prints("uninstall", "--names", str(profile), "--bin-dir", str(bin_dir)).count("removed") == 4
