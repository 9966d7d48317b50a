"""Embedded store: one SQLite file, the datastore of a single node.

1. Keys and documents have the same encoding as in etcd (`svc.model.kv_codec`).
2. A counter numbers the transactions. The number is the revision of all keys that the transaction wrote. The file also has
   the last number of every resource kind, which makes `generations` exact across processes.
3. One connection writes. Others read (`svc.datastore.readers`), so that a reader never waits for a commit.
4. The table of entries has row IDs: a page then holds documents of 1 to 4 KB. WITHOUT ROWID moves them to overflow pages
   (measured: 29 us instead of 22 us).
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from svc.datastore import embedded_file, sqlite
from svc.datastore.api import (
    Backend,
    Check,
    Conflict,
    Create,
    Delete,
    Entries,
    Entry,
    Found,
    KeyedError,
    NotFound,
    Position,
    UndecodableEntry,
    Update,
    Write,
)
from svc.datastore.change_feed import Change, Watcher
from svc.datastore.checkpoint import WalCheckpointer
from svc.datastore.embedded_file import COUNT, CREATE, TRANSACTIONS
from svc.datastore.readers import Readers, fail_at_once, fetch
from svc.datastore.watching import OpenWatches
from svc.metrics import GET, LIST, WRITE, StoreMeter
from svc.model.keys import Key, Query, counted_kind
from svc.model.kv_codec import Codec, matches
from svc.names import DEFAULT, Names
from svc.values import dataclass

_GET = "SELECT path, value, revision FROM entries WHERE path = ?"
_GET_ALL = "SELECT path, value, revision FROM entries WHERE path IN ({})"
PAGE = 8  # documents that are decoded at a time: they take ten times as much memory then
_LIST = "SELECT path, value, revision FROM entries WHERE path >= ? AND path < ? ORDER BY path"
_UPDATE = "UPDATE entries SET value = ?, revision = ? WHERE path = ? AND revision = ?"
_DELETE = "DELETE FROM entries WHERE path = ? AND revision = ?"
_DELETE_ANY = "DELETE FROM entries WHERE path = ?"
_CHECK = "SELECT 1 FROM entries WHERE path = ? AND revision = ?"
_COUNTER = "SELECT value FROM counters WHERE name = ?"
_COUNTERS = "SELECT name, value FROM counters"
_COUNT_TWO = f"{COUNT}, (?, ?)"
_REPAIR = "delete the key, or restore the file from a copy"

_log = logging.getLogger(__name__)

Result = TypeVar("Result")
Row = tuple[str, bytes, int]  # path, document, revision


@dataclass(frozen=True, slots=True)
class _Change:
    """Write with its path and document. `data` is None for a Delete or a Check."""

    write: Write
    path: str
    data: bytes | None


class EmbeddedStore(Backend):
    """Session with the file at `path`. If the file or its directory does not exist, the session creates it."""

    atomic = True
    requires_node = False

    def __init__(self, path: Path, names: Names = DEFAULT) -> None:
        self._path = path
        self._codec = Codec(names)
        self.meter = StoreMeter()
        self._errors = sqlite.Errors(path, failed=lambda: self.meter.failed(GET))
        self._write_errors = sqlite.Errors(path, failed=lambda: self.meter.failed(WRITE))
        self._watches: OpenWatches[Watcher] = OpenWatches()
        self._checkpoints = WalCheckpointer(path)
        self._writing = threading.Lock()
        self._read_wait, self._write_wait = sqlite.LockWait(), sqlite.LockWait()
        with self._errors:
            if not path.exists():
                sqlite.create(path, lambda connection: embedded_file.fill(connection, self._codec))
            self._open()
        with ExitStack() as opened:
            opened.callback(self.close)  # no caller has a store to close whose first read fails
            self._newest = dict(self._fetch(_COUNTERS))[TRANSACTIONS]
            opened.pop_all()

    def _open(self) -> None:
        """Open the connections to the files at the path. Raise StoreError, sqlite3.Error or OSError."""
        with ExitStack() as opened:
            reader = opened.enter_context(closing(sqlite.connect(self._path)))
            embedded_file.check_schema(self._path, reader)
            writer = opened.enter_context(closing(sqlite.connect(self._path)))
            for connection in (reader, writer):
                fail_at_once(connection)
            self._files = sqlite.identities(self._path)
            opened.pop_all()
        self._writer, self._readers = writer, Readers(self._path, reader, threading.Lock(), self.is_current)

    @property
    def place(self) -> str:
        return f"store {str(self._path)!r}"

    def is_current(self) -> bool:
        """Return whether `path` and the files beside it are still those that this session has open."""
        with suppress(OSError):
            return sqlite.identities(self._path) == self._files
        return False

    def write_back(self) -> bool:
        """Replace the file by a copy of its content if its log or index was removed, because others would create new ones."""
        with self._write_errors, self._writing:
            found = sqlite.identities(self._path)
            if found == self._files:  # another thread has done it
                return True
            if found[0] != self._files[0]:
                return False
            kept = embedded_file.write_over(self._path, self._writer)
            self._writer.close()  # first: if no other connection can be opened, nothing more is written to the former file
            readers = self._readers
            self._open()
            readers.close()
            readers.run(lambda connection: connection.close())
        _log.error("files beside %s were removed: its content is written back; what was there is kept as %s", self._path, kept)
        return True

    def get(self, key: Key) -> Entry:
        rows = self._fetch(_GET, (self._codec.path(key),))
        found = self._found(key, rows[0] if rows else None)
        if isinstance(found, Entry):
            return found
        try:
            raise found
        finally:
            del found  # otherwise the traceback and this frame refer to each other until garbage is collected

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        paths = [self._codec.path(key) for key in keys]
        rows = {row[0]: row for row in self._fetch(_GET_ALL.format(", ".join("?" * len(paths))), paths)}
        return [self._found(key, rows.get(path)) for key, path in zip(keys, paths, strict=True)]

    def list(self, query: Query) -> Entries:
        return self._entries(query, self._fetch(_LIST, self._span(query)))

    def pages(self, query: Query) -> Iterator[Entries]:
        """Yield the entries of a query at one moment, decoded in parts."""
        rows = self._fetch(_LIST, self._span(query))
        for first in range(0, len(rows), PAGE):
            yield self._entries(query, rows[first : first + PAGE])

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        """Apply all writes or none. They share one revision."""
        if not writes:
            return ()
        changes = [self._change(write) for write in writes]
        with self._write_errors:
            number = self._write_wait.run(self._write, changes, durable)
        return [Entry(write.key, write.value, str(number)) if isinstance(write, Create | Update) else None for write in writes]

    def check_writable(self) -> None:
        """Rewrite a counter with its present value, to detect a locked file. Raise NoSpace without disk space for an ADD."""
        with self._write_errors:
            self._write_wait.run(self._rewrite_counter)
        sqlite.require_disk_space(self._path)

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        """Return the number of the last transaction of any process that wrote a resource of each kind; 0 if none did."""
        numbers = dict(self._fetch(_COUNTERS))
        return tuple(numbers.get(kind, 0) for kind in kinds)

    def position(self) -> Position:
        """Return the newest transaction number. A session that opens an older copy of the file has a lower one."""
        return Position(revision=self._newest)

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> Watcher:
        """Return a watch. It reports the changes of other processes only when it lists again."""

        def listing() -> tuple[int, Sequence[Entry]]:
            number, rows = self._read(self._readers.run, _snapshot, self._span(query))
            return number, self._entries(query, rows)

        return self._watches.add(Watcher(listing, lambda key: matches(query, key), listed))

    def close(self) -> None:
        self._watches.close()
        self._checkpoints.close()
        with self._writing:
            self._writer.close()
        self._readers.close()
        self._readers.run(lambda connection: connection.close())

    def _change(self, write: Write) -> _Change:
        data = None if isinstance(write, Delete | Check) else self._codec.encode(write.value)
        return _Change(write, self._codec.path(write.key), data)

    def _write(self, changes: Sequence[_Change], durable: bool) -> int:
        """Commit the changes and publish them to the watchers. Return the number of the transaction."""
        began = perf_counter()
        with self._writing:
            try:
                number = self._newest = self._transact(changes, durable)
            except KeyedError:
                self.meter.conflicted()
                raise
            self.meter.ended(WRITE, began)
            self._checkpoints.committed()
            if self._watches:
                committed = [self._published(change, number) for change in changes if not isinstance(change.write, Check)]
                for watcher in self._watches:
                    watcher.feed(committed)
        return number

    def _published(self, change: _Change, number: int) -> Change:
        """Return a change for watchers, each of which decodes its own entry."""
        key, data = change.write.key, change.data
        return Change(key, number, lambda: None if data is None else self._entry_or_none(key, data, number))

    def _entry_or_none(self, key: Key, data: bytes, number: int) -> Entry | None:
        try:
            return Entry(key, self._codec.decode(key, data), str(number))
        except ValueError as error:
            _log.warning("left out %s: %s", self._codec.path(key), error)
            return None

    def _rewrite_counter(self) -> None:
        began = perf_counter()
        with self._writing:
            self._writer.execute("UPDATE counters SET value = value WHERE name = ?", (TRANSACTIONS,))
            self.meter.ended(WRITE, began)

    def _transact(self, changes: Sequence[_Change], durable: bool) -> int:
        if not durable:
            return sqlite.in_transaction(self._writer, lambda: self._apply_all(changes))
        self._writer.execute("PRAGMA synchronous = FULL")
        try:
            return sqlite.in_transaction(self._writer, lambda: self._apply_all(changes))
        finally:
            self._writer.execute("PRAGMA synchronous = NORMAL")

    def _apply_all(self, changes: Sequence[_Change]) -> int:
        """Apply the changes. Store the number of the transaction as the newest one, overall and of each kind; return it."""
        run = self._writer.execute
        number = int(run(_COUNTER, (TRANSACTIONS,)).fetchone()[0]) + 1
        for change in changes:
            self._apply(change, number)
        written = (change.write.key for change in changes if not isinstance(change.write, Check))
        kinds = set(filter(None, map(counted_kind, written)))
        if not kinds:
            run(COUNT, (TRANSACTIONS, number))
        for kind in kinds:
            run(_COUNT_TWO, (TRANSACTIONS, number, kind, number))
        return number

    def _apply(self, change: _Change, number: int) -> None:
        run, path = self._writer.execute, change.path
        match change.write:
            case Create(key=key):
                if not run(CREATE, (change.data, number, path)).rowcount:
                    raise Conflict(key)
                return
            case Check(key=key, revision=revision):
                if not run(_CHECK, (path, revision)).fetchone():
                    raise Conflict(key)
                return
            case Update(key=key, revision=revision):
                done = run(_UPDATE, (change.data, number, path, revision))
            case Delete(key=key, revision=None):
                done = run(_DELETE_ANY, (path,))
            case Delete(key=key, revision=revision):
                done = run(_DELETE, (path, revision))
        if not done.rowcount:
            raise NotFound(key) if run(_GET, (path,)).fetchone() is None else Conflict(key)

    def _found(self, key: Key, row: Row | None) -> Found:
        if row is None:
            return NotFound(key)
        try:
            return Entry(key, self._codec.decode(key, row[1]), str(row[2]))
        except ValueError as error:
            return UndecodableEntry(f"store {str(self._path)!r} holds no valid document at {key}: {error}", details=_REPAIR)

    def _fetch(self, statement: str, arguments: Sequence[str] = ()) -> Sequence[Any]:
        """Return all rows. The first attempt bypasses `_read` and its overhead, because most calls read several times."""
        try:
            rows = self._fetch_now(statement, arguments)
        except sqlite3.Error:
            return self._read(self._fetch_now, statement, arguments)
        self._read_wait.last = 0.0
        return rows

    def _read(self, read: Callable[..., Result], *arguments: object) -> Result:
        """Return the result of `read`, repeated while another process has the file locked."""
        with self._errors:
            return self._read_wait.run(read, *arguments)

    def _fetch_now(self, statement: str, arguments: Sequence[str]) -> Sequence[Any]:
        began = perf_counter()
        rows = self._readers.run(fetch, statement, arguments)
        self.meter.ended(LIST if statement is _LIST else GET, began)
        return rows

    def _span(self, query: Query) -> tuple[str, str]:
        """Return the first path of a query's range, and a path after the last."""
        prefix = self._codec.prefix(query)
        return prefix, f"{prefix}\U0010ffff"

    def _entries(self, query: Query, rows: Sequence[Row]) -> Entries:
        found = Entries()
        for path, data, revision in rows:
            key = self._codec.key(path)
            if key is not None and matches(query, key):
                try:
                    found.append(Entry(key, self._codec.decode(key, data), str(revision)))
                except ValueError as error:
                    found.skip(path, error)
            elif key is None and self._codec.is_misnamed(query, path):
                found.skip_misnamed(path)
        return found


def _snapshot(connection: sqlite3.Connection, span: tuple[str, str]) -> tuple[int, Sequence[Row]]:
    """Return the number of the last transaction and the rows that are visible at it."""
    connection.execute("BEGIN")
    try:
        number = int(connection.execute(_COUNTER, (TRANSACTIONS,)).fetchone()[0])
        return number, connection.execute(_LIST, span).fetchall()
    finally:
        connection.execute("COMMIT")
