"""Backup and restore of an embedded store, with SQLite's backup API. A backup is checked before it replaces the store.

A backup is one file: its journal mode is DELETE, so that it has no WAL file beside it.
"""

import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from svc.datastore import sqlite
from svc.datastore.api import StoreError
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import CallerError, Code, PeerError
from svc.model.keys import ResourceKey
from svc.names import Names
from svc.values import replace


def back_up(path: Path, target: Path) -> None:
    """Copy the store at `path` to the new file `target`, in one step. Other processes may use the store at the same time.

    Raise CallerError if the file exists, PeerError if it cannot be written, StoreError if the store cannot be read.
    """
    with _file_errors(target):
        try:
            with sqlite.draft_of(target) as draft:
                _copy(path, draft, "DELETE")
        except sqlite3.Error as error:
            raise sqlite.store_error(path, error) from error
        except FileExistsError:
            raise CallerError(
                f"file {str(target)!r} exists already", details="name another one, or remove it", code=Code.IO_FAILURE
            ) from None


def restore(source: Path, path: Path, names: Names, now: datetime) -> Path | None:
    """Replace the store at `path` by a copy of the backup `source`, in one step. Return the new path of the replaced store.

    The caller holds the lock of the state directory. Return None if the store did not exist. Raise CallerError if the backup
    is not an intact store, PeerError if a file cannot be written or another process has the store open. After an error the
    store is unchanged. The copy gets a new clusterGUID, which shows that allocations may be lost.
    """
    with _file_errors(path), sqlite.draft_of(path, os.replace) as draft:
        _take_backup(source, draft, names)
        return _keep(path, now)


@contextmanager
def _file_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PeerError(
            f"{str(target)!r} cannot be written: {error.strerror}", details="name another file", code=Code.IO_FAILURE
        ) from error


def _copy(source: Path, draft: Path, journal_mode: str) -> None:
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reader:
        with closing(sqlite.connect(draft)) as writer:
            reader.backup(writer)
            writer.execute(f"PRAGMA journal_mode = {journal_mode}")


def _take_backup(source: Path, draft: Path, names: Names) -> None:
    """Copy the backup to the draft. Raise CallerError with the reason if it is not an intact store."""
    try:
        source.open("rb").close()  # because SQLite does not report why it cannot open a file
    except OSError as error:
        raise _refused(source, str(error.strerror)) from None
    try:
        _copy(source, draft, "WAL")
        with closing(sqlite.connect(draft)) as copy:
            found = str(copy.execute("PRAGMA integrity_check").fetchone()[0])
        if found != "ok":
            raise _refused(source, found)
        with closing(EmbeddedStore(draft, names)) as store:  # raises StoreError for a database of another program or version
            key, guid = ResourceKey("ClusterInformation", "default"), {"clusterGUID": uuid.uuid4().hex}
            store.update(key, lambda found: found and replace(found, spec=found.spec | guid))
    except sqlite3.Error as error:
        raise _refused(source, str(error)) from error
    except StoreError as error:
        raise _refused(source, str(error).replace(str(draft), str(source))) from error


def _refused(source: Path, reason: str) -> CallerError:
    return CallerError(
        f"backup {str(source)!r} cannot be restored: {reason}",
        details="name a file that `svcctl store backup` wrote",
        code=Code.IO_FAILURE,
    )


def _keep(path: Path, now: datetime) -> Path | None:
    """Checkpoint the store, link it to a second name and return that; None without a store. Raise PeerError if it is open."""
    kept = path.with_name(f"{path.name}.{now:%Y-%m-%dT%H%M%SZ}")
    try:
        with closing(sqlite.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error:  # it is damaged: rename the files beside it as well
        for suffix in sqlite.WAL_SUFFIXES:
            if os.path.exists(f"{path}{suffix}"):
                os.rename(f"{path}{suffix}", f"{kept}{suffix}")
    if os.path.exists(f"{path}-wal"):  # SQLite removes it when the last connection closes
        raise PeerError(f"store {str(path)!r} is open in another process", details="find it with `fuser`, stop it, and repeat")
    if not path.exists():
        return None
    os.link(path, kept)
    return kept
