"""The file of the embedded store: its tables, its first content, and the test whether this program can read it."""

import os
import sqlite3
import uuid
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from svc.datastore import sqlite
from svc.datastore.api import StoreError
from svc.model.keys import ResourceKey
from svc.model.kv_codec import Codec
from svc.model.resource import Resource, set_identity

CREATE = "INSERT OR IGNORE INTO entries (value, revision, path) VALUES (?, ?, ?)"
COUNT = "INSERT OR REPLACE INTO counters (name, value) VALUES (?, ?)"
TRANSACTIONS = ""  # the counter of transactions; the other counters have the name of a kind

_APPLICATION = 0x53564344  # "SVCD", distinguishes the files of svc from other databases
_SCHEMA = 1
_TABLES = (
    "CREATE TABLE entries (path TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL)",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE about (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_SCHEMA}",
)


def fill(connection: sqlite3.Connection, codec: Codec) -> None:
    """Create the tables of a new store, and the ClusterInformation that says it is ready."""
    from svc import __version__  # slow to import, and needed once in the life of a file

    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO about VALUES ('release', ?)", (__version__,))
    spec = {"clusterGUID": uuid.uuid4().hex, "datastoreReady": True}
    identity = Resource("ClusterInformation", {"name": "default"}, spec)
    set_identity(identity, datetime.now(timezone.utc), str(uuid.uuid4()))
    path = codec.path(ResourceKey(identity.kind, identity.name))
    connection.execute(CREATE, (codec.encode(identity), 1, path))
    connection.executemany(COUNT, ((TRANSACTIONS, 1), (identity.kind, 1)))


def write_over(path: Path, connection: sqlite3.Connection) -> Path:
    """Replace the file by a copy of the database that the connection has open. Rename what is there, and return its new path.

    Raise sqlite3.Error or OSError if that fails. No other process can open the file in between: `sqlite.connect` refuses it.
    """
    kept = path.with_name(f"{path.name}.replaced-{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%fZ}")

    def place(copy: Path, path: Path) -> None:
        os.link(path, kept)
        for suffix in sqlite.WAL_SUFFIXES:  # before the copy takes the place of the file: it would be read with its log
            with suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{kept}{suffix}")
        os.replace(copy, path)

    sqlite.write_copy(connection, path, place)
    return kept


def check_schema(path: Path, connection: sqlite3.Connection) -> None:
    """Raise StoreError if another program wrote the file, or if its schema version differs."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION and not connection.execute("PRAGMA page_count").fetchone()[0]:
        raise sqlite3.DatabaseError("file is not a database: it is empty")
    if application != _APPLICATION:
        raise StoreError(f"store {str(path)!r} is a database of another program", details="name another file")
    if schema != _SCHEMA:
        row = None
        with suppress(sqlite3.Error):  # a store of an earlier build does not name its release
            row = connection.execute("SELECT value FROM about WHERE name = 'release'").fetchone()
        release = f"svc {row[0]} or newer" if row else "the release of svc that wrote it, or a newer one"
        raise StoreError(
            f"store {str(path)!r} has schema version {schema}, this program reads {_SCHEMA}",
            details=f"install {release}",
        )
