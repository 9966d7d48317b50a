"""What was recorded when the executable was installed: which agent it talks to, and where state is kept."""

from dataclasses import dataclass
from pathlib import Path

from svc.names import Names

RECORD_NAME = "svc.install"
SOCKET_NAME = "agent.sock"


@dataclass(frozen=True, slots=True)
class Installed:
    """Directories of the deployment that an executable belongs to."""

    state_dir: Path
    run_dir: Path


def read_record(path: str, names: Names) -> Installed:
    """The record beside an executable; what it does not say (or a record that does not exist) means the defaults."""
    values = dict(_pairs(Path(path))) if path else {}
    return Installed(Path(values.get("state_dir") or names.state_dir), Path(values.get("run_dir") or names.run_dir))


def _pairs(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    split = (line.partition("=") for line in lines)
    return [(key.strip(), value.strip()) for key, separator, value in split if separator]
