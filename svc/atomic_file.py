"""Atomic writes of files. A file with the same content is not written again, because a runtime may have it open."""

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc.values import dataclass

DRAFT_SECONDS: Final = 300.0  # an older draft is of a killed process
_DRAFT: Final = re.compile(r"\.(.+)\.[0-9a-f]{8}(\.saved)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class File:
    """The path, content and mode that a file gets. A `renewed` file gets other content later."""

    path: Path
    data: bytes
    mode: int
    renewed: bool = False


def write(file: File) -> bool:
    """Write the file atomically and durably; return False if it already has this content and mode. Raise OSError."""
    if holds(file):
        return False
    replace(file.path, (file.data,), file.mode)
    return True


def replace(path: Path, parts: Iterable[bytes], mode: int) -> None:
    """Write a file, or replace it, atomically and durably, by these parts one after the other.

    Raise OSError, which names the file, not its draft.
    """
    draft = _draft_name(path)
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as writing:
            os.fchmod(writing.fileno(), mode)  # independent of the umask
            writing.writelines(parts)
            writing.flush()
            os.fsync(writing.fileno())
        os.rename(draft, path)  # a running executable keeps its old file: no ETXTBSY
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError) and error.filename == os.fspath(draft):
            error.filename, error.filename2 = os.fspath(path), None
        raise
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file durably. A missing file is not an error. Raise OSError."""
    path.unlink(missing_ok=True)
    sync(path.parent)


def saved_name(path: Path) -> Path:
    """Return a new name, beside the file, for its former content."""
    return path.with_name(f"{_draft_name(path).name}.saved")


def remove_drafts(paths: Iterable[Path]) -> None:
    """Remove drafts and saved files that a killed process has left beside these files, as far as that is possible."""
    folders: dict[Path, set[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, set()).add(path.name)
    for folder, names in folders.items():
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                match = _DRAFT.fullmatch(entry.name)
                if match and match[1] in names and _is_old(entry, is_saved=bool(match[2])):
                    os.unlink(entry.path)


def _is_old(entry: os.DirEntry[str], *, is_saved: bool) -> bool:
    """Return whether no process can need the draft. The content of a saved file is older than its name."""
    if entry.is_dir(follow_symlinks=False):
        return False
    status = entry.stat(follow_symlinks=False)
    return time.time() - (status.st_ctime if is_saved else status.st_mtime) > DRAFT_SECONDS


def _draft_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}")  # installers in two containers may have the same PID


FileVersion = tuple[int, int, int, int] | None


def file_version(path: Path | str) -> FileVersion:
    """Return a value that changes if the file is replaced or written; None if it cannot be found."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def holds(file: File) -> bool:
    """Return whether the file has its content and mode already. Raise OSError."""
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
