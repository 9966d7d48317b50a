"""Checkpoints of a SQLite file beside the work.

What commits have written to the log beside a file (WAL) must go into the file itself sooner or later, and whoever does that
waits for the disk, some 50 ms at a time. By itself SQLite makes a commit do it: a burst of ADDs stood still meanwhile. So a
thread does it, on a connection of its own, which keeps nobody from reading and writing.
"""

import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from svc.datastore import sqlite

LONGEST_LOG = 32 << 20  # bytes; a longer one is cut off
AGAIN_SECONDS = 5.0  # until that is tried again where somebody reads it
COMMITS = 256  # until the next checkpoint: a log of some 10 MB

_log = logging.getLogger(__name__)


class Checkpoints:
    """Of the file at `path`. The thread comes with the first that is due: a process of a few commits needs none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._commits = 0
        self._due = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def committed(self) -> None:
        """Counts a commit; the caller sees to it that nobody else does so at the same time."""
        self._commits += 1
        if self._commits >= COMMITS and not self._over and self._has_thread():
            self._commits = 0
            self._due.set()

    def close(self) -> None:
        """When nobody commits any more."""
        self._over = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _has_thread(self) -> bool:
        """Where the system gives none, the log only grows, and the next commit tries again."""
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
            except (sqlite3.Error, OSError) as failure:  # the log only grows: the next one, or a commit at last, has more to do
                _log.warning("no checkpoint of %s: %s", self._path, failure)

    def _is_short_after_checkpoint(self) -> bool:
        """A log is written over from its start, and stays as long as it once was, as a reader has made it that kept it from
        that for long. It is cut off at a moment when nobody reads it: then little is left to do, and commits hardly wait."""
        with closing(sqlite.connect(self._path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if self._log.stat().st_size <= LONGEST_LOG:
                return True
            connection.execute("PRAGMA busy_timeout = 0")
            (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy
