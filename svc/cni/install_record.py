"""Record of an installation: the agent's socket, the state directory and the names profile."""

import os
from contextlib import suppress
from pathlib import Path

from svc.names import Names
from svc.values import dataclass

SOCKET_NAME = "agent.sock"


@dataclass(frozen=True, slots=True)
class InstallRecord:
    """The installation that an executable belongs to. An empty profile means the default names."""

    state_dir: Path
    socket: Path
    profile: str = ""


def read_record(path: str, names: Names) -> InstallRecord:
    """Return the record at `path`. Missing values, and a missing record, mean the defaults."""
    lines: list[str] = []
    if path:
        with suppress(FileNotFoundError):
            lines = os.fsdecode(Path(path).read_bytes()).splitlines()
    pairs = (line.partition("=") for line in lines)
    values = {key.strip(): value.strip() for key, separator, value in pairs if separator}
    return InstallRecord(
        Path(values.get("state_dir") or names.state_dir),
        Path(values.get("socket") or Path(values.get("run_dir") or names.run_dir) / SOCKET_NAME),
        values.get("profile", ""),
    )
