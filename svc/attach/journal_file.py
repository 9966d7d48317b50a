"""The journal's file: its tables, their versions, and the migration of a file of an earlier release."""

import sqlite3
from datetime import datetime, timezone
from pathlib import Path

from svc.attach.journal_damage import move_aside, salvage
from svc.datastore import sqlite
from svc.datastore.api import StoreError

VERSION = 2  # of the tables below, in the file's user_version
_APPLICATION = 0x5356434A  # "SVCJ", in the file's application_id
_ATTACHMENTS = """CREATE TABLE attachments (
    network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL, host_name TEXT NOT NULL, record BLOB NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (network, container, ifname)
) WITHOUT ROWID"""
_KEY_COLUMNS = {"network", "container", "ifname", "host_name", "record"}
COLUMNS = "network, container, ifname, host_name, record, generation"
INSERT = f"REPLACE INTO attachments ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_HOST_NAMES = "CREATE INDEX by_host_name ON attachments (host_name)"
_SET_ASIDE = """CREATE TABLE set_aside (
    network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL, record BLOB NOT NULL, reason TEXT NOT NULL,
    time TEXT NOT NULL
)"""
ROW = "network = ? AND container = ? AND ifname = ? AND generation = ?"
_KEEP = f"INSERT INTO set_aside SELECT network, container, ifname, record, ?, ? FROM attachments WHERE {ROW}"  # noqa: S608
_ABOUT = "CREATE TABLE about (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID"


def prepare(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the journal's file without a busy timeout. Return the connection, and whether rows may be missing in the file.

    Create it if it does not exist, and migrate it if an earlier release wrote it. Move a damaged file aside, and copy
    its readable rows to a new one. Raise StoreError if a newer release wrote the file, sqlite3.Error or OSError if it is
    unusable in another way.
    """
    present = path.exists()
    if not present:
        sqlite.create(path, _create)
    try:
        return _opened(path), not present
    except sqlite3.DatabaseError as error:
        if not sqlite.is_damage(error):
            raise
        return replace_damaged(path, str(error)), True


def replace_damaged(path: Path, reason: str) -> sqlite3.Connection:
    """Move a damaged file aside, and open a new one with its readable rows. Raise sqlite3.Error or OSError if that fails."""
    kept = move_aside(path, reason)
    rows = salvage(kept)
    sqlite.create(path, _create)
    connection = _opened(path)
    numbered = [(*row, number) for number, row in enumerate(rows, 1)]
    sqlite.in_transaction(connection, lambda: connection.executemany(INSERT, numbered))
    return connection


Identity = tuple[tuple[int, int] | None, ...]


def identity(path: Path) -> Identity:
    """Return the device and inode numbers of the file, its log and its index, which show whether a file was replaced."""
    return tuple(sqlite.identity(path.with_name(path.name + suffix)) for suffix in ("", *sqlite.BESIDE))


def write_back(path: Path, connection: sqlite3.Connection) -> sqlite3.Connection:
    """Write the content of an open file that was removed or replaced to its path.

    Return a connection to the new file, and close the old one. A file at the path is renamed first. Raise sqlite3.Error or
    OSError if that fails.
    """
    if any(identity(path)):
        move_aside(path, "it is not the file that was open")
    sqlite.write_copy(connection, path)
    fresh = _opened(path)
    connection.close()
    return fresh


def _opened(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise sqlite3.DatabaseError("it is not a database, and not a regular file")
    connection = sqlite.connect(path)
    try:
        _demand_sound(connection)
        if _versions(connection) != (_APPLICATION, VERSION):
            _migrate(path, connection)
    except BaseException:
        connection.close()
        raise
    connection.execute("PRAGMA busy_timeout = 0")
    return connection


def _demand_sound(connection: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError if a page of the file is damaged. The file is small: it has a few hundred rows."""
    (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {finding}")


def set_aside(connection: sqlite3.Connection, key: tuple[str, str, str], generation: int, reason: str) -> None:
    """Move a row to the table of rows that are kept for diagnosis. Raise sqlite3.Error if that fails."""
    row = (*key, generation)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def move() -> None:
        connection.execute(_KEEP, (reason, now, *row))
        connection.execute(f"DELETE FROM attachments WHERE {ROW}", row)  # noqa: S608

    sqlite.in_transaction(connection, move)


def next_epoch(connection: sqlite3.Connection) -> int:
    """Return the next epoch, which is unique in the life of the file."""

    def count() -> int:
        connection.execute("UPDATE about SET value = value + 1 WHERE name = 'epoch'")
        return int(connection.execute("SELECT value FROM about WHERE name = 'epoch'").fetchone()[0])

    return sqlite.in_transaction(connection, count)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(_ATTACHMENTS)
    connection.execute(_HOST_NAMES)
    _add_version_2(connection)


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
        if found != (0, 0) or not _columns(connection) >= _KEY_COLUMNS:
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
