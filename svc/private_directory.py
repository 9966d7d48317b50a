"""Directories in which only root can create, open and rename files, with any umask."""

import errno
import os
import stat
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UnsafeDirectory(OSError):
    """Another user could replace files in the directory, and this process cannot correct that. `fix` says what corrects it."""

    def __init__(self, path: Path, problem: str, fix: str) -> None:
        super().__init__(errno.EPERM, f"{str(path)!r} {problem}, so that other users may replace its files")
        self.fix = fix


def make_private(path: Path, mode: int) -> None:
    """Create the directory with `mode`, or correct an existing one with more permissions. The umask has no effect.

    Raise OSError if that fails, UnsafeDirectory if it belongs to another user, or if another user may rename it.
    """
    create_directories(path, mode)
    present = require_safe(path)
    if present & ~mode:
        path.chmod(present & mode)


def create_directories(path: Path, mode: int = 0o755, parents_mode: int = 0o755) -> None:
    """Create the directory and each missing parent. The umask has no effect, unlike on Path.mkdir. Raise OSError."""
    if path.is_dir():
        return
    create_directories(path.parent, parents_mode, parents_mode)
    try:
        path.mkdir(mode)
        path.chmod(mode)
    except FileExistsError:
        if not path.is_dir():  # else another process has created it
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None


def require_safe(path: Path) -> int:
    """Return the mode of the directory, if it exists. Raise UnsafeDirectory if another user owns it, or may rename a parent.

    In a sticky directory, such as /tmp, only the owner of a directory may rename it."""
    resolved, mode = path.resolve(), 0
    for folder in (*resolved.parents, resolved):
        try:
            status = folder.stat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (0, os.geteuid()):
            raise UnsafeDirectory(folder, f"belongs to user {status.st_uid}", f"chown root {folder}")
        if folder != resolved and mode & _WRITABLE_BY_OTHERS and not mode & stat.S_ISVTX:
            raise UnsafeDirectory(folder, f"has mode {mode:04o}", f"chmod go-w {folder}")
    return mode
