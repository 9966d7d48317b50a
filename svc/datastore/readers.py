"""Connections that read a SQLite file side by side.

One connection serves one thread at a time, and its thread waits for the interpreter while it holds it. Beside many calls that
compute, a second reader would wait for all of that. So it takes another connection.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from svc.datastore import sqlite
from svc.datastore.sqlite import Result

CONNECTIONS: Final = 4  # in all; each takes two file descriptors
CACHE_KIB: Final = 256  # of pages, for each further one: what others write makes them invalid anyway

Read = Callable[..., Result]  # takes a connection and arguments


class _Place:
    """A connection, once it is open, and its lock."""

    __slots__ = ("connection", "lock")

    def __init__(self, connection: sqlite3.Connection | None, lock: threading.Lock) -> None:
        self.connection, self.lock = connection, lock


class Readers:
    """The open connection `first` to the file at `path`, behind the lock `lock`, and more connections while that is in use.

    If no more can be opened, or `is_current` says that `path` is another file by now, a thread waits for the first one. The
    caller closes the first one.
    """

    def __init__(self, path: Path, first: sqlite3.Connection, lock: threading.Lock, is_current: Callable[[], bool]) -> None:
        self._path, self._is_current = path, is_current
        self._first = _Place(first, lock)
        self._more = tuple(_Place(None, threading.Lock()) for _ in range(CONNECTIONS - 1))
        self._is_closed = False

    def run(self, read: "Read[Result]", *arguments: Any) -> Result:
        """Return the result of `read`, called with a connection and the arguments. Raise what it raises."""
        for place in (self._first, *self._more):
            if place.lock.acquire(blocking=False):
                try:
                    if connection := self._opened(place):
                        return read(connection, *arguments)
                    break
                finally:
                    place.lock.release()
        with self._first.lock:
            assert self._first.connection is not None
            return read(self._first.connection, *arguments)

    def close(self) -> None:
        """Close all connections but the first, and open no more."""
        self._is_closed = True
        for place in self._more:
            with place.lock:
                if place.connection is not None:
                    place.connection.close()
                    place.connection = None

    def _opened(self, place: _Place) -> sqlite3.Connection | None:
        """Return the connection of a place, opened if need be; None if that is not possible. The caller holds its lock."""
        if place.connection is None and self._open(place):
            self._open_others()
        return place.connection

    def _open_others(self) -> None:
        """Open the other free places, so that the number of descriptors does not grow with the time that the process runs."""
        for place in self._more:
            if place.lock.acquire(blocking=False):
                try:
                    self._open(place)
                finally:
                    place.lock.release()

    def _open(self, place: _Place) -> bool:
        """Open the connection of a place if need be. Return whether it is open. The caller holds its lock."""
        if place.connection is None and not self._is_closed:
            with suppress(sqlite3.Error, OSError):
                place.connection = self._connected()
        return place.connection is not None

    def _connected(self) -> sqlite3.Connection | None:
        """Return one more connection; None if `path` is another file. Raise sqlite3.Error or OSError."""
        if not self._is_current():
            return None
        connection = sqlite.connect(self._path)
        if self._is_current():  # it was not replaced between the first look and the opening
            fail_at_once(connection)
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            return connection
        connection.close()
        return None


def fail_at_once(connection: sqlite3.Connection) -> None:
    """Let SQLite not wait for locks of other processes. LockWait repeats instead, without the lock of the connection."""
    connection.execute("PRAGMA busy_timeout = 0")


def fetch(connection: sqlite3.Connection, statement: str, arguments: Any = ()) -> list[Any]:
    """Return all rows."""
    return connection.execute(statement, arguments).fetchall()
