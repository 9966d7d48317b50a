"""Directories in which only root can create, open and rename files."""

import errno
import os
import stat
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UnsafeDirectory(OSError):
    """Another user could replace files in the directory, and this process cannot correct that."""


def make_private(path: Path, mode: int) -> None:
    """Create the directory with `mode`, or correct an existing one with more permissions. The umask has no effect.

    Raise UnsafeDirectory, an OSError, if it belongs to another user, or if another user may rename it. Raise OSError if it
    cannot be created.
    """
    if not path.is_dir():
        _make(path, mode)
    _require_safe_parents(path.resolve())
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise _unsafe(path, f"belongs to user {status.st_uid}", f"chown root {path}")
    if stat.S_IMODE(status.st_mode) & ~mode:
        path.chmod(stat.S_IMODE(status.st_mode) & mode)


def _make(path: Path, mode: int) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.mkdir(mode=mode, exist_ok=True)
    except FileExistsError as error:  # another kind of file, at the path or above
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None
    path.chmod(mode)


def _require_safe_parents(path: Path) -> None:
    """Raise UnsafeDirectory if another user may rename a parent. In a sticky directory, such as /tmp, only the owner may."""
    for parent in path.parents:
        status = parent.stat()
        if status.st_uid not in (0, os.geteuid()):
            raise _unsafe(parent, f"belongs to user {status.st_uid}", f"chown root {parent}")
        if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX:
            raise _unsafe(parent, f"has mode {stat.S_IMODE(status.st_mode):04o}", f"chmod go-w {parent}")


def _unsafe(path: Path, problem: str, fix: str) -> UnsafeDirectory:
    return UnsafeDirectory(errno.EPERM, f"{str(path)!r} {problem}, so that other users may replace its files: {fix}")
