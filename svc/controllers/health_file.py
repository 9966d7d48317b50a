"""The file in which a process of the controllers notes its health, and the command that reads it for a probe.

A probe starts a process, so this module imports little.
"""

import errno
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

MAX_AGE_SECONDS = 30.0  # after which the process counts as dead, or as stuck as a whole
LIVE, READY = "live", "ready"

Json = dict[str, Any]


def default_path(program: str) -> Path:
    """Return the file of a user's processes of this name, if no variable names another."""
    return Path(tempfile.gettempdir(), f"{program}-{os.geteuid()}", "health.json")


def write(path: Path, *, enabled: bool, problems: dict[str, list[str]]) -> None:
    """Note the health of this process. `problems` are those of LIVE and READY. Raise OSError. The directory must exist."""
    content = {"pid": os.getpid(), "at": time.monotonic(), "enabled": enabled, **problems}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump(content, file)
    draft.rename(path)


def check(path: Path, aspect: str) -> tuple[bool, str]:
    """Return whether the process is LIVE or READY, and the reason in words."""
    try:
        found = json.loads(_content(path))
        enabled, pid, age = bool(found["enabled"]), int(found["pid"]), time.monotonic() - float(found["at"])
        problems = list(map(str, found[aspect]))
    except OSError as error:
        return (
            False,
            f"{str(path)!r} cannot be read: {error.strerror}: the program has not begun, or HEALTH_FILE is another there",
        )
    except (ValueError, KeyError, TypeError):
        return False, f"{str(path)!r} is not written by svc-controllers: give HEALTH_FILE as the program has it"
    if not enabled:
        return True, "health checks are disabled in the configuration: this says nothing"
    if not 0 <= age <= MAX_AGE_SECONDS:
        return False, f"process {pid} has not noted its health for more than {MAX_AGE_SECONDS:.0f} s: see its log"
    return not problems, "; ".join(problems) or f"process {pid} is {aspect}"


def _content(path: Path) -> bytes:
    """Return the content of a file that no other user has written. Raise OSError."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        return file.read()
