"""Atomic writes of files. A file with the same content is not written again, because a runtime may have it open."""

import os
from collections.abc import Iterable
from pathlib import Path

from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class File:
    """The path, content and mode that a file gets. A `renewed` file gets other content later."""

    path: Path
    data: bytes
    mode: int
    renewed: bool = False


def write(file: File) -> bool:
    """Write the file atomically and durably; return False if it already has this content and mode. Raise OSError."""
    if _holds(file):
        return False
    replace(file.path, (file.data,), file.mode)
    return True


def replace(path: Path, parts: Iterable[bytes], mode: int) -> None:
    """Write a file, or replace it, atomically and durably, by these parts one after the other. Raise OSError."""
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")  # installers in two containers may have the same PID
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as writing:
            os.fchmod(writing.fileno(), mode)  # independent of the umask
            writing.writelines(parts)
            writing.flush()
            os.fsync(writing.fileno())
        os.rename(draft, path)  # a running executable keeps its old file: no ETXTBSY
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file durably. A missing file is not an error. Raise OSError."""
    path.unlink(missing_ok=True)
    sync(path.parent)


FileVersion = tuple[int, int, int, int] | None


def file_version(path: Path | str) -> FileVersion:
    """Return a value that changes if the file is replaced or written; None if it cannot be found."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _holds(file: File) -> bool:
    path = file.path
    try:
        return path.stat().st_mode & 0o7777 == file.mode and not path.is_symlink() and path.read_bytes() == file.data
    except FileNotFoundError:
        return False


def sync(path: Path) -> None:
    """Make a file, or the entries of a directory, durable. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
