"""SQLite files of simulated processes: real SQLite, with one real connection per file, which schedules reuse.

Before each schedule every file gets its initial rows back. Other tasks can run before a transaction but not inside it. In
reality the lock of SQLite has that effect.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from simulation.blocking import Current

_FULL = "database or disk is full"
_LOCKED = "database is locked"
_WRITES = re.compile(r"\s*(INSERT|REPLACE|UPDATE|DELETE|BEGIN IMMEDIATE|BEGIN EXCLUSIVE)", re.IGNORECASE)

Rows = dict[str, list[tuple[Any, ...]]]


class Files:
    """All SQLite files, by path. The product's code calls `connect`."""

    def __init__(self) -> None:
        self._real: dict[Path, sqlite3.Connection] = {}
        self._templates: dict[Path, Rows] = {}
        self._clean: dict[Path, int] = {}

    def connect(self, path: Path, *, exclusive: bool = False) -> sqlite3.Connection:
        """Return a connection of the running task's process."""
        return Connection(self.real(path), path.name)  # type: ignore[return-value]

    def real(self, path: Path) -> sqlite3.Connection:
        """Return the real connection, to read a file without a step."""
        if path not in self._real:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for setting in ("synchronous = OFF", "journal_mode = MEMORY", "temp_store = MEMORY"):
                connection.execute(f"PRAGMA {setting}")
            self._real[path] = connection
        return self._real[path]

    def keep(self, path: Path) -> None:
        """Keep the current rows as the initial rows of every schedule."""
        for other in [other for other in self._real if not other.exists()]:  # a temporary file that has its final name now
            self._real.pop(other).close()
        self.real(path).execute("PRAGMA locking_mode = EXCLUSIVE")
        self._templates[path] = _rows(self.real(path))
        self._clean[path] = self.real(path).total_changes

    def reset(self) -> None:
        """Restore the initial rows of every file."""
        for path, rows in self._templates.items():
            connection = self.real(path)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if connection.total_changes != self._clean[path]:
                _restore(connection, rows)
                self._clean[path] = connection.total_changes

    def close(self) -> None:
        for connection in self._real.values():
            connection.close()


class Connection:
    """A model of `sqlite3.Connection`, as far as the product uses it."""

    def __init__(self, real: sqlite3.Connection, name: str) -> None:
        self._real = real
        self._name = name
        self._open = True
        self.row_factory = None

    @property
    def in_transaction(self) -> bool:
        return self._real.in_transaction

    @property
    def total_changes(self) -> int:
        return self._real.total_changes

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        if not self._open:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        if not self._real.in_transaction and Current.scheduler.is_inside():
            if statement.startswith("PRAGMA"):
                return self._real.execute("SELECT 'ok'" if "=" in statement or "quick_check" in statement else statement)
            self._step(statement, parameters)
        return self._real.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> sqlite3.Cursor:
        return self._real.executemany(statement, parameters)

    def interrupt(self) -> None:
        return

    def close(self) -> None:
        self._open = False

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def _step(self, statement: str, parameters: Sequence[Any]) -> None:
        text, faults = _operation(statement)
        arguments = ", ".join([str(each) for each in parameters if not isinstance(each, bytes)])
        fault = Current.scheduler.step(f"{self._name}: {text} [{arguments}]", *faults)
        if fault:
            raise sqlite3.OperationalError(_FULL if fault == "full" else _LOCKED)


@cache
def _operation(statement: str) -> tuple[str, tuple[str, ...]]:
    """Return the statement's text for a trace, and its possible faults."""
    writes = ("full", "locked") if _WRITES.match(statement) else ()
    return " ".join(statement.split())[:60], ("kill", *writes)


def _rows(connection: sqlite3.Connection) -> Rows:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: connection.execute(f'SELECT * FROM "{table}"').fetchall() for table in tables}


def _restore(connection: sqlite3.Connection, rows: Rows) -> None:
    connection.execute("BEGIN")
    for table, content in rows.items():
        connection.execute(f'DELETE FROM "{table}"')
        if content:
            places = ", ".join("?" * len(content[0]))
            connection.executemany(f'INSERT INTO "{table}" VALUES ({places})', content)
    connection.execute("COMMIT")
