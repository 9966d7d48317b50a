"""Free space beside a SQLite file.

A write that succeeds does not prove that there is space, because SQLite reuses the pages of its log. So the space is allocated
and freed again. That also respects quotas, and the blocks that a file system reserves for root.
"""

import errno
import os
from pathlib import Path

from svc.datastore.api import NoSpace

NEEDED_BYTES = 512 * 1024  # more than one ADD appends to the log of the journal or of the embedded store

_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT)


def require_disk_space(path: Path) -> None:
    """Raise NoSpace unless the directory of the file has space for one ADD more. A directory that cannot be tested passes."""
    try:
        _allocate(path.parent)
    except OSError as failure:
        if failure.errno in _EXHAUSTED:
            raise _no_space(path, failure) from failure


def _allocate(directory: Path) -> None:
    """Allocate the space and free it. If the file system is known to have less, nothing is allocated: another process may need
    the rest at this moment."""
    system = os.statvfs(directory)
    if system.f_blocks and system.f_bfree * system.f_frsize < NEEDED_BYTES:  # without a size there is no limit
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    from tempfile import TemporaryFile  # only here: one-shot calls do without its imports

    with TemporaryFile(dir=directory, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, NEEDED_BYTES)


def _no_space(path: Path, failure: OSError) -> NoSpace:
    return NoSpace(
        f"store {str(path)!r} cannot grow, the disk is full: {failure.strerror}",
        details=f"free space on its file system (df {path.parent}), {NEEDED_BYTES >> 10} KiB at least",
    )
