"""The directory of the spool as an agent reads it: no symbolic link is followed, and nothing but a file of root is opened."""

import errno
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from svc.cni.frame import FrameError, OtherVersion
from svc.cni.spool_file import DIRECTORY, DRAFT, FILE_LIMIT, MAX_REFUSED, NAME, REFUSED, Spooled, file_name, read
from svc.values import dataclass

DRAFT_SECONDS: Final = 120.0  # an older file that is being written is of a killed executable, which writes for 10 s at most
MAX_REPORTED: Final = 4096  # names of which the log has a line

log = logging.getLogger("svc.agent")


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file of the spool: a repeated DEL replaces it by one with another inode."""

    name: str
    inode: int
    since: float  # Unix time


class SpoolDirectory:
    """The directory. Methods raise OSError if it cannot be used, FileNotFoundError if it does not exist."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / DIRECTORY
        self._reported: set[tuple[str, str]] = set()

    def version(self) -> int:
        """Return when the directory was changed (Unix time in nanoseconds); 0 if it does not exist."""
        try:
            return os.lstat(self._path).st_mtime_ns
        except OSError:
            return 0

    def files(self) -> list[SpoolFile]:
        """Return the files of spooled DELs. Remove old drafts and the oldest of many refused files; report other files once."""
        found, useless, refused = list[SpoolFile](), list[str](), list[tuple[float, str]]()
        with self._opened() as folder, os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed or renamed meantime
                    status = entry.stat(follow_symlinks=False)
                    if NAME.fullmatch(entry.name):
                        found.append(SpoolFile(entry.name, status.st_ino, status.st_mtime))
                    elif DRAFT.fullmatch(entry.name) and stat.S_ISREG(status.st_mode):
                        if abs(time.time() - status.st_mtime) > DRAFT_SECONDS:
                            useless.append(entry.name)
                    elif entry.name.endswith(REFUSED):
                        refused.append((status.st_mtime, entry.name))
                    elif not entry.name.endswith("."):
                        self._report(entry.name, "it is not of svc: move it away")
            for name in (*useless, *(name for _, name in sorted(refused)[:-MAX_REFUSED])):
                self._discard(folder, name)
        return found

    def read(self, file: SpoolFile) -> Spooled | None:
        """Return the DEL of a file. If it is not usable: set it aside, and return None."""
        with self._opened() as folder:
            try:
                spooled = read(_content(folder, file.name))
                if file_name(spooled.call) == file.name:
                    return spooled
                self._set_aside(folder, file.name, "its name is not that of its DEL")
            except OtherVersion:
                self._report(file.name, "a later release of svc has written it: install that release")
            except FileNotFoundError:
                pass
            except FrameError as error:
                self._set_aside(folder, file.name, str(error))
            return None

    def remove(self, file: SpoolFile) -> None:
        """Remove the file, unless a repeated DEL has replaced it."""
        with self._opened() as folder, suppress(FileNotFoundError):
            if os.stat(file.name, dir_fd=folder, follow_symlinks=False).st_ino == file.inode:
                os.unlink(file.name, dir_fd=folder)
                os.fsync(folder)

    def set_aside(self, file: SpoolFile, reason: str) -> None:
        """Rename the file, whose DEL cannot succeed, unless a repeated DEL has replaced it."""
        with self._opened() as folder, suppress(FileNotFoundError):
            if os.stat(file.name, dir_fd=folder, follow_symlinks=False).st_ino == file.inode:
                self._set_aside(folder, file.name, reason)
                os.fsync(folder)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory, and correct its mode."""
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(folder)
            if status.st_uid not in (0, os.geteuid()):
                raise PermissionError(errno.EPERM, f"it belongs to user {status.st_uid}: chown root it", str(self._path))
            if status.st_mode & 0o077:
                os.fchmod(folder, 0o700)
            yield folder
        finally:
            os.close(folder)

    def _set_aside(self, folder: int, name: str, reason: str) -> None:
        self._report(name, f"{reason}: it is set aside as {name}{REFUSED}")
        with suppress(OSError):  # the disk may be read-only: it stays, and is not used
            os.rename(name, name + REFUSED, src_dir_fd=folder, dst_dir_fd=folder)

    def _discard(self, folder: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as failure:  # it hinders no other file
            self._report(name, f"{failure.strerror}: it cannot be removed")

    def report_failure(self, file: SpoolFile, failure: OSError) -> None:
        """Report, once, a failure that a later attempt may not have, such as a lack of descriptors."""
        self._report(file.name, f"{failure.strerror}: it is read again")

    def _report(self, name: str, problem: str) -> None:
        if (name, problem) not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add((name, problem))
            log.error("file %s of the spool is not used: %s", str(self._path / name), problem)


def _content(folder: int, name: str) -> bytes:
    """Return the content of a file. Raise FrameError unless it is a file that only root can have written."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as failure:
        if failure.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            raise FrameError("it is a symbolic link or another special file") from None
        raise
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise FrameError("it is not a regular file with one name")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
            raise FrameError("other users have, or had, access to it")
        if status.st_size > FILE_LIMIT:
            raise FrameError(f"it has more than {FILE_LIMIT} bytes")
        with open(file, "rb", closefd=False) as opened:
            return opened.read(FILE_LIMIT + 1)
    finally:
        os.close(file)
