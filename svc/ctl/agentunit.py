"""The systemd unit of the agent: one for each state directory, whichever names profiles it serves."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc.ctl.records import Others
from svc.deploy import systemd
from svc.model.errors import SvcError
from svc.names import Names
from svc.netconf.profiles import load_profile
from svc.placing import File
from svc.values import dataclass

HOST_LOCAL_DIR: Final = Path("/var/lib/cni")  # where host-local keeps its addresses


@dataclass(frozen=True, slots=True)
class AgentUnit:
    """The unit at `path`, and the directories of its agent. `socket` is None if it is the one of the run directory."""

    path: Path
    state_dir: Path
    run_dir: Path
    socket: Path | None
    log_dirs: tuple[Path, ...]

    @property
    def plugin(self) -> str:
        """Return the main plugin that the unit is named after."""
        return systemd.plugin_of(self.path.name)

    @property
    def file(self) -> File:
        """Return what the file must be."""
        command = [sys.executable, "-I", "-m", "svc.agent.main", "run"]
        command += ["--state-dir", str(self.state_dir), "--run-dir", str(self.run_dir)]
        command += ["--socket", str(self.socket)] if self.socket else []
        text = systemd.render_unit(self.plugin, command, self.state_dir, self.run_dir, self._writable)
        return File(self.path, text.encode(), 0o644)

    def make_directories(self) -> None:
        """Make the directories that systemd does not make when the unit starts. Raise OSError."""
        for path in self._writable:
            if systemd.kind_of(path) is None:
                path.mkdir(mode=0o755, parents=True, exist_ok=True)

    @property
    def _writable(self) -> list[Path]:
        return [*self.log_dirs, HOST_LOCAL_DIR, *([self.socket.parent] if self.socket else [])]


def choose_path(unit_dir: Path, names: Names, others: Others) -> Path:
    """Return the path of the unit: that of the agent's present unit, which another names profile may have installed."""
    own = unit_dir / systemd.unit_name(names.plugin)
    return own if own.exists() else next(iter(others.units()), own)


def log_dirs(names: Names, others: Others) -> tuple[Path, ...]:
    """Return the log directories of these names and of the other names profiles. Skip a profile that cannot be read."""
    return tuple(sorted({Path(each.log_dir).parent for each in (names, *_profiles(others))}))


def _profiles(others: Others) -> Iterable[Names]:
    for entry in others.entries:
        with suppress(SvcError):
            yield load_profile(entry.profile)
