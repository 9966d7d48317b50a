"""A log file that several processes append to and rotate.

1. A process appends its lines in one write, under a shared lock of the file. To rotate, a process takes the exclusive lock,
   renames the file and removes its write permission.
2. A writer that has the lock and finds no write permission opens the path again. No process appends to a rotated file, so it
   may be compressed and removed at any time. This check is cheaper than a stat of the path.
3. Only root and the file's group can read the file: mode 0640, or 0440 after rotation, independent of the umask. A file that
   other users could open before is moved aside, because they may keep its lock. A file, link or directory of another user is
   refused, and so is a directory that every user may write.
4. Waits are short. If another process keeps the lock, the writer continues without it. If a rotation fails, the next writer
   tries again: writing lines has priority over the size limit.
"""

import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Final

from svc.private_directory import create_directories
from svc.timestamps import date_and_time

_LOCK_TRIES: Final = 20
_LOCK_PAUSE: Final = 0.001  # seconds; a rotation holds the lock for far less
_OPEN_TRIES: Final = 20
_MODE: Final = 0o640
SEALED_MODE: Final = 0o440
_LOOSE: Final = 0o777 & ~_MODE

_safe: set[tuple[str, str]] = set()  # paths of log files that passed the check, and the same without links


def append(path: str, data: bytes, max_bytes: int) -> bool:
    """Append `data`. Return True if the file was rotated, because it would exceed `max_bytes`. Raise OSError."""
    rotated = False
    for attempt in range(_OPEN_TRIES):
        fd = _open(path)
        try:
            _lock(fd, fcntl.LOCK_SH)
            status = os.fstat(fd)
            if _was_open_to_others(status):
                _move_aside(fd, path)
                rotated = True
                continue
            if _is_sealed(status):  # another process may be about to rename it
                time.sleep(_LOCK_PAUSE if attempt else 0)
                continue
            if _is_full(status, len(data), max_bytes) and _rotate(fd, path):
                rotated = True
                continue
            _write(fd, data)
            return rotated
        finally:
            os.close(fd)
    raise OSError(errno.EACCES, "it has no write permission")


def rotated_name(path: str, seconds: float) -> str:
    """Return the path of a rotated file, NAME-TIMESTAMP.EXT, in UTC with milliseconds."""
    stem, extension = os.path.splitext(path)
    stamp = date_and_time(seconds).replace(" ", "T").replace(":", "-")
    return f"{stem}-{stamp}.{int(seconds * 1000) % 1000:03d}{extension}"


def is_loose(status: os.stat_result) -> bool:
    """Return True if a log file has a permission that neither root nor its group needs."""
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & _LOOSE)


def _open(path: str) -> int:
    """Open the log file for appending, without blocking. Opening a pipe without a reader raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    _require_safe_directory(path)
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        create_directories(Path(path).parent, 0o750, 0o750)
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, _MODE)
    except FileExistsError:  # another process created it, or the target of a link does not exist
        return os.open(path, flags | os.O_CREAT, _MODE)
    os.fchmod(fd, _MODE)  # the umask may have removed permissions that a writer needs
    return fd


def _require_safe_directory(path: str) -> None:
    """Raise OSError if other users could replace the log file. Missing directories are created later."""
    real = os.path.realpath(path)
    if (path, real) in _safe:
        return
    if real != path:
        _require_own_links(path)
    directory = os.path.dirname(real)
    for place in (directory, *map(str, Path(directory).parents)):
        if not os.path.exists(place):
            continue
        status = os.stat(place)
        if _is_foreign(status):
            raise OSError(errno.EPERM, f"its directory {place!r} belongs to user {status.st_uid}: make it root's")
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, f"every user may write to its directory {place!r}: remove that right")
    if os.path.exists(directory):
        _safe.add((path, real))


def _require_own_links(path: str) -> None:
    """Raise OSError if another user may choose the file: any user can put a link into a sticky directory."""
    for place in (path, *map(str, Path(path).parents)):
        if os.path.islink(place) and _is_foreign(status := os.lstat(place)):
            raise OSError(errno.EPERM, f"the link {place!r} belongs to user {status.st_uid}: remove it, or make it root's")


def _is_foreign(status: os.stat_result) -> bool:
    return status.st_uid not in (0, os.geteuid())


def _was_open_to_others(status: os.stat_result) -> bool:
    """Return True if other users may have the file open. Raise OSError if it belongs to another user."""
    if stat.S_ISREG(status.st_mode) and _is_foreign(status):
        raise OSError(errno.EPERM, f"it belongs to user {status.st_uid}: remove it, or make it root's")
    return is_loose(status)


def _move_aside(fd: int, path: str) -> None:
    """Rename the file without its lock, which other users may hold for ever. If the rename fails, only restrict its mode."""
    try:
        os.rename(os.path.realpath(path), _free_name(os.path.realpath(path)))
        os.fchmod(fd, SEALED_MODE)
    except OSError:
        os.fchmod(fd, _MODE)


def _lock(fd: int, kind: int) -> bool:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
        except OSError:  # a file system without locks
            return False
    return False


def seal(fd: int) -> bool:
    """Seal the file against appends. Return True if it is sealed, False if another process keeps its lock."""
    if not _lock(fd, fcntl.LOCK_EX):
        return False
    os.fchmod(fd, SEALED_MODE)
    return True


def _is_sealed(status: os.stat_result) -> bool:
    return not status.st_mode & stat.S_IWUSR and stat.S_ISREG(status.st_mode)


def _is_full(status: os.stat_result, added: int, max_bytes: int) -> bool:
    """Return True if `added` bytes do not fit. An empty file accepts a line of any size."""
    return status.st_size > 0 and status.st_size + added > max_bytes and stat.S_ISREG(status.st_mode)


def _rotate(fd: int, path: str) -> bool:
    """Rename the full file, or the target of a link. Return True if the path is free for a new file."""
    try:
        path = os.path.realpath(path)
        if not _lock(fd, fcntl.LOCK_EX):
            return False
        if not _is_sealed(os.fstat(fd)):  # false if another process has rotated it
            os.rename(path, _free_name(path))
            os.fchmod(fd, SEALED_MODE)
        return True
    except OSError:
        return False


def _free_name(path: str) -> str:
    now = time.time()
    while os.path.lexists(name := rotated_name(path, now)) or os.path.lexists(f"{name}.gz"):
        now += 0.001
    return name


def _write(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    if written == len(data):
        return
    try:
        _write(fd, data[written:])
    except OSError:  # remove the partly written line, unless another process has appended since
        if _lock(fd, fcntl.LOCK_EX) and os.fstat(fd).st_size == (end := os.lseek(fd, 0, os.SEEK_CUR)):
            os.ftruncate(fd, end - written)
        raise
