"""svcctl install and uninstall: directories that are given in several ways, or recorded, and those of several agents."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from harness.svcctl import Cli
from svc.admin.install_records import read_lines
from svc.admin.installer import find_executable
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
    removed = cli.prints("uninstall", "--names", str(profile), "--bin-dir", str(bin_dir))
    assert (removed.count("removed"), removed.count("installed.json removed")) == (5, 1)


# units


@pytest.mark.parametrize(("name", "unit"), [("second", "second"), ("a b%c$d", "a-b-c-d")])
def test_agents_of_different_directories_have_different_units(
    cli: Cli, install: tuple[str, ...], tmp_path: Path, name: str, unit: str
) -> None:
    """This holds for the same names profile. Each unit stays the agent's own, until the last installation is removed."""
    units, second, bin_dirs = tmp_path / "units", Cli(tmp_path / name), (str(tmp_path / "bin"), str(tmp_path / "bin2"))
    systemd = (*install, "--systemd", "--unit-dir", str(units))
    cli.prints(*systemd)
    (first,) = units.iterdir()
    before = first.read_bytes()
    enabled = second(*systemd, "--bin-dir", bin_dirs[1]).stderr
    (other,) = set(units.iterdir()) - {first}
    assert f"systemctl enable {other.name} " in enabled
    assert first.name == "svc-agent.service"
    assert other.name == f"svc-agent.{str(tmp_path)[1:].replace('/', '-')}-{unit}-state.service"
    second.prints(*systemd, "--bin-dir", bin_dirs[1], "--names", "calico")
    cli.prints("uninstall", "--bin-dir", bin_dirs[0])
    assert list(units.iterdir()) == [other]
    assert f"{other} unchanged" in second.prints(*systemd, "--bin-dir", bin_dirs[1])
    cli.prints(*systemd)
    assert first.read_bytes() == before
    for profile in ("calico", "svc"):
        second.prints("uninstall", "--bin-dir", bin_dirs[1], "--names", profile)
    assert list(units.iterdir()) == [first]


@pytest.mark.parametrize("profiles", [("svc", "calico"), ("calico", "svc")], ids=" ".join)
def test_unit_has_the_log_directories_of_installed_names_only(
    cli: Cli, install: tuple[str, ...], bin_dir: Path, tmp_path: Path, profiles: tuple[str, str]
) -> None:
    """It is removed with the last names. A modified unit stays as it is."""
    systemd = (*install, "--systemd", "--unit-dir", str(tmp_path / "units"))
    last = ("uninstall", "--bin-dir", str(bin_dir), "--names", profiles[0])
    first = (*last[:-1], profiles[1])
    for change, expected in (
        ("", {f"LogsDirectory={profiles[0]}"}),
        ("# mine\n", {"LogsDirectory=svc", "LogsDirectory=calico"}),
    ):
        for profile in profiles:
            cli.prints(*systemd, "--names", profile)
        (unit,) = (tmp_path / "units").iterdir()
        unit.write_text(unit.read_text() + change)
        cli.prints(*first)
        assert {line for line in unit.read_text().splitlines() if line.startswith("LogsDirectory")} == expected
        assert f"{unit} {'kept (modified)' if change else 'removed'}" in cli.prints(*last)


# paths that cannot be used


@pytest.mark.parametrize(
    "option",
    [
        "--bin-dir",
        "--conf-dir",
        "--host-conf-dir",
        "--netconf",
        "--installation",
        "--service-account",
        "--socket",
        "--executable",
        "--unit-dir",
        "--state-dir",
        "--run-dir",
    ],
)
def test_empty_path_is_refused(
    cli: Cli, install: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """It would be the current directory. Variables of shells that are not set are empty."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert f"Invalid value for '{option}': is empty: give a path" in cli.fails(*install, option, "", code=2)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("--state-dir", "", "pool", "get"),
        ("--run-dir", "", "pool", "get"),
        ("--netconf", "", "pool", "get"),
        ("store", "backup", ""),
        ("crd", "apply", "--kubeconfig", ""),
    ],
)
def test_empty_path_is_refused_by_each_command(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert "is empty: give a path" in cli.fails(*arguments, code=2)


@pytest.mark.parametrize("option", ["--state-dir", "--run-dir"])
@pytest.mark.parametrize("below", ["agent", "a/b/agent"])
def test_directory_that_the_agent_would_refuse_is_refused(
    cli: Cli, install: tuple[str, ...], bin_dir: Path, tmp_path: Path, option: str, below: str
) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    expected = f"'{parent}' has mode 0777, so that other users may replace its files: chmod go-w {parent}"
    assert expected in cli.fails(*install, option, str(parent / below))
    assert (bin_dir.exists(), list(parent.iterdir())) == (False, [])
    parent.chmod(0o755)
    (parent / "agent").mkdir(mode=0o777)
    os.chown(parent / "agent", 1, 1)
    assert "belongs to user 1" in cli.fails(*install, option, str(parent / "agent"))
    cli.prints(*install, option, str(parent / "other"))


def test_service_account_is_not_needed_with_a_network(cli: Cli, install: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "netconf").write_text('{"type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}')
    network = ("--conf-dir", str(tmp_path / "net.d"), "--without", "portmap", "--without", "bandwidth")
    failed = cli.fails(
        *install,
        *network,
        "--executable",
        str(find_executable()),
        "--netconf",
        str(tmp_path / "netconf"),
        "--datastore",
        "orch",
    )
    assert "leave --datastore orch out: the file given with --netconf names the datastore" in failed
