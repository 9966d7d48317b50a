"""The node's own memory of its attachments, and of every release still owed.

The datastore is the truth; the journal is how this node finds what it did. A commit without fsync survives a killed
process, which is all that a running attachment needs: a power cut ends the sandboxes too, and the next start frees what
the old boot held. What is owed after an answered DEL is nobody else's to remember, so that write is durable.
"""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from svc.attach.record import DELETING, AttachmentId, Record
from svc.datastore import sqlite
from svc.datastore.checkpoint import Checkpoints

_SCHEMA = """
CREATE TABLE attachments (
    network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL, host_name TEXT NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (network, container, ifname)
) WITHOUT ROWID;
CREATE INDEX by_host_name ON attachments (host_name);
"""
_KEY = "network = ? AND container = ? AND ifname = ?"


class Journal:
    """A small SQLite file; safe from several threads and processes. StoreError when it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._errors = sqlite.Errors(path)
        self._checkpoints = Checkpoints(path)
        with self._errors:
            if not path.exists():
                sqlite.create(path, lambda connection: _create(connection))
            self._connection = sqlite.connect(path)

    def put(self, record: Record, *, durable: bool = False) -> None:
        """Adds the record, or replaces the attachment's earlier one."""
        row = (record.id.network, record.id.container_id, record.id.ifname, record.host_name, record.to_bytes())
        with self._lock, self._errors:
            if durable:
                self._put_durably(row)
            else:
                self._connection.execute("REPLACE INTO attachments VALUES (?, ?, ?, ?, ?)", row)
            self._checkpoints.committed()

    def update(self, record: Record) -> None:
        """As `put`, of one whose host interface has kept its name: the index stays untouched."""
        row = (record.to_bytes(), record.id.network, record.id.container_id, record.id.ifname)
        with self._lock, self._errors:
            done = self._connection.execute(f"UPDATE attachments SET record = ? WHERE {_KEY}", row)  # noqa: S608
            self._checkpoints.committed()
        if not done.rowcount:
            self.put(record)

    def get(self, key: AttachmentId) -> Record | None:
        found = self._records(_KEY, (key.network, key.container_id, key.ifname))
        return found[0] if found else None

    def remove(self, key: AttachmentId) -> None:
        with self._lock, self._errors:
            self._connection.execute(f"DELETE FROM attachments WHERE {_KEY}", (key.network, key.container_id, key.ifname))  # noqa: S608
            self._checkpoints.committed()

    def all(self) -> list[Record]:
        return self._records("true", ())

    def owed(self) -> list[Record]:
        """Attachments whose DEL was answered before everything of them was released."""
        return [record for record in self.all() if record.state == DELETING]

    def of_network(self, network: str) -> list[Record]:
        return self._records("network = ?", (network,))

    def of_container(self, network: str, container_id: str) -> list[Record]:
        return self._records("network = ? AND container = ?", (network, container_id))

    def of_interface(self, container_id: str, ifname: str) -> list[Record]:
        """In whatever network."""
        return self._records("container = ? AND ifname = ?", (container_id, ifname))

    def with_host_name(self, host_name: str) -> list[Record]:
        """Whose host interface has, or had, this name."""
        return self._records("host_name = ?", (host_name,))

    def close(self) -> None:
        self._checkpoints.close()
        with self._lock:
            self._connection.close()

    def _put_durably(self, row: Sequence[object]) -> None:
        self._connection.execute("PRAGMA synchronous = FULL")
        try:
            self._connection.execute("REPLACE INTO attachments VALUES (?, ?, ?, ?, ?)", row)
        finally:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _records(self, where: str, parameters: Sequence[str]) -> list[Record]:
        with self._lock, self._errors:
            rows = self._connection.execute(f"SELECT record FROM attachments WHERE {where}", parameters).fetchall()  # noqa: S608
        return [Record.from_bytes(row[0]) for row in rows]


def _create(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
