"""Record of an installation: the agent's socket, the state directory and the names profile."""

import os
from contextlib import suppress
from pathlib import Path

from svc.model.errors import Code, PeerError
from svc.names import Names
from svc.values import dataclass

SOCKET_NAME = "agent.sock"
MAX_WAIT_SECONDS = 600  # of the key `wait`, which the executable alone reads
END = "end", "record"  # key and value of the last line, without which the executable refuses a record as cut off
REPAIR = "repeat `svcctl install` with the same options; in a cluster, delete the pod of svc on this node"
_KEYS = {"socket", "python", "state_dir", "run_dir"}  # of the records of earlier builds, which have no such line


@dataclass(frozen=True, slots=True)
class InstallRecord:
    """The installation that an executable belongs to. An empty profile means the default names."""

    state_dir: Path
    socket: Path
    profile: str = ""


def read_record(path: str, names: Names) -> InstallRecord:
    """Return the record at `path`. Missing values, and a missing record, mean the defaults. Raise PeerError for a cut one."""
    lines: list[str] = []
    if path:
        with suppress(FileNotFoundError):
            text = os.fsdecode(Path(path).read_bytes())
            require_whole(path, text)
            lines = text.splitlines()
    pairs = (line.partition("=") for line in lines)
    values = {key.strip(): value.strip() for key, separator, value in pairs if separator}
    return InstallRecord(
        Path(values.get("state_dir") or names.state_dir),
        Path(values.get("socket") or Path(values.get("run_dir") or names.run_dir) / SOCKET_NAME),
        values.get("profile", ""),
    )


def require_whole(path: str, text: str) -> None:
    """Raise PeerError unless the record has its last line or, of an earlier build, its keys and the file of its executable."""
    lines = text.splitlines()
    keys = {line.partition("=")[0] for line in lines}
    executable = Path(path).stem
    lists_executable = any(line.startswith("file=") and Path(line).name == executable for line in lines)
    is_earlier = lists_executable and keys >= _KEYS and "wait" not in keys and text.endswith("\n")
    if "=".join(END) not in lines and not is_earlier:
        raise PeerError(f"cannot use {path}: it is damaged", details=REPAIR, code=Code.IO_FAILURE)
