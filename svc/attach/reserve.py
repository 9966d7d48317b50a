"""Room on the file system that is kept for pending releases and for the removal of rows, and given up when the disk is full.

A file of allocated blocks works on every file system, also where a file that is overwritten in place needs new blocks (btrfs,
reflinked XFS). What is given up is room for some dozen notes; after that SQLite reuses its log, since each note replaces a row.
"""

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 256 * 1024


class Reserve:
    """The file beside the journal. Safe from several threads and processes."""

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(f"{journal.name}.reserve")

    def fill(self) -> None:
        """Allocate the room, unless it is there. On a full disk nothing is allocated."""
        with suppress(OSError):
            if self._path.exists() and self._path.stat().st_size:
                return
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            except OSError:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Give the room up."""
        with suppress(OSError):
            os.truncate(self._path, 0)
