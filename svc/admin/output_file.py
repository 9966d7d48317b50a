"""Files that an option names for a result."""

import os
import stat
from pathlib import Path
from typing import Final

from svc.model.errors import CallerError, Code

_STDOUT: Final = Path("-")
_TYPES: Final = (
    (stat.S_ISDIR, "a directory", "name a file in it"),
    # Another user may have put the link there: neither the link nor the file that it names is replaced.
    (stat.S_ISLNK, "a symbolic link", "name the file itself, or remove the link"),
    (stat.S_ISFIFO, "a named pipe", "name a regular file, or a new one"),
    (stat.S_ISSOCK, "a socket", "name a regular file, or a new one"),
)
_DEVICE: Final = ("a device", "name a regular file, or a new one")


def require_not_stdout(option: str, path: Path) -> None:
    """Raise CallerError for the name `-`, which means standard output elsewhere. `option` opens the message."""
    if path == _STDOUT:
        raise CallerError(f"{option} '-' is not the name of a file", details="name a file: this cannot go to standard output")


def require_replaceable(option: str, path: Path) -> None:
    """Raise CallerError if something other than a regular file has this path: a rename would replace that as well.

    `option` opens the message. Do not follow links. A path that does not exist, or cannot be read, is not an error."""
    require_not_stdout(option, path)
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # creating the file fails too, and says why
        return
    if not stat.S_ISREG(mode):
        found = ((kind, remedy) for is_type, kind, remedy in _TYPES if is_type(mode))
        kind, remedy = next(found, _DEVICE)
        raise CallerError(f"{option} {str(path)!r} is {kind}", details=remedy, code=Code.IO_FAILURE)
