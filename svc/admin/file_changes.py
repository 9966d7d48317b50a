"""Changes of files that are undone together if one of them fails."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from svc.atomic_file import File, holds, saved_name, write
from svc.private_directory import create_directories


class FileChanges:
    """Changes since the begin of `undone_if_failed`. Methods raise OSError, and have then changed nothing."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._saved = list[Path]()

    def create_directories(self, folder: Path) -> None:
        """Create the directory and each missing parent."""
        for missing in [each for each in (folder, *folder.parents) if not each.exists()][::-1]:
            self._undo.callback(_remove_directory, missing)
        create_directories(folder)

    def link(self, source: Path, target: Path) -> None:
        """Give a file, or a symbolic link itself, a second name."""
        os.link(source, target, follow_symlinks=False)
        self._undo.callback(target.unlink)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, and replace what is there."""
        os.rename(source, target)
        self._undo.callback(os.rename, target, source)

    def write(self, file: File) -> bool:
        """Write the file atomically and durably; return False if it already has this content and mode."""
        path = file.path
        if path.is_dir() and not path.is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if holds(file):
            return False
        if os.path.lexists(path):
            saved = saved_name(path)
            os.link(path, saved, follow_symlinks=False)
            self._saved.append(saved)
            self._undo.callback(_restore, saved, path)
        else:
            self._undo.callback(path.unlink, missing_ok=True)
        return write(file)

    def undo(self) -> None:
        """Undo the changes, the last one first, as far as that is possible."""
        with suppress(OSError):
            self._undo.close()

    def keep(self) -> None:
        """Keep the changes."""
        self._undo.pop_all()
        for saved in self._saved:
            with suppress(OSError):
                saved.unlink()


@contextmanager
def undone_if_failed() -> Iterator[FileChanges]:
    """Yield changes that are undone if the block raises an exception."""
    changes = FileChanges()
    try:
        yield changes
    except BaseException:
        changes.undo()
        raise
    changes.keep()


def _remove_directory(folder: Path) -> None:
    with suppress(OSError):  # another program may use it by now
        folder.rmdir()


def _restore(saved: Path, path: Path) -> None:
    if os.path.lexists(path) and os.path.samestat(saved.lstat(), path.lstat()):  # a rename would keep both names
        saved.unlink()
    else:
        os.rename(saved, path)
