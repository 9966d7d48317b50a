"""The node's SQLite record of attachments and pending releases.

The datastore is authoritative. From the journal, a process finds the attachments of earlier calls on this node. A commit
without fsync survives a killed process, which is sufficient for a running attachment: a power cut ends its sandbox too.
Recovery then releases the addresses of the earlier boot. After a DEL was answered, only the journal has its pending release, so
that write is durable.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from svc.attach.journal_file import (
    COLUMNS,
    DAMAGED,
    INSERT,
    MOVE,
    REMOVE,
    ROW,
    UPDATE_REST,
    Reserve,
    first_generation,
    key_of,
    prepare,
    replace_damaged,
    row_of,
    set_aside,
    write_back,
)
from svc.attach.journal_rows import JournalRows
from svc.attach.record import DELETING, IntentLost, Record
from svc.datastore import sqlite
from svc.datastore.api import StoreError
from svc.datastore.checkpoint import WalCheckpointer
from svc.datastore.readers import Readers, fetch

_BEGIN_AFTER = f"REPLACE INTO attachments ({COLUMNS}) SELECT ?, ?, ?, ?, ?, ? FROM attachments WHERE {ROW}"  # noqa: S608
_RESTORE = f"INSERT OR IGNORE INTO attachments ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_UPDATE = f"UPDATE attachments SET record = ? WHERE {ROW}"  # noqa: S608

_log = logging.getLogger(__name__)


class Journal(JournalRows):
    """A small SQLite file, safe for several threads and processes. Methods raise StoreError if it cannot be used.

    Each row has a generation that is unique in the life of the file. A record refers to the row of its generation. A row that
    has replaced it belongs to another attachment, and calls on the old record do not change it.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._reading, self._writing = sqlite.LockWait(), sqlite.LockWait()  # a readable file can still be locked for writes
        self._errors = sqlite.Errors(path, DAMAGED)
        self._checkpoints = WalCheckpointer(path)
        self._generation = 0
        self._changes = 0  # by earlier connections
        self._path = path
        self._reserve = Reserve(path)
        self.is_exclusive = False  # opened on a full disk: no other process can use the file
        with self._errors:
            connection, incomplete = self._open()
            self._use(connection)
        self.losses = int(incomplete)  # how often rows may have been lost; 1 for a new file
        self._reserve.fill()

    def begin(self, record: Record, *, after: Record | None = None, durable: bool = False) -> None:
        """Write the record as a new row, in place of the attachment's earlier one, and set `record.generation`.

        `after` is the row that it continues. Raise IntentLost if that row does not exist any more.
        """
        statement, condition = (INSERT, ()) if after is None else (_BEGIN_AFTER, row_of(after))
        if not self._insert(statement, record, condition, durable=durable):
            raise IntentLost(record.id)

    def check_writable(self) -> None:
        """Commit a write without effect, and require disk space for one ADD. Raise StoreError if an ADD would fail."""
        self._write(lambda: self._connection.execute("UPDATE about SET value = value WHERE name = 'epoch'"))
        sqlite.require_disk_space(self._path)

    def restore(self, record: Record) -> bool:
        """Write the record as a new row if the attachment has no row. Return whether the row was written."""
        return self._insert(_RESTORE, record)

    def _insert(self, statement: str, record: Record, condition: tuple[str | int, ...] = (), *, durable: bool = False) -> bool:
        """Write the record with a new generation. Return whether the row was written."""

        def insert() -> bool:
            generation = self._next_generation()
            row = (*key_of(record.id), record.host_name, record.to_bytes(), generation)
            if not self._connection.execute(statement, (*row, *condition)).rowcount:
                return False
            record.generation = generation
            return True

        return self._write(insert, durable=durable)

    def update(self, record: Record, *, durable: bool = False, keeps_settings: bool = False) -> None:
        """Write the record in its row; with `keeps_settings`, all but settings and node, which may have changed since.

        Raise IntentLost if the row does not exist any more; never create one."""
        statement, parameters = UPDATE_REST if keeps_settings else _UPDATE, (record.to_bytes(), *row_of(record))
        if not self._write(lambda: self._connection.execute(statement, parameters).rowcount, durable=durable):
            raise IntentLost(record.id)

    def change_settings(self, record: Record, settings: dict[str, str], node: str = "") -> None:
        """Change the settings of the datastore, and the name of the node there, in the record, and in its row if that exists.

        On a full disk, free the reserve: the addresses must be claimed by the new settings.
        """
        record.node = node or record.node
        parameters = orjson.dumps(settings).decode(), record.node, *row_of(record)
        self._write(lambda: self._connection.execute(MOVE, parameters), reserved=True)
        record.settings = settings

    def require(self, record: Record) -> None:
        """Raise IntentLost if the record's row does not exist any more."""
        if not self._read(f"SELECT 1 FROM attachments WHERE {ROW}", row_of(record)):  # noqa: S608
            raise IntentLost(record.id)

    def record_pending_release(self, record: Record, reason: str = "") -> None:
        """Record durably, in its row or a new one, that the release is pending. Raise IntentLost if an ADD has replaced it.

        If it was pending and its row is gone, do nothing, because another call has completed it.
        """
        self.restore_file()  # another process must find the pending release
        was_pending = record.state == DELETING and record.generation
        record.defer(reason)
        try:
            self.update(record, durable=True, keeps_settings=True)
        except IntentLost:
            if self.get(record.id) is not None:
                raise
            if not was_pending:
                self.begin(record, durable=True)

    def remove(self, record: Record) -> None:
        """Remove the record's row if it exists. On a full disk, free the reserve because SQLite needs space for the removal."""
        if record.generation:
            self._write(lambda: self._connection.execute(REMOVE, row_of(record)), reserved=True)

    def note_loss(self) -> None:
        """Count a loss of rows that another program has caused in the open file."""
        self.losses += 1

    def restore_file(self) -> None:
        """If the path no longer names the open file, write its content back. On failure, raise StoreError and keep the file."""
        if sqlite.identities(self._path) == self._file:
            return
        with self._errors, self._lock:
            self._changes += self._connection.total_changes
            self._readers.close()
            self._use(write_back(self._path, self._connection))
        self._reserve.fill()
        _log.error("journal %s was removed or replaced: its content is written back", self._path)

    def refill_reserve(self) -> None:
        """Allocate the disk reserve again if the disk has space, and then let other processes use the file.

        Raise StoreError if the file cannot be opened again. The next call retries then.
        """
        if self._reserve.fill() and self.is_exclusive:
            with self._errors, self._lock:
                with suppress(sqlite3.ProgrammingError):  # closed already by an attempt that failed
                    self._changes += self._connection.total_changes
                self._readers.close()
                self._connection.close()
                self._use(self._open()[0])

    @property
    def changes(self) -> int:
        """The number of rows that this process has written."""
        return self._changes + (0 if self._lacks_file else self._connection.total_changes)

    def put_note(self, name: str, text: str) -> None:
        """Store a text under a name, outside of the attachment rows."""
        self._write(lambda: self._connection.execute("REPLACE INTO about VALUES (?, ?)", (name, text)))

    def close(self) -> None:
        self._checkpoints.close()
        self._readers.close()
        with self._lock:
            self._connection.close()

    def _write(self, work: Callable[[], sqlite.Result], *, durable: bool = False, reserved: bool = False) -> sqlite.Result:
        """Commit `work`, with the disk reserve if `durable` or `reserved`. For speed, the first attempt handles no failure."""
        if not durable:
            try:
                with self._lock:
                    done = work()
                    self._checkpoints.committed()
            except sqlite3.Error:
                pass
            else:
                self._writing.last = 0.0
                return done
        commit = partial(self._durably, work) if durable else work
        with self._errors:
            result: sqlite.Result = self._writing.run(self._with_connection, self._commit, commit, durable or reserved)
            return result

    def _commit(self, commit: Callable[[], sqlite.Result], reserved: bool) -> sqlite.Result:
        try:
            result = commit()
        except sqlite3.OperationalError as failure:
            if not reserved or "is full" not in str(failure):
                raise
            self._reserve.release()
            with suppress(sqlite3.Error):  # SQLite reuses its write-ahead log then
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)")
            result = commit()
        self._checkpoints.committed()
        return result

    def _open(self) -> tuple[sqlite3.Connection, bool]:
        """Open the file with `prepare`; if the disk is full, free the reserve and retry, at last without an index file (-shm).

        SQLite reports an I/O error if the disk has no space for the index file.
        """
        for self.is_exclusive in (False, False, True):
            try:
                return prepare(self._path, exclusive=self.is_exclusive)
            except sqlite3.OperationalError as failure:
                if self.is_exclusive or not any(text in str(failure) for text in ("is full", "disk I/O error")):
                    raise
                self._reserve.release()
        raise AssertionError

    def _use(self, connection: sqlite3.Connection) -> None:
        path, self._connection, self._file = self._path, connection, (file := sqlite.identities(self._path))
        self._lacks_file = False
        self._readers = Readers(path, connection, self._lock, lambda: not self.is_exclusive and sqlite.identities(path) == file)

    def _with_connection(self, work: Callable[..., sqlite.Result], *arguments: object) -> sqlite.Result:
        """Call `work` under the lock. Replace a damaged file, and call `work` again."""
        with self._lock:
            try:
                return work(*arguments)
            except sqlite3.DatabaseError as error:
                if not (self._lacks_file or sqlite.is_damage(error)):
                    raise
                self._replace_damaged(str(error))
            return work(*arguments)

    def _replace_damaged(self, reason: str) -> None:
        """Replace the file, or continue an attempt that has failed: until then, the connection stays closed."""
        if not self._lacks_file:
            self._changes += self._connection.total_changes
            self._readers.close()
            self._connection.close()
            self._lacks_file = True
        self._use(replace_damaged(self._path, self._file[0], reason))
        self._generation, self.losses = 0, self.losses + 1

    def _durably(self, work: Callable[[], sqlite.Result]) -> sqlite.Result:
        self._connection.execute("PRAGMA synchronous = FULL")
        try:
            return work()
        finally:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _next_generation(self) -> int:
        """Return a generation for a new row. The caller holds the lock."""
        self._generation = (self._generation or first_generation(self._connection)) + 1
        return self._generation

    def _read(self, statement: str, parameters: Sequence[str | int]) -> list[Any]:
        """Return all rows. For speed, the first attempt skips the handling of locked and damaged files."""
        try:
            rows = self._readers.run(fetch, statement, parameters)
        except sqlite3.Error:
            with self._errors:
                return self._reading.run(self._with_connection, lambda: fetch(self._connection, statement, parameters))
        self._reading.last = 0.0
        return rows

    def _set_aside(self, row: tuple[str, str, str, int], reason: str) -> None:
        """Move a row that cannot be decoded to another table. If the file is not writable, the row stays."""
        network, container, ifname, _ = row
        _log.error("journal %s: the row of %s %s in %s is set aside: %s", self._path, container, ifname, network, reason)
        self.losses += 1
        with suppress(StoreError):
            self._write(lambda: set_aside(self._connection, row, reason))
