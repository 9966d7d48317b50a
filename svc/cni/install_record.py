"""What was recorded when the executable was installed: which agent it talks to, where state is kept, what things are called."""

import os
from pathlib import Path

from svc.names import Names
from svc.values import dataclass

SOCKET_NAME = "agent.sock"


@dataclass(frozen=True, slots=True)
class Installed:
    """The deployment that an executable belongs to: where its state is and its agent listens, and its names profile (empty: our
    own names)."""

    state_dir: Path
    socket: Path
    profile: str = ""


def read_record(path: str, names: Names) -> Installed:
    """The record beside an executable; what it does not say (or a record that does not exist) means the defaults."""
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
