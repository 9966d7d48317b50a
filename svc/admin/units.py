"""The systemd units that `svcctl install` writes: of the agent, and of svc-routes."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from svc.admin.install_records import OtherInstallations
from svc.admin.installer import InstallSettings
from svc.atomic_file import File
from svc.cni.install_record import SOCKET_NAME
from svc.deploy.systemd import find_unit, render_routes_unit, render_unit

if TYPE_CHECKING:
    from svc.admin.installation import Installation  # it imports this module

UNIT_DIR: Final = Path("/etc/systemd/system")


def units_of(
    wanted: "Installation", others: OtherInstallations, settings: InstallSettings, writable: Sequence[Path]
) -> Iterator[File]:
    """Yield the unit of the agent, and that of svc-routes if it is wanted."""
    yield _of_agent(wanted, others, settings, writable)
    if wanted.routes:
        yield _of_routes(wanted)


def is_elsewhere(settings: InstallSettings) -> bool:
    """Return whether the agent's socket is not the one of its run directory."""
    return settings.socket != settings.run_dir / SOCKET_NAME


def _of_agent(wanted: "Installation", others: OtherInstallations, settings: InstallSettings, writable: Sequence[Path]) -> File:
    """Return the unit of the agent, which another names profile may have installed already."""
    own = find_unit(wanted.unit_dir or UNIT_DIR, wanted.names.plugin, wanted.state_dir)
    path = own if own.exists() else next(iter(others.units()), own)
    command = [sys.executable, "-I", "-m", "svc.agent.main", "run"]
    command += ["--state-dir", str(wanted.state_dir), "--run-dir", str(wanted.run_dir)]
    command += ["--socket", str(settings.socket)] if is_elsewhere(settings) else []
    text = render_unit(path.name, command, wanted.state_dir, wanted.run_dir, writable)
    return File(path, text.encode(), 0o644)


def _of_routes(wanted: "Installation") -> File:
    """Return the unit of svc-routes, which finds the network list by the record of the state directory."""
    path = find_unit(wanted.unit_dir or UNIT_DIR, wanted.names.plugin, wanted.state_dir, "routes")
    command = [sys.executable, "-I", "-m", "svc.routes.main", "run"]
    command += ["--state-dir", str(wanted.state_dir), "--run-dir", str(wanted.run_dir)]
    command += ["--names", wanted.profile] if wanted.profile else []
    writable = [Path(wanted.names.state_dir)]  # the file with the MTU may be there
    return File(path, render_routes_unit(path.name, command, wanted.state_dir, wanted.run_dir, writable).encode(), 0o644)
