"""A log file that several processes append to, and that any of them rotates.

1. Lines are appended in one write, under a shared lock of the file. Whoever rotates it holds the lock alone, renames it and
   takes its write permission away.
2. A writer that finds no permission, once it has the lock, opens the path again: nothing is appended to a file that was
   rotated, so it may be compressed and removed at any time. It is cheaper than to ask what is at the path.
3. Only root and the file's group read it, and only root takes its place: mode 0640, 0440 when rotated, whatever the umask. A
   file that others could open before is moved aside, because they may keep its lock. A file or directory that belongs to
   another user is refused, and so is a directory that everybody may write.
4. Nobody waits for long. A lock that somebody else keeps is done without, and a rotation that fails now is for the next
   writer: lines count for more than the size of their file.
"""

import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Final

from svc.timestamps import date_and_time

_LOCK_TRIES: Final = 20
_LOCK_PAUSE: Final = 0.001  # seconds; whoever rotates holds the lock for far less
_OPEN_TRIES: Final = 20
_MODE: Final = 0o640
SEALED_MODE: Final = 0o440
_LOOSE: Final = 0o777 & ~_MODE

_safe: set[str] = set()  # directories of logs that were found to be safe


def append(path: str, data: bytes, max_bytes: int) -> bool:
    """Whether the file was rotated, which is done when it would grow beyond `max_bytes`. OSError when it cannot be written."""
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
            if _is_sealed(status):  # whoever rotates it may be about to rename it
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
    """NAME-DATE-AND-TIME.EXT beside it, in UTC and to the millisecond."""
    stem, extension = os.path.splitext(path)
    stamp = date_and_time(seconds).replace(" ", "T").replace(":", "-")
    return f"{stem}-{stamp}.{int(seconds * 1000) % 1000:03d}{extension}"


def is_loose(status: os.stat_result) -> bool:
    """Tell whether a log file has a right that neither root nor its group needs."""
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & _LOOSE)


def _open(path: str) -> int:
    """Never waits: a pipe that nobody reads cannot be written."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    _require_safe_directory(path)
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, _MODE)
    except FileExistsError:  # another process was faster, or a link's target is missing
        return os.open(path, flags | os.O_CREAT, _MODE)
    os.fchmod(fd, _MODE)  # the umask may have taken rights that a writer needs
    return fd


def _require_safe_directory(path: str) -> None:
    """Raise OSError where others could put files in the place of the log. What does not exist is made in time."""
    directory = os.path.dirname(os.path.realpath(path))
    if directory in _safe:
        return
    for place in (directory, *map(str, Path(directory).parents)):
        if not os.path.exists(place):
            continue
        status = os.stat(place)
        if _is_foreign(status):
            raise OSError(errno.EPERM, f"its directory {place!r} belongs to user {status.st_uid}: make it root's")
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, f"everybody may write its directory {place!r}: take that right away")
    if os.path.exists(directory):
        _safe.add(directory)


def _is_foreign(status: os.stat_result) -> bool:
    return status.st_uid not in (0, os.geteuid())


def _was_open_to_others(status: os.stat_result) -> bool:
    """Tell whether other users may have the file open. Raise OSError if it is another user's."""
    if stat.S_ISREG(status.st_mode) and _is_foreign(status):
        raise OSError(errno.EPERM, f"it belongs to user {status.st_uid}: remove it, or make it root's")
    return is_loose(status)


def _move_aside(fd: int, path: str) -> None:
    """Others may keep the lock of the file for ever, so this does without. A file that cannot be renamed is only tightened."""
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
    """Whether nobody appends to the file from now on; False while others keep its lock."""
    if not _lock(fd, fcntl.LOCK_EX):
        return False
    os.fchmod(fd, SEALED_MODE)
    return True


def _is_sealed(status: os.stat_result) -> bool:
    return not status.st_mode & stat.S_IWUSR and stat.S_ISREG(status.st_mode)


def _is_full(status: os.stat_result, added: int, max_bytes: int) -> bool:
    """One line that is larger than all that is allowed is written all the same."""
    return status.st_size > 0 and status.st_size + added > max_bytes and stat.S_ISREG(status.st_mode)


def _rotate(fd: int, path: str) -> bool:
    """Whether the path is free for a new file now; a link's target is what is rotated, in its own directory."""
    try:
        path = os.path.realpath(path)
        if not _lock(fd, fcntl.LOCK_EX):
            return False
        if not _is_sealed(os.fstat(fd)):  # by somebody who was faster
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
    except OSError:
        _take_back(fd, written)
        raise


def _take_back(fd: int, count: int) -> None:
    """Where the disk is full half-way through a line, the next one would be glued to it; unless that is there by now."""
    if _lock(fd, fcntl.LOCK_EX) and os.fstat(fd).st_size == (end := os.lseek(fd, 0, os.SEEK_CUR)):
        os.ftruncate(fd, end - count)
