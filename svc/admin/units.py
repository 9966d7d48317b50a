"""The systemd units that `svcctl install` writes: of the agent, and of svc-routes."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from svc.admin.install_records import OtherInstallations
from svc.admin.installer import InstallSettings
from svc.atomic_file import File
from svc.cni.install_record import SOCKET_NAME
from svc.deploy.systemd import find_unit, render_routes_unit, render_unit
from svc.names import Names

UNIT_DIR: Final = Path("/etc/systemd/system")


def of_agent(
    folder: Path, names: Names, settings: InstallSettings, others: OtherInstallations, writable: Sequence[Path]
) -> File:
    """Return the unit of the agent, which another names profile may have installed already."""
    own = find_unit(folder, names.plugin, settings.state_dir)
    path = own if own.exists() else next(iter(others.units()), own)
    command = [*_program("agent", settings), *(["--socket", str(settings.socket)] if is_elsewhere(settings) else [])]
    text = render_unit(path.name, command, settings.state_dir, settings.run_dir, writable)
    return File(path, text.encode(), 0o644)


def of_routes(folder: Path, names: Names, settings: InstallSettings) -> File:
    """Return the unit of svc-routes, which finds the network list by the record of the state directory."""
    path = find_unit(folder, names.plugin, settings.state_dir, "routes")
    command = [*_program("routes", settings), *(["--names", settings.profile] if settings.profile else [])]
    writable = [Path(names.state_dir)]  # the file with the MTU may be there
    text = render_routes_unit(path.name, command, settings.state_dir, settings.run_dir, writable)
    return File(path, text.encode(), 0o644)


def is_elsewhere(settings: InstallSettings) -> bool:
    """Return whether the agent's socket is not the one of its run directory."""
    return settings.socket != settings.run_dir / SOCKET_NAME


def _program(name: str, settings: InstallSettings) -> list[str]:
    directories = ["--state-dir", str(settings.state_dir), "--run-dir", str(settings.run_dir)]
    return [sys.executable, "-I", "-m", f"svc.{name}.main", "run", *directories]
