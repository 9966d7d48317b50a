"""Damaged, locked and foreign journal files: readable rows are kept, and unusable files raise an error."""

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from errno import ENOSPC
from pathlib import Path
from random import Random

import pytest

from harness.journal_rows import ID, record
from svc.attach.journal import Journal
from svc.attach.record import ADDED, ADDING, DELETING, WAITING, AttachmentId
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


def damage_a_page(path: Path) -> None:
    """Overwrite the first leaf of the table."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        content = file.read()
        page = content.index(b"\x0a", 4096 * (content.index(b'"c0"') // 4096))  # a leaf of an index
        file.seek(page - page % 4096)
        file.write(b"\xff" * 512)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_store(path: Path) -> None:
    path.unlink()
    EmbeddedStore(path).close()


def drop_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE attachments")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"this is not a database, and it is longer than a header of one would be" * 20),
    "empty": lambda path: path.write_bytes(b""),
    "a directory": replace_by_directory,
    "another program's": replace_by_store,
    "a page": damage_a_page,
    "a missing table": drop_table,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_file_is_kept_beside_a_new_one(path: Path, damage: Callable[[Path], object]) -> None:
    """Attachments may have lost their rows, so the journal counts a loss. An intact file has none."""
    with closing(Journal(path)) as journal:
        assert journal.losses == 1, "a new file counts as a loss"
        for number in range(40):
            journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
    with closing(Journal(path)) as journal:
        assert journal.losses == 0
    damage(path)
    with closing(Journal(path)) as journal:
        assert journal.losses
        saved = journal.all()
        assert all(each == record(each.id) for each in saved)
        assert (0 < len(saved) < 40) == (damage is damage_a_page), len(saved)
        journal.begin(record())
        assert record() in journal.all()
    kept = [file.name for file in path.parent.iterdir() if ".damaged-" in file.name]
    assert any(re.fullmatch(r"journal\.db\.damaged-[0-9T.]+Z", name) for name in kept), kept


def test_damage_of_an_open_file_is_repaired(journal: Journal, path: Path) -> None:
    """The call that finds the damage succeeds."""
    for number in range(40):
        journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
    damage_a_page(path)
    journal._connection.execute("PRAGMA shrink_memory")
    journal.all()
    journal.begin(record())
    assert record() in journal.all()
    assert journal.losses


@pytest.mark.parametrize("column", ["network", "container", "ifname", "host_name"])
def test_row_with_a_damaged_key_is_left_out(journal: Journal, path: Path, column: str) -> None:
    """No text is like it, so no statement can remove that row alone. Its attachment is restored as after other losses."""
    rows = [record(AttachmentId("net", f"c{number}", "eth0"), host_name=f"svc{number}") for number in range(5)]
    for row in rows:
        journal.begin(row)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE attachments SET {column} = CAST(X'63ff' AS TEXT) WHERE container = 'c2'")
    journal.interfaces("boot")
    assert journal.all() == rows[:2] + rows[3:]
    assert journal.losses == 2  # the new file, and this one


def test_notes_survive_damage_of_the_rows(path: Path) -> None:
    with closing(Journal(path)) as journal:
        journal.put_note("datastore svc kind=embedded", "known")
        for number in range(40):
            journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
    damage_a_page(path)
    with closing(Journal(path)) as journal:
        assert journal.losses
        assert journal.note("datastore svc kind=embedded") == "known"


def damage_row_2(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attachments SET container = CAST(X'63ff' AS TEXT) WHERE container = 'c2'")


def test_file_that_another_process_has_rebuilt_is_opened(journal: Journal, path: Path) -> None:
    """Each process that finds the damage rebuilt the file again, without the rows that the others had begun since."""
    for number in range(5):
        journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
    with closing(Journal(path)) as other:
        damage_row_2(path)
        assert len(other.all()) == 4
        other.begin(record(AttachmentId("net", "new", "eth0")))
        assert journal.all() == other.all()
        assert len(journal.all()) == 5
    assert len(list(path.parent.glob("journal.db.damaged-*Z"))) == 1


@pytest.mark.parametrize("step", ["create", "in_transaction"])
def test_failed_repair_is_repeated(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The disk is full at that moment. No row is lost, and the open journal works again."""

    def full(*_: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    for number in range(5):
        journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
    damage_row_2(path)
    changes = journal.changes
    monkeypatch.setattr(sqlite, step, full)
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left"):
            journal.all()
        assert journal.changes == changes
    monkeypatch.undo()
    journal.begin(record())
    assert len(journal.all()) == 4
    assert len(list(path.parent.glob("journal.db.damaged-*Z"))) == 1


def test_failed_repair_raises_the_cause(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what happens to the journal. It suggests no backup, because backups contain only the store."""

    def damaged(*_: object) -> sqlite3.Connection:
        raise sqlite3.DatabaseError("database disk image is malformed")

    monkeypatch.setattr("svc.attach.journal.replace_damaged", damaged)
    with pytest.raises(StoreError, match="malformed") as caught:
        journal._write(damaged)
    assert "kept beside as journal.db.damaged-DATE, and rebuilt" in caught.value.details
    assert "svcctl" not in caught.value.details


BAD_ROWS = {
    "broken JSON": b'{"id":',
    "not an object": b"[]",
    "nothing": b"",
    "a field is missing": record().to_bytes().replace(b'"boot_id":"boot",', b""),
    "a field of another kind": record().to_bytes().replace(b'["10.65.0.7"]', b'"10.65.0.7"'),
    "an invalid address": record().to_bytes().replace(b"10.65.0.7", b"10.65.0.700"),
    "an unknown state": record().to_bytes().replace(b'"added"', b'"frozen"'),
    "another attachment's": record(AttachmentId("net", "c2", "eth0")).to_bytes(),
    "not bytes": 7,
    "settings that are not UTF-8": record().to_bytes().replace(b'"embedded"', b'"embed\xffed"'),
    "settings that no text has": record().to_bytes().replace(b'"embedded"', b'"\\ud800"'),
    "a state that is not UTF-8": record().to_bytes().replace(b'"added"', b'"add\xffed"'),
    "an index that is not UTF-8": record().to_bytes().replace(b'"host_index":7', b'"host_index":"\xff"'),
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_row_that_cannot_be_decoded_is_set_aside(
    journal: Journal, path: Path, bad: object, caplog: pytest.LogCaptureFixture
) -> None:
    """It is kept for diagnosis and logged once. Other rows do not change, and its attachment can be added."""
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


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_what_tasks_ask_for_is_read_beside_a_bad_row(journal: Journal, path: Path, bad: object) -> None:
    """SQLite's error for text that is not JSON looks like that of a damaged file. Python raises one for a bad text."""
    other = record(AttachmentId("other", "c3", "eth0"))
    for each in (record(), other):
        journal.begin(each)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attachments SET record = ? WHERE container = 'c1'", (bad,))
    assert ("other", other.session_key) in journal.datastores()
    assert (other.host_name, other.host_index) in journal.interfaces("boot")
    assert (other.generation, ADDED, None) in journal.states()
    assert other not in journal.unsettled()
    assert list(path.parent.glob("*.damaged-*")) == []


def test_selected_rows_are_those_of_a_full_decode(journal: Journal, path: Path) -> None:
    """Of rows with a changed byte, a query may return more only until they are set aside."""
    random = Random(17)
    for number in range(300):
        journal.begin(record(AttachmentId("net", f"c{number}", "eth0"), random.choice((WAITING, ADDING, ADDED, DELETING))))
    with closing(sqlite3.connect(path)) as connection, connection:
        for key, data in connection.execute("SELECT container, record FROM attachments").fetchall():
            changed = bytearray(data)
            changed[random.randrange(len(data.rstrip()))] = random.randrange(256)
            connection.execute("UPDATE attachments SET record = ? WHERE container = ?", (bytes(changed), key))

    def selected() -> tuple[set[object], ...]:
        return {*journal.datastores()}, {*journal.interfaces("boot")}, {number for number, _, _ in journal.states()}

    early, unsettled = selected(), journal.unsettled()
    rows = journal.all()
    assert 0 < len(rows) < 300
    of_boot = {(row.host_name, row.host_index if row.state == ADDED else 0) for row in rows if row.boot_id == "boot"}
    stores, generations = {("net", row.session_key) for row in rows}, {row.generation for row in rows}
    full: tuple[set[object], ...] = {*stores}, {*of_boot}, {*generations}
    assert all(found >= wanted for found, wanted in zip(early, full, strict=True))
    assert selected() == full
    assert unsettled == [row for row in rows if row.state != ADDED]


@pytest.mark.parametrize(("path_in_row", "value"), [("$.node", '["n"]'), ("$.profile", "7"), ("$.settings.kind", '{"a": 1}')])
def test_datastore_with_wrong_types_is_left_out(journal: Journal, path: Path, path_in_row: str, value: str) -> None:
    other = record(AttachmentId("other", "c3", "eth0"))
    for each in (record(), other):
        journal.begin(each)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE attachments SET record = CAST(json_set(CAST(record AS TEXT), ?, json(?)) AS BLOB) WHERE container = 'c1'",
            (path_in_row, value),
        )
    assert journal.datastores() == {("other", other.session_key)}


def test_row_of_an_earlier_build_has_its_datastore(journal: Journal, path: Path) -> None:
    journal.begin(record())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attachments SET record = CAST(json_remove(CAST(record AS TEXT), '$.profile') AS BLOB)")
    assert journal.datastores() == {("net", record().session_key)}


def test_fields_of_a_newer_release_are_ignored(journal: Journal, path: Path) -> None:
    journal.begin(record())
    newer = record().to_bytes().replace(b"{", b'{"invented_later":[1],', 1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attachments SET record = ?", (newer,))
    assert journal.get(ID) == record()


def test_unknown_columns_are_ignored(path: Path) -> None:
    Journal(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE attachments ADD COLUMN extra TEXT")
    with closing(Journal(path)) as journal:
        journal.begin(record())
        assert journal.all() == [record()]
        assert journal.losses == 0


def test_error_says_that_the_directory_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        Journal(tmp_path / "file" / "journal.db")


def test_error_names_the_process_that_locks_the_file(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the lock for longer than the timeout."""
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


def test_threads_wait_for_a_locked_file_in_parallel(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers do not wait at all."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.5)

    def seconds_until_error(number: int) -> float:
        began = time.monotonic()
        with pytest.raises(StoreError, match="locked"):
            journal.begin(record(AttachmentId("net", f"c{number}", "eth0")))
        return time.monotonic() - began

    with closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(12) as pool:
        other.execute("BEGIN IMMEDIATE")
        waits = [pool.submit(seconds_until_error, number) for number in range(12)]
        began = time.monotonic()
        assert journal.all() == []
        assert time.monotonic() - began < 0.4
        assert max(wait.result(20) for wait in waits) < 2
        other.execute("ROLLBACK")
