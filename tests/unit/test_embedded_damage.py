"""The embedded store with damaged files, full disks and missing permissions: each error is a StoreError."""

import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from harness.embedded_fixtures import path, store
from svc import __version__
from svc.datastore.api import Create, Entry, StoreError
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.sqlite import store_error
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, HandleQuery, ResourceKey

__all__ = ["path", "store"]

COUNTED = "10.0.0.0/26"
CLUSTER = ResourceKey("ClusterInformation", "default")
NOBODY_UID = 65534


def write_one(store: EmbeddedStore, name: str = "h") -> Entry:
    (entry,) = store.write([Create(HandleKey(name), Handle({COUNTED: 1}))])
    assert entry is not None
    return entry


def damage(path: Path) -> None:
    """Overwrite everything except the header page."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


def test_damaged_store_is_a_store_error(path: Path) -> None:
    """The error has the path of the file, and the fix."""
    with closing(EmbeddedStore(path)) as store:
        for number in range(100):
            write_one(store, f"h{number}")
    with closing(EmbeddedStore(path)) as store:
        damage(path)
        attempts: list[Callable[[], object]] = [
            lambda: EmbeddedStore(path),
            lambda: store.get(CLUSTER),
            lambda: list(store.list(HandleQuery())),
            lambda: write_one(store, "new"),
            lambda: next(store.watch(HandleQuery())),
        ]
        for attempt in attempts:
            with pytest.raises(StoreError, match=re.escape(repr(str(path)))) as caught:
                attempt()
            assert "`svcctl store restore FILE`" in caught.value.details
            assert "move it away" in caught.value.details


def test_store_that_cannot_be_opened_keeps_no_file_open(path: Path) -> None:
    """Not even as long as the error is kept, whose traceback refers to the store."""
    with closing(EmbeddedStore(path)) as store:
        write_one(store)
    damage(path)
    with pytest.raises(StoreError) as caught:
        EmbeddedStore(path)
    kept = [file for file in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if str(file).startswith(str(path))]
    assert kept == [], caught.value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"this is not a database, whatever its name says\n" * 200, "not a database"),
        (b"", "it is empty: .* `svcctl store restore FILE`"),
        (b"SQLite", "not a database"),
    ],
    ids=["text", "empty", "cut"],
)
def test_files_that_are_not_a_store_are_refused(path: Path, content: bytes, message: str) -> None:
    """They are not changed."""
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreError, match=message):
        EmbeddedStore(path)
    assert path.read_bytes() == content


def test_databases_of_other_programs_are_refused(path: Path) -> None:
    """The schema of this file is unknown."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE t (a)")
    with pytest.raises(StoreError, match="another program"):
        EmbeddedStore(path)


@pytest.mark.parametrize(
    ("statement", "release"),
    [
        ("UPDATE about SET value = '9.8.7'", "svc 9.8.7 or newer"),
        ("DROP TABLE about", "the release of svc that wrote it, or a newer one"),
    ],
)
def test_other_schema_versions_are_refused(path: Path, statement: str, release: str) -> None:
    """The error has both versions. It also has the release to install if the file names one."""
    EmbeddedStore(path).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")
        newer.execute(statement)
        newer.commit()
    with pytest.raises(StoreError, match="schema version 99, this program reads 1") as caught:
        EmbeddedStore(path)
    assert caught.value.details == f"install {release}"


def test_new_store_records_the_release(store: EmbeddedStore) -> None:
    """An earlier build can then name it in its error."""
    assert store._writer.execute("SELECT value FROM about WHERE name = 'release'").fetchall() == [(__version__,)]


def test_full_disk_changes_nothing(store: EmbeddedStore) -> None:
    """The whole write fails, and reads succeed."""
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    wide = Handle({str(number): 1 for number in range(5000)})
    with pytest.raises(StoreError, match="is full") as caught:
        store.write([Create(HandleKey("small"), Handle({})), Create(HandleKey("wide"), wide)])
    assert "free space" in caught.value.details
    assert list(store.list(HandleQuery())) == []
    store._writer.execute("PRAGMA max_page_count = 100000")
    store.write([Create(HandleKey("wide"), wide)])


@contextmanager
def as_nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY_UID)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only() -> Iterator[Path]:
    """Return a directory that every user can enter and only root can write to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def test_read_only_directory_is_a_store_error(read_only: Path) -> None:
    """It prevents creation of the store, or of the directory of the store."""
    for file in (read_only / "store.db", read_only / "state" / "store.db"):
        with as_nobody(), pytest.raises(StoreError, match="Permission denied") as caught:
            EmbeddedStore(file)
        assert "may write to" in caught.value.details


def test_read_only_file_is_a_store_error(read_only: Path) -> None:
    """The error is raised by the first write at the latest."""
    path = read_only / "store.db"
    read_only.chmod(0o755)
    EmbeddedStore(path).close()
    path.chmod(0o444)
    read_only.chmod(0o555)
    with as_nobody(), pytest.raises(StoreError, match=r"readonly|unable to open") as caught:
        with closing(EmbeddedStore(path)) as store:
            write_one(store)
    assert "writable" in caught.value.details


def test_file_in_place_of_the_directory_is_a_store_error(tmp_path: Path) -> None:
    """The path is a wrong setting."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        EmbeddedStore(tmp_path / "file" / "store.db")


def test_log_truncated_under_an_open_store_is_damage(path: Path) -> None:
    """SQLite reports an I/O error although the disk works."""
    with closing(EmbeddedStore(path)) as store:
        write_one(store)
        os.truncate(f"{path}-wal", 0)
        with pytest.raises(StoreError, match="it was truncated") as raised:
            EmbeddedStore(path).get(CLUSTER)
    assert "svcctl store restore" in raised.value.details


@pytest.mark.parametrize("wrote", [True, False], ids=["truncated", "empty"])
def test_log_is_truncated_only_if_the_index_lists_pages(path: Path, wrote: bool) -> None:
    """Errors of SQLite have no name before Python 3.11. An empty log is also beside an index that the disk has no space for."""
    with closing(EmbeddedStore(path)) as store:
        if wrote:
            write_one(store)
        else:
            store.get_all([])
        os.truncate(f"{path}-wal", 0)
        error = store_error(path, sqlite3.OperationalError("disk I/O error"))
    assert ("it was truncated" in error.msg, "kernel log" in error.details) == (wrote, not wrote)
