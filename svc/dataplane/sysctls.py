"""The folder in which the sysctls of the host can be written."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from svc.model.errors import CallerError, Code

SYSCTLS: Final = "/proc/sys"
VARIABLE: Final = "PROC_SYS_DIR"
"""The variable of the agent that names another folder, because /proc/sys of a container without privileges is read-only."""

_PROBE: Final = "net/ipv4/ip_forward"  # which every kernel with IPv4 has
_MOUNT: Final = f"mount the host's {SYSCTLS} there, writable, or leave the variable out"


def sysctls_folder(environment: Mapping[str, str]) -> str:
    """Return the folder that the variable names, else /proc/sys. Raise CallerError if it has no sysctls, or read-only ones."""
    folder = environment.get(VARIABLE, "")
    if not folder:
        return SYSCTLS
    if not folder.startswith("/"):
        raise _unusable(folder, "it is not an absolute path", f"give the path at which the host's {SYSCTLS} is mounted")
    probe = Path(folder, _PROBE)
    if not probe.is_file():
        raise _unusable(folder, f"it has no {_PROBE}", _MOUNT)
    if not os.access(probe, os.W_OK):
        raise _unusable(folder, "it is read-only", _MOUNT)
    return folder.rstrip("/")


def _unusable(folder: str, reason: str, remedy: str) -> CallerError:
    return CallerError(f"{VARIABLE} = {folder!r} cannot be used: {reason}", details=remedy, code=Code.IO_FAILURE)
