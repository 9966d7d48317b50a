"""Checkpoints of a SQLite file on a separate thread.

A checkpoint copies the commits of the WAL file to the database file, and waits for the disk for about 50 ms. By default SQLite
checkpoints inside a commit, which stalled bursts of ADDs. A thread with its own connection does it instead, and does not block
readers and writers.
"""

import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from svc.datastore import sqlite

LONGEST_LOG = 32 << 20  # bytes; a longer WAL file is truncated
AGAIN_SECONDS = 5.0  # until the next attempt to truncate a WAL file that has a reader
COMMITS = 256  # between two checkpoints; LONGEST_LOG limits the WAL file, which grows while a reader is at work

_log = logging.getLogger(__name__)


class WalCheckpointer:
    """Checkpoints of the file at `path`. The thread starts when the first one is due: short processes do not need it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._commits = 0
        self._due = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def committed(self) -> None:
        """Count a commit. Not thread-safe: the caller serializes the calls."""
        self._commits += 1
        if self._commits >= COMMITS and not self._over and self._has_thread():
            self._commits = 0
            self._due.set()

    def close(self) -> None:
        """End the thread and wait for it. The caller makes no further commit."""
        self._over = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _has_thread(self) -> bool:
        """Start the thread if necessary. Return False if the system provides no thread: the next commit retries."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        again: float | None = None
        while (self._due.wait(again) or again) and not self._over:
            self._due.clear()
            again = None
            try:
                again = None if self._is_short_after_checkpoint() else AGAIN_SECONDS
            except (sqlite3.Error, OSError) as failure:  # the WAL file grows until the next checkpoint
                _log.warning("no checkpoint of %s: %s", self._path, failure)

    def _is_short_after_checkpoint(self) -> bool:
        """Make a checkpoint, truncate a WAL file that is too long, and return False if a reader prevents that.

        After a checkpoint SQLite overwrites the WAL file from its start, but does not shrink it. A long-running reader
        prevents the overwriting, so that the file grows. Truncation needs a moment without readers; commits then hardly
        wait, because the first checkpoint has left little to copy.
        """
        with closing(sqlite.connect(self._path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if self._log.stat().st_size <= LONGEST_LOG:
                return True
            connection.execute("PRAGMA busy_timeout = 0")
            (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy
