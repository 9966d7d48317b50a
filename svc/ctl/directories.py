"""Directories that options name."""

import os
from collections.abc import Mapping
from pathlib import Path

from svc.model.errors import CallerError, Code


def require_directories(directories: Mapping[str, Path | None]) -> None:
    """Raise CallerError if one of them, given by its option, is another kind of file, or lies below one."""
    for option, path in directories.items():
        if path is None:
            continue
        found = next((folder for folder in (path.absolute(), *path.absolute().parents) if os.path.lexists(folder)), None)
        if found and not found.is_dir():
            raise CallerError(
                f"{option} {str(path)!r} is not a directory: {str(found)!r} is another kind of file",
                details=f"name a directory with {option}, or move the file away",
                code=Code.IO_FAILURE,
            )
