"""Reserved disk space for pending releases and for the removal of rows, freed when the disk is full.

A file of allocated blocks works on every file system, also if overwriting in place needs new blocks (btrfs, reflinked XFS). The
reserve has space for some dozen pending releases. After that SQLite reuses its log, because each of them replaces a row.
"""

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 256 * 1024


class Reserve:
    """The reserve file beside the journal. Safe for several threads and processes."""

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(f"{journal.name}.reserve")

    def fill(self) -> None:
        """Allocate the reserve if it is not allocated. On a full disk, allocate nothing."""
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
        """Free the space of the reserve."""
        with suppress(OSError):
            os.truncate(self._path, 0)
