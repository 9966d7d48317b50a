"""Damaged journal files: keep the file for diagnosis, and copy its readable rows to a new one."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path

from svc.attach.record import Record

Row = tuple[str, str, str, str, bytes]  # network, container, interface, host interface, record

_COLUMNS = "network, container, ifname, host_name, record"

_log = logging.getLogger(__name__)


def move_aside(path: Path, reason: str) -> Path:
    """Rename the file with its log and index. Return the new path. Raise OSError if that fails."""
    date = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = path.with_name(f"{path.name}.damaged-{date}")
    for suffix in ("-wal", "-shm", ""):  # the file last, so that a new file never has the log of the old one
        present = path.with_name(path.name + suffix)
        if present.exists() or present.is_symlink():
            present.rename(kept.with_name(kept.name + suffix))
    _log.error("journal %s is damaged (%s): it is kept as %s, and a new one is in its place", path, reason, kept)
    return kept


def salvage(kept: Path) -> list[Row]:
    """Return the readable rows of a damaged file. Read its table from both ends."""
    found: dict[tuple[str, str, str], Row] = {}
    for order in ("ASC", "DESC"):
        statement = f"SELECT {_COLUMNS} FROM attachments ORDER BY network {order}, container {order}, ifname {order}"  # noqa: S608
        found |= {row[:3]: row for row in _readable(kept, statement) if _is_whole(row)}
    return list(found.values())


def decode(key: tuple[str, str, str], data: bytes, generation: int) -> Record:
    """Return the record of a row. Raise ValueError if it cannot be decoded, or belongs to another attachment."""
    record = Record.from_bytes(data, generation)
    if (record.id.network, record.id.container_id, record.id.ifname) != key:
        raise ValueError(f"the record is of {record.id}")
    return record


def _is_whole(row: Row) -> bool:
    with suppress(ValueError):
        decode(row[:3], row[4], 0)
        return True
    return False


def _readable(kept: Path, statement: str) -> Iterator[Row]:
    try:
        with closing(sqlite3.connect(kept)) as connection:
            yield from connection.execute(statement)
    except (sqlite3.Error, UnicodeDecodeError):
        return
