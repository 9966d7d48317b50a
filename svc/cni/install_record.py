"""Record of an installation: the agent's socket, the state directory and the names profile."""

import os
from pathlib import Path

from svc.names import Names
from svc.values import dataclass

SOCKET_NAME = "agent.sock"


@dataclass(frozen=True, slots=True)
class Installed:
    """The installation that an executable belongs to. An empty profile means the default names."""

    state_dir: Path
    socket: Path
    profile: str = ""


def read_record(path: str, names: Names) -> Installed:
    """Return the record at `path`. Missing values, and a missing record, mean the defaults."""
    values = dict(_pairs(Path(path))) if path else {}
    return Installed(
        Path(values.get("state_dir") or names.state_dir),
        Path(values.get("socket") or Path(values.get("run_dir") or names.run_dir) / SOCKET_NAME),
        values.get("profile", ""),
    )


def _pairs(path: Path) -> list[tuple[str, str]]:
    try:
        lines = os.fsdecode(path.read_bytes()).splitlines()
    except FileNotFoundError:
        return []
    split = (line.partition("=") for line in lines)
    return [(key.strip(), value.strip()) for key, separator, value in split if separator]
