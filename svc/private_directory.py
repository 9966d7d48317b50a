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
    _require_safe_parents(path.resolve())
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise UnsafeDirectory(path, f"belongs to user {status.st_uid}", f"chown root {path}")
    if stat.S_IMODE(status.st_mode) & ~mode:
        path.chmod(stat.S_IMODE(status.st_mode) & mode)


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


def _require_safe_parents(path: Path) -> None:
    """Raise UnsafeDirectory if another user may rename a parent. In a sticky directory, such as /tmp, only the owner may."""
    for parent in path.parents:
        status = parent.stat()
        if status.st_uid not in (0, os.geteuid()):
            raise UnsafeDirectory(parent, f"belongs to user {status.st_uid}", f"chown root {parent}")
        if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX:
            raise UnsafeDirectory(parent, f"has mode {stat.S_IMODE(status.st_mode):04o}", f"chmod go-w {parent}")
