"""The file of the journal: its tables, the migration from earlier builds, and the replacement of a damaged file."""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from svc.attach.record import ADDED, ADDING, DELETING, WAITING, AttachmentId, Record, SessionKey
from svc.datastore import sqlite
from svc.datastore.api import StoreError

Key = tuple[str, str, str]  # network, container, interface

RESERVE_BYTES = 256 * 1024
VERSION = 2  # of the tables below, in the file's user_version
_APPLICATION = 0x5356434A  # "SVCJ", in the file's application_id
_ATTACHMENTS = """CREATE TABLE attachments (
    network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL, host_name TEXT NOT NULL, record BLOB NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (network, container, ifname)
) WITHOUT ROWID"""
_FIRST_COLUMNS = "network, container, ifname, host_name, record"  # of the unversioned layout
COLUMNS = f"{_FIRST_COLUMNS}, generation"
INSERT = f"REPLACE INTO attachments ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_HOST_NAMES = "CREATE INDEX by_host_name ON attachments (host_name)"
_SET_ASIDE = """CREATE TABLE set_aside (
    network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL, record BLOB NOT NULL, reason TEXT NOT NULL,
    time TEXT NOT NULL
)"""
ROW = "network = ? AND container = ? AND ifname = ? AND generation = ?"
REMOVE = f"DELETE FROM attachments WHERE {ROW}"  # noqa: S608
_TEXT = "CAST(record AS TEXT)"
_PLACE = ", ".join(f"'$.{name}', json_extract({_TEXT}, '$.{name}')" for name in ("settings", "node"))
UPDATE_REST = f"UPDATE attachments SET record = CAST(json_set(CAST(? AS TEXT), {_PLACE}) AS BLOB) WHERE {ROW}"  # noqa: S608
MOVE = f"UPDATE attachments SET record = CAST(json_set({_TEXT}, '$.settings', json(?), '$.node', ?) AS BLOB) WHERE {ROW}"  # noqa: S608
_JSON = f"json_valid({_TEXT})"
DATASTORES = f"""SELECT DISTINCT network, CAST(json_extract({_TEXT}, '$.settings', '$.node', '$.profile') AS BLOB)
    FROM attachments WHERE CASE WHEN {_JSON} THEN json_type({_TEXT}, '$.settings') = 'object' END"""  # noqa: S608
_STATE = f"json_extract({_TEXT}, '$.state')"
_IS_READABLE = f"CASE WHEN {_JSON} THEN {_STATE} IN {(WAITING, ADDING, ADDED, DELETING)} END"
STATES = f"SELECT generation, {_STATE}, json_extract({_TEXT}, '$.pending.since') + 0 FROM attachments WHERE {_IS_READABLE}"  # noqa: S608
"""Generation, state, and since when a release is pending, of the rows that are JSON with a state.

For other text, SQLite raises an error that looks like that of a damaged file; for a result that is text and not UTF-8, Python
raises one. So `DATASTORES` omits such text too, and returns bytes."""
UNSETTLED = f"CASE WHEN {_JSON} THEN {_STATE} IS NOT '{ADDED}' ELSE true END"
"""The condition of the rows of running and interrupted calls, of pending releases, and of those that are not readable."""
_INDEX = f"ifnull(json_extract({_TEXT}, '$.host_index') + 0, 0)"
INTERFACES = f"""SELECT host_name, CASE {_STATE} WHEN '{ADDED}' THEN {_INDEX} ELSE 0 END
    FROM attachments WHERE CASE WHEN {_JSON} THEN json_extract({_TEXT}, '$.boot_id') = ? END"""  # noqa: S608
_KEEP = f"INSERT INTO set_aside SELECT network, container, ifname, record, ?, ? FROM attachments WHERE {ROW}"  # noqa: S608
_EPOCH_BITS = 32  # a generation is the epoch of a process and, in these low bits, a counter
_ABOUT = "CREATE TABLE about (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID"

MADE_NOTE, DAMAGED_NOTE, SALVAGED_NOTE = ORIGIN_NOTES = "journal.made", "journal.damaged", "journal.salvaged"
DAMAGED = (
    "it is damaged: at its next use it is kept beside as journal.db.damaged-DATE, and rebuilt from kernel and datastores;"
    " if this error comes again, look for disk errors in the kernel log"
)

_log = logging.getLogger(__name__)


def key_of(key: AttachmentId) -> Key:
    """Return the primary key of a row."""
    return key.network, key.container_id, key.ifname


def row_of(record: Record) -> tuple[str, str, str, int]:
    """Return the parameters of `ROW`."""
    return record.id.network, record.id.container_id, record.id.ifname, record.generation


def datastore_of(text: bytes) -> SessionKey | None:
    """Return the key from a row of `DATASTORES`; None if the row cannot be decoded either. Rows of earlier builds have null."""
    with suppress(ValueError):
        settings, node, profile = orjson.loads(text)
        parts = node or "", profile or "", *settings.values()
        return SessionKey(settings, *parts[:2]) if all(isinstance(part, str) for part in parts) else None
    return None


def prepare(path: Path, *, exclusive: bool = False) -> tuple[sqlite3.Connection, bool]:
    """Open the journal's file without a busy timeout. Return the connection, and whether rows may be missing in the file.

    Create a missing file, migrate one of an earlier build, and replace a damaged one by its readable rows. Raise StoreError
    if a newer release wrote it, sqlite3.Error or OSError if it is unusable in another way.
    """
    present = path.exists()
    if not present:
        sqlite.create(path, _create)
    damaged = sqlite.identities(path)[0]
    try:
        return _opened(path, exclusive=exclusive), not present
    except sqlite3.DatabaseError as error:
        if not sqlite.is_damage(error):
            raise
        return replace_damaged(path, damaged, str(error)), True


def replace_damaged(path: Path, damaged: object, reason: str) -> sqlite3.Connection:
    """Move a damaged file, of which the identity is given, aside, and open a new one with its readable rows and notes.

    If another process has done so, open its new file. Raise as `prepare`.
    """
    with _excluding_others(path.parent):
        if sqlite.identities(path)[0] == damaged:
            return _rebuilt(path, reason)
    return prepare(path)[0]


@contextmanager
def _excluding_others(directory: Path) -> Iterator[None]:
    """Lock a directory against other processes that replace a damaged file in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _rebuilt(path: Path, reason: str) -> sqlite3.Connection:
    """Move the file aside, and open a new one with its readable rows and notes. On failure, move it back for the next use."""
    kept = _move_aside(path, reason)
    try:
        return _with_rows_of(kept, path)
    except BaseException:
        if not path.exists():
            _rename(kept, path)
        raise


def _with_rows_of(kept: Path, path: Path) -> sqlite3.Connection:
    numbered = [(*row, number) for number, row in enumerate(_salvage(kept), 1)]
    notes = list(_readable(kept, "SELECT name, value FROM about"))

    def insert(connection: sqlite3.Connection) -> None:
        connection.executemany(INSERT, numbered)
        connection.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", notes)  # the epoch and the release are new
        connection.executemany("REPLACE INTO about VALUES (?, ?)", ((DAMAGED_NOTE, kept.name), (SALVAGED_NOTE, len(numbered))))

    def fill(connection: sqlite3.Connection) -> None:
        _create(connection)
        insert(connection)

    sqlite.create(path, fill)
    connection = _opened(path)
    found = connection.execute("SELECT 1 FROM about WHERE name = ? AND value = ?", (DAMAGED_NOTE, kept.name)).fetchone()
    if not found:  # another process has created the file since the damaged one was moved
        sqlite.in_transaction(connection, lambda: insert(connection))
    return connection


def write_back(path: Path, connection: sqlite3.Connection) -> sqlite3.Connection:
    """Write the content of an open file that was removed or replaced to its path; rename a file that is there.

    Return a connection to the new file, and close the old one. Raise sqlite3.Error or OSError if that fails.
    """
    if any(sqlite.identities(path)):
        _move_aside(path, "it is not the file that was open")
    sqlite.write_copy(connection, path)
    fresh = _opened(path)
    connection.close()
    return fresh


def _opened(path: Path, *, exclusive: bool = False) -> sqlite3.Connection:
    if not path.is_file():
        raise sqlite3.DatabaseError("it is not a database, and not a regular file")
    connection = sqlite.connect(path, exclusive=exclusive)
    try:
        sqlite.require_sound(connection)  # the file is small: it has a few hundred rows
        if _versions(connection) != (_APPLICATION, VERSION):
            _migrate(path, connection)
        connection.execute("SELECT 1 FROM attachments, set_aside, about LIMIT 0")  # raises an error for a missing table
    except BaseException:
        connection.close()
        raise
    connection.execute("PRAGMA busy_timeout = 0")
    return connection


def decode(key: Key, data: bytes, generation: int) -> Record:
    """Return the record of a row. Raise ValueError if it cannot be decoded, or belongs to another attachment."""
    record = Record.from_bytes(data, generation)
    if (record.id.network, record.id.container_id, record.id.ifname) != key:
        raise ValueError(f"the record is of {record.id}")
    return record


def set_aside(connection: sqlite3.Connection, row: tuple[str, str, str, int], reason: str) -> None:
    """Move a row to the table of rows that are kept for diagnosis. Raise sqlite3.Error if that fails."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def move() -> None:
        connection.execute(_KEEP, (reason, now, *row))
        connection.execute(REMOVE, row)

    sqlite.in_transaction(connection, move)


def first_generation(connection: sqlite3.Connection) -> int:
    """Return the number before the generations of a process, which are unique in the life of the file."""

    def count() -> int:
        connection.execute("UPDATE about SET value = value + 1 WHERE name = 'epoch'")
        return int(connection.execute("SELECT value FROM about WHERE name = 'epoch'").fetchone()[0])

    return sqlite.in_transaction(connection, count) << _EPOCH_BITS


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(_ATTACHMENTS)
    connection.execute(_HOST_NAMES)
    _add_version_2(connection)
    connection.execute("INSERT INTO about VALUES (?, ?)", (MADE_NOTE, round(time.time())))


def _versions(connection: sqlite3.Connection) -> tuple[int, int]:
    application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    return application, version


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    """Migrate the file to the present version in one transaction. Concurrent processes wait for each other."""

    def forward() -> None:
        found = _versions(connection)
        if found == (_APPLICATION, VERSION):
            return
        if found[0] == _APPLICATION and found[1] > VERSION:
            raise _newer(path, connection, found[1])
        if found != (0, 0) or not _columns(connection) >= {*_FIRST_COLUMNS.split(", ")}:
            raise sqlite3.DatabaseError("file is not a database of this program")
        _number_rows(connection)
        _add_version_2(connection)

    sqlite.in_transaction(connection, forward)


def _number_rows(connection: sqlite3.Connection) -> None:
    """Give each row of the unversioned layout a generation."""
    if "generation" not in _columns(connection):
        connection.execute("ALTER TABLE attachments ADD COLUMN generation INTEGER NOT NULL DEFAULT 0")
    keys = connection.execute("SELECT network, container, ifname FROM attachments").fetchall()
    numbered = [(number, *key) for number, key in enumerate(keys, 1)]
    connection.executemany("UPDATE attachments SET generation = ? WHERE network = ? AND container = ? AND ifname = ?", numbered)


def _add_version_2(connection: sqlite3.Connection) -> None:
    from svc import __version__  # slow to import, and needed once in the life of a file

    connection.execute(_SET_ASIDE)
    connection.execute(_ABOUT)
    connection.executemany("INSERT INTO about VALUES (?, ?)", (("epoch", 0), ("release", __version__)))
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(attachments)")}


def _newer(path: Path, connection: sqlite3.Connection, version: int) -> StoreError:
    try:
        row = connection.execute("SELECT value FROM about WHERE name = 'release'").fetchone()
    except sqlite3.Error:
        row = None
    release = f"svc {row[0]} or newer" if row else "the release of svc that wrote it, or a newer one"
    return StoreError(
        f"journal {str(path)!r} has schema version {version}, this release reads up to {VERSION}",
        details=f"install {release}",
    )


def _move_aside(path: Path, reason: str) -> Path:
    """Rename a damaged file with its log and index. Return the new path. Raise OSError if that fails."""
    date = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = path.with_name(f"{path.name}.damaged-{date}")
    _rename(path, kept)
    _log.error("journal %s is damaged (%s): it is kept as %s, and a new one is in its place", path, reason, kept)
    return kept


def _rename(path: Path, to: Path) -> None:
    for suffix in ("-wal", "-shm", ""):  # the file last, so that a new file never has the log of the old one
        present = path.with_name(path.name + suffix)
        if present.exists() or present.is_symlink():
            present.rename(to.with_name(to.name + suffix))


def _salvage(kept: Path) -> list[tuple[str, str, str, str, bytes]]:
    """Return the readable rows of a damaged file. Read its table from both ends."""
    found = {}
    for order in ("ASC", "DESC"):
        key = f"network {order}, container {order}, ifname {order}"
        for row in _readable(kept, f"SELECT {_FIRST_COLUMNS} FROM attachments ORDER BY {key}"):  # noqa: S608
            with suppress(ValueError):
                decode(row[:3], row[4], 0)
                found[row[:3]] = row
    return list(found.values())


def _readable(kept: Path, statement: str) -> Iterator[Any]:
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(sqlite3.connect(kept)) as connection:
        yield from connection.execute(statement)


class Reserve:
    """Disk space beside the journal for some dozen pending releases and the removal of rows, freed when the disk is full.

    Several threads and processes may use it. A file of allocated blocks works on every file system, also if overwriting in
    place needs new blocks (btrfs, reflinked XFS).
    """

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(f"{journal.name}.reserve")

    def fill(self) -> bool:
        """Allocate the reserve if it is not allocated. On a full disk, allocate nothing. Return whether it is allocated."""
        with suppress(OSError):
            if self._path.exists() and self._path.stat().st_size:
                return True
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
                return True
            except OSError:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)
        return False

    def release(self) -> None:
        """Free the space of the reserve."""
        with suppress(OSError):
            os.truncate(self._path, 0)
