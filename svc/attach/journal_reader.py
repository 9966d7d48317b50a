"""Read the rows of the journal without a lock of its writer, so that neither a slow reader nor a slow disk delays calls."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from svc.attach.journal_file import ORIGIN_NOTES, decode
from svc.attach.places import datastore_place
from svc.attach.record import ADDED, DELETING, Record
from svc.datastore import sqlite
from svc.datastore.api import StoreError
from svc.timestamps import rfc3339
from svc.values import dataclass

BUSY_SECONDS: Final = 0.3  # limit of the wait for a lock of another process
_STATE: Final = (
    "CASE json_valid(CAST(record AS TEXT)) WHEN 1 THEN json_extract(CAST(record AS TEXT), '$.state') ELSE 'unreadable' END"
)
_ROWS: Final = "SELECT network, container, ifname, record, generation FROM attachments"
_UNFINISHED: Final = f"{_ROWS} WHERE {_STATE} <> '{ADDED}'"
_NODES: Final = (
    "SELECT DISTINCT json_extract(CAST(record AS TEXT), '$.node') FROM attachments WHERE json_valid(CAST(record AS TEXT))"
)
_ORIGIN: Final = "SELECT name, value FROM about WHERE name GLOB 'journal.*'"
_COUNTS: Final = f"SELECT {_STATE}, count(*) FROM attachments GROUP BY 1"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the journal, and the keys of those that cannot be decoded, each with the reason."""

    records: list[Record]
    unreadable: list[str]


@dataclass(frozen=True, slots=True)
class Origin:
    """When a journal was made (Unix time; None if an earlier build made it), and the damaged one that it replaces.

    `kept` is the name of the damaged file as long as that exists, else empty, and `rows` the number of rows read from it.
    """

    made: float | None
    kept: str = ""
    rows: int = 0

    def __str__(self) -> str:
        if self.made is None:
            return "made by an earlier build"
        if self.kept:
            return f"rebuilt at {rfc3339(self.made)} with {self.rows} rows of a damaged one, which is kept as {self.kept}"
        return f"made at {rfc3339(self.made)}"


def read_rows(path: Path, *, unfinished: bool = False) -> Rows:
    """Return all rows, or with `unfinished` those that are not "added". Raise StoreError if the journal cannot be read."""
    found = Rows([], [])
    for network, container, ifname, data, generation in _fetch(path, _UNFINISHED if unfinished else _ROWS):
        try:
            found.records.append(decode((network, container, ifname), data, generation))
        except ValueError as error:
            found.unreadable.append(f"{network} {container} {ifname}: {error}")
    return found


def read_every_row(path: Path) -> list[Record]:
    """Return all rows, without a change of the journal. Raise StoreError if the journal or one of its rows cannot be read."""
    found = read_rows(path)
    if found.unreadable:
        raise StoreError(
            f"journal {str(path)!r} has {len(found.unreadable)} rows that cannot be read, such as {found.unreadable[0]}",
            details="start svc-agent if it does not run, and run `svcctl reconcile`: the agent sets them aside, and the "
            "next call of the network restores what they had",
        )
    return found.records


def count_rows(path: Path) -> dict[str, int]:
    """Return the number of rows of each state. Raise StoreError if the journal cannot be read."""
    return {str(state): number for state, number in _fetch(path, _COUNTS)}


def read_nodes(path: Path) -> list[str]:
    """Return the names of the node in the datastores of its attachments. Raise StoreError if the journal cannot be read."""
    return sorted(str(name) for (name,) in _fetch(path, _NODES) if name)


def read_origin(path: Path) -> Origin:
    """Return where the journal comes from. Raise StoreError if it cannot be read."""
    return origin_of(dict(_fetch(path, _ORIGIN)), path)


def origin_of(notes: Mapping[str, Any], path: Path) -> Origin:
    """Return where the journal comes from, by its notes `journal.*`."""
    made, damaged, rows = (notes.get(name) for name in ORIGIN_NOTES)
    is_kept = damaged is not None and path.with_name(damaged).exists()
    return Origin(None if made is None else float(made), damaged if is_kept and damaged else "", int(rows or 0))


def describe(record: Record) -> dict[str, Any]:
    """Return a row for users, without secrets."""
    return {
        "network": record.id.network,
        "container": record.id.container_id,
        "ifname": record.id.ifname,
        "state": record.state,
        "pod": f"{record.namespace}/{record.pod}" if record.pod else "",
        "addresses": record.addresses,
        "host_interface": record.host_name,
        "host_index": record.host_index,
        "peer_index": record.peer_index,
        "node": record.node,
        "datastore": datastore_place(record.settings) if "kind" in record.settings else "",
        "handle": record.handle,
        **(describe_release(record) if record.state == DELETING else {}),
    }


def describe_release(record: Record) -> dict[str, Any]:
    """Return since when a release is pending (Unix time), how often it was tried, and the last reason; None if not known."""
    known = record.pending or {}
    return {name: known.get(name) for name in ("since", "tried", "attempts", "reason")}


def _fetch(path: Path, statement: str) -> list[Any]:
    try:
        with closing(sqlite.connect(path)) as connection:
            connection.execute(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1000)}")
            connection.execute("PRAGMA query_only = ON")
            return connection.execute(statement).fetchall()
    except (sqlite3.Error, OSError) as error:
        raise sqlite.store_error(path, error, "stop svc-agent and start it again: it rebuilds the journal") from error
