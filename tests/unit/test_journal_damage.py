"""A journal that is damaged, locked or of another shape: what can be read is kept, and what cannot be used says so."""

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from harness.journal_rows import ID, record
from svc.attach.journal import Journal
from svc.attach.record import AttachmentId
from svc.datastore import sqlite
from svc.datastore.api import StoreError
from svc.datastore.embedded import EmbeddedStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with closing(Journal(path)) as journal:
        yield journal


def with_a_bad_page(path: Path) -> None:
    """The first leaf of the table is garbage."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        content = file.read()
        page = content.index(b"\x0a", 4096 * (content.index(b'"c0"') // 4096))  # a leaf of an index
        file.seek(page - page % 4096)
        file.write(b"\xff" * 512)


def as_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_a_store(path: Path) -> None:
    path.unlink()
    EmbeddedStore(path).close()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"this is not a database, and it is longer than a header of one would be" * 20),
    "empty": lambda path: path.write_bytes(b""),
    "a directory": as_a_directory,
    "another program's": as_a_store,
    "a page": with_a_bad_page,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_file_is_kept_beside_a_new_one(path: Path, damage: Callable[[Path], object]) -> None:
    """With its log; and attachments may have lost their rows, which is not so of a sound file."""
    with closing(Journal(path)) as journal:
        assert journal.losses == 1, "there was none"
        for number in range(40):
            journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
    with closing(Journal(path)) as journal:
        assert journal.losses == 0
    damage(path)
    with closing(Journal(path)) as journal:
        assert journal.losses
        saved = journal.all()
        assert all(each == record(each.id) for each in saved)
        assert (0 < len(saved) < 40) == (damage is with_a_bad_page), len(saved)
        journal.begin(record())
        assert record() in journal.all()
    kept = [file.name for file in path.parent.iterdir() if ".damaged-" in file.name]
    assert any(re.fullmatch(r"journal\.db\.damaged-[0-9T.]+Z", name) for name in kept), kept


def test_file_that_is_damaged_while_it_is_open(journal: Journal, path: Path) -> None:
    """The call that meets it is served."""
    for number in range(40):
        journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
    with_a_bad_page(path)
    journal._connection.execute("PRAGMA shrink_memory")
    journal.all()
    journal.begin(record())
    assert record() in journal.all()
    assert journal.losses


def test_damage_that_cannot_be_repaired_now(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error tells what becomes of the journal; a backup is of the store alone."""

    def damaged(*_: object) -> sqlite3.Connection:
        raise sqlite3.DatabaseError("database disk image is malformed")

    monkeypatch.setattr("svc.attach.journal.replace_damaged", damaged)
    with pytest.raises(StoreError, match="malformed") as caught:
        journal._write(damaged)
    assert "kept beside as journal.db.damaged-DATE, and rebuilt" in caught.value.details
    assert "svcctl" not in caught.value.details


BAD_ROWS = {
    "broken JSON": b'{"id":',
    "no object": b"[]",
    "nothing": b"",
    "a field is missing": record().to_bytes().replace(b'"boot_id":"boot",', b""),
    "a field of another kind": record().to_bytes().replace(b'["10.65.0.7"]', b'"10.65.0.7"'),
    "an address that is none": record().to_bytes().replace(b"10.65.0.7", b"10.65.0.700"),
    "a state that is none": record().to_bytes().replace(b'"added"', b'"frozen"'),
    "another attachment's": record(AttachmentId("net", "c2", "eth0")).to_bytes(),
    "no bytes": 7,
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_row_that_cannot_be_decoded_is_set_aside(
    journal: Journal, path: Path, bad: object, caplog: pytest.LogCaptureFixture
) -> None:
    """It is kept for diagnosis, with one line in the log; the other rows are as they were, and its attachment may be added."""
    other = record(AttachmentId("net", "c3", "eth0"))
    for each in (record(), other):
        journal.begin(each)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attachments SET record = ? WHERE container = 'c1'", (bad,))
    for _ in range(2):
        assert journal.all() == [other]
        assert journal.get(ID) is None
    assert [line.count("'c1'") or line.count(" c1 ") for line in caplog.messages] == [1]
    assert journal.losses
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT network, container, ifname, record FROM set_aside").fetchall() == [
            ("net", "c1", "eth0", bad)
        ]
    journal.begin(record())
    assert record() in journal.all()


def test_fields_of_a_newer_release_are_left_out(journal: Journal, path: Path) -> None:
    journal.begin(record())
    newer = record().to_bytes().replace(b"{", b'{"invented_later":[1],', 1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attachments SET record = ?", (newer,))
    assert journal.get(ID) == record()


def test_columns_of_others_are_tolerated(path: Path) -> None:
    Journal(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE attachments ADD COLUMN extra TEXT")
    with closing(Journal(path)) as journal:
        journal.begin(record())
        assert journal.all() == [record()]
        assert journal.losses == 0


def test_directory_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        Journal(tmp_path / "file" / "journal.db")


def test_locked_file_says_so(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has kept it for too long."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.02)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked") as refused:
            journal.begin(record())
        assert re.match(rf"process {os.getpid()} \(.+\) keeps it locked", refused.value.details)
        with pytest.raises(StoreError, match="locked"):
            journal.begin(record(), durable=True)
        other.execute("ROLLBACK")
    journal.begin(record())
    assert journal.all() == [record()]


def test_threads_wait_for_a_locked_file_side_by_side(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers do not wait at all."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.5)

    def seconds_until_refused(number: int) -> float:
        began = time.monotonic()
        with pytest.raises(StoreError, match="locked"):
            journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
        return time.monotonic() - began

    with closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(12) as pool:
        other.execute("BEGIN IMMEDIATE")
        waits = [pool.submit(seconds_until_refused, number) for number in range(12)]
        began = time.monotonic()
        assert journal.all() == []
        assert time.monotonic() - began < 0.4
        assert max(wait.result(20) for wait in waits) < 2
        other.execute("ROLLBACK")
