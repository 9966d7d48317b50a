"""Systemd units of the agent and of svc-routes: their text, installation and removal by svcctl."""

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.skips import NO_ANALYZE
from harness.svcctl import Cli
from svc.deploy.systemd import render_routes_unit, render_unit
from svc.routes.settings import parse as parse_routes


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    path = tmp_path / "built"
    path.write_bytes(b"\x7fELF: CNI plugin, spec versions ")
    return path


def render(state_dir: str = "/var/lib/svc", run_dir: str = "/var/run/svc", *command: str) -> list[str]:
    return render_unit(
        "svc-agent.service", command or ("/usr/bin/python3",), Path(state_dir), Path(run_dir), [Path("/var/log/svc")]
    ).splitlines()


def test_unit_has_only_the_necessary_rights() -> None:
    lines = render()
    assert "CapabilityBoundingSet=CAP_NET_ADMIN CAP_SYS_ADMIN CAP_SYS_NICE" in lines
    assert {"Type=notify", "WatchdogSec=60", "NoNewPrivileges=yes", "ProtectSystem=strict", "Restart=always"} <= set(lines)
    assert "RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6" in lines


def test_directories_are_writable() -> None:
    """Systemd creates those below /run at each start, because a reboot removes them."""
    assert {"ReadWritePaths=/var/lib/svc", "LogsDirectory=svc", "RuntimeDirectory=svc"} <= set(render())
    assert "RuntimeDirectory=a/b" in render("/s", "/run/a/b")
    lines = render("/srv/state", "/srv/run")
    assert {"ReadWritePaths=/srv/state", "ReadWritePaths=/srv/run"} <= set(lines)
    assert not any(line.startswith("RuntimeDirectory") for line in lines)


def test_odd_paths_are_quoted() -> None:
    lines = render("/a b", "/run/svc", "/p q/python%3", "$x", 'a"b')
    assert 'ExecStart="/p q/python%%3" $$x "a\\"b"' in lines
    assert 'ReadWritePaths="/a b"' in lines


def test_unit_is_installed_once_and_removed(cli: Cli, tmp_path: Path, executable: Path) -> None:
    """It has the directories and the Python of the installation. A modified unit is kept."""
    unit = tmp_path / "units" / "svc-agent.service"
    arguments = ("install", "--bin-dir", str(tmp_path / "bin"), "--executable", str(executable), "--systemd", "--unit-dir",
                 str(unit.parent))  # fmt: skip
    assert f"{unit} installed" in cli.prints(*arguments)
    assert f"{unit} unchanged" in cli.prints(*arguments)
    assert stat.S_IMODE(unit.stat().st_mode) == 0o644
    (start,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    assert start.startswith(f"ExecStart={sys.executable} -I -m svc.agent.main run --state-dir ")
    assert f"{unit} removed" in cli.prints("uninstall", "--bin-dir", str(tmp_path / "bin"))
    assert list(unit.parent.iterdir()) == []
    cli.prints(*arguments)
    unit.write_text(unit.read_text() + "# mine\n")
    assert f"{unit} kept" in cli.prints("uninstall", "--bin-dir", str(tmp_path / "bin"))


@pytest.mark.parametrize("profile", ["", "calico"])
def test_unit_of_routes_is_installed_and_removed(cli: Cli, tmp_path: Path, executable: Path, profile: str) -> None:
    """It names the directories and the profile, and leaves the mode to a variable, which a drop-in can change."""
    folder, name = tmp_path / "units", f"{profile or 'svc'}-routes.service"
    more = ("--names", profile) if profile else ()
    arguments = ("install", "--bin-dir", str(tmp_path / "bin"), "--executable", str(executable), "--systemd", "--routes",
                 "--unit-dir", str(folder), *more)  # fmt: skip
    assert f"{folder / name} installed" in cli.prints(*arguments)
    assert f"{folder / name} unchanged" in cli.prints(*arguments)
    lines = (folder / name).read_text().splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    words = start.removeprefix("ExecStart=").split()
    assert words[:4] == [sys.executable, "-I", "-m", "svc.routes.main"]
    found = parse_routes(words[4:], {"SVC_ROUTES_MODE": "on"})
    assert (found.mode, found.names) == ("on", profile)
    assert "Environment=SVC_ROUTES_MODE=auto" in lines
    assert f"{folder / name} removed" in cli.prints("uninstall", "--bin-dir", str(tmp_path / "bin"), *more)
    assert list(folder.iterdir()) == []


def test_routes_of_a_single_node_are_refused(cli: Cli, tmp_path: Path, executable: Path) -> None:
    """The program would refuse to start, and systemd would start it again and again."""
    arguments = ("install", "--bin-dir", str(tmp_path / "bin"), "--executable", str(executable), "--systemd", "--routes",
                 "--unit-dir", str(tmp_path / "units"), "--conf-dir", str(tmp_path / "net.d"))  # fmt: skip
    assert "the network has the store 'embedded' of one node" in cli.fails(*arguments)
    assert not (tmp_path / "units").exists()


def test_unit_of_the_agent_is_not_that_of_routes(cli: Cli, tmp_path: Path, executable: Path) -> None:
    """A further profile updates the unit of the agent that is there."""
    folder = tmp_path / "units"
    arguments = ("install", "--executable", str(executable), "--systemd", "--routes", "--unit-dir", str(folder))
    cli.prints(*arguments, "--bin-dir", str(tmp_path / "bin"))
    cli.prints(*arguments, "--bin-dir", str(tmp_path / "other"), "--names", "calico")
    assert sorted(path.name for path in folder.iterdir()) == [
        "calico-routes.service",
        "svc-agent.service",
        "svc-routes.service",
    ]
    assert "svc.agent.main" in (folder / "svc-agent.service").read_text()


def test_installation_makes_the_directories_of_the_unit(cli: Cli, tmp_path: Path, executable: Path) -> None:
    """Systemd does not start a unit that names a missing directory outside /run."""
    cli.prints("install", "--bin-dir", str(tmp_path / "bin"), "--executable", str(executable), "--systemd", "--unit-dir",
               str(tmp_path / "units"))  # fmt: skip
    lines = (tmp_path / "units" / "svc-agent.service").read_text().splitlines()
    assert f"ReadWritePaths={tmp_path / 'run'}" in lines
    for name in ("state", "run"):
        assert (tmp_path / name).is_dir()


@pytest.fixture(params=["agent", "routes"])
def unit(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    if not shutil.which("systemd-analyze"):
        pytest.skip(NO_ANALYZE)
    path = tmp_path / f"svc-{request.param}.service"
    command = [sys.executable, "-I", "-m", f"svc.{request.param}.main", "run"]
    render = {"agent": render_unit, "routes": render_routes_unit}[request.param]
    path.write_text(render(path.name, command, Path("/var/lib/svc"), Path("/var/run/svc"), [Path("/var/log/svc")]))
    return path


def test_systemd_finds_no_error_in_the_unit(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if unit.stem in line] == []


def test_systemd_rates_the_unit_as_protected(unit: Path) -> None:
    """The exposure is below 5.0 of 10. The rest are the capabilities and the network."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=50", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
