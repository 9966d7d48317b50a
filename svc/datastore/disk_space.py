"""Free space beside a SQLite file.

A successful write does not prove that space is free, because SQLite reuses the pages of its WAL file. This module therefore
allocates the space and frees it again. This also respects quotas, and the blocks that a file system reserves for root.
"""

import errno
import os
from pathlib import Path

from svc.datastore.api import NoSpace

NEEDED_BYTES = 512 * 1024  # more than one ADD appends to the WAL file of the journal or of the embedded store

INDEX_BYTES = 32 * 1024  # of the smallest index of a WAL file


def is_full(path: Path) -> bool:
    """Return whether the file system lacks space for the index of a WAL file, which SQLite reports as an I/O error."""
    try:
        system = os.statvfs(path.parent)
    except OSError:
        return False
    return bool(system.f_blocks) and system.f_bfree * system.f_frsize < INDEX_BYTES


def require_disk_space(path: Path) -> None:
    """Raise NoSpace if the directory of the file lacks space for one more ADD. Ignore other errors of the test."""
    try:
        system = os.statvfs(path.parent)
        if system.f_blocks and system.f_bfree * system.f_frsize < NEEDED_BYTES:  # a file system without a size has no limit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # not allocated, because another process may need the rest
        from tempfile import TemporaryFile  # imported here, because only STATUS needs it

        with TemporaryFile(dir=path.parent, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, NEEDED_BYTES)
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(
                f"store {str(path)!r} cannot grow, the disk is full: {failure.strerror}",
                details=f"free space on its file system (df {path.parent}), {NEEDED_BYTES >> 10} KiB at least",
            ) from failure
