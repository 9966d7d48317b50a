"""Rows of the journal, read beside its writer."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.journal_rows import ID, record
from svc.attach.journal import Journal
from svc.attach.journal_reader import count_rows, describe, read_origin, read_rows
from svc.attach.record import DELETING
from svc.datastore.api import StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a journal with an attachment, and a release that is pending."""
    path = tmp_path / "journal.db"
    with closing(Journal(path)) as journal:
        journal.begin(record())
        journal.record_pending_release(record(replace(ID, ifname="eth1")), "etcd does not answer")
    return path


def test_rows_are_read_without_an_agent(path: Path) -> None:
    assert [row.id.ifname for row in read_rows(path).records] == ["eth0", "eth1"]
    assert [row.id.ifname for row in read_rows(path, unfinished=True).records] == ["eth1"]
    assert count_rows(path) == {"added": 1, "deleting": 1}


def test_origin_names_the_damaged_journal_until_that_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(Journal(path)) as journal:
        journal.begin(record())
    made = str(read_origin(path))
    assert made.startswith("made at 20")
    path.write_bytes(b"damaged" * 1000)
    Journal(path).close()
    origin = read_origin(path)
    assert origin.kept.startswith("journal.db.damaged-")
    assert str(origin).endswith(f" with 0 rows of a damaged one, which is kept as {origin.kept}")
    for file in tmp_path.glob("*.damaged-*"):
        file.unlink()
    assert str(read_origin(path)).startswith("made at 20")


def test_origin_of_a_journal_of_an_earlier_build_is_not_known(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM about WHERE name GLOB 'journal.*'")
    assert str(read_origin(path)) == "made by an earlier build"


def test_rows_are_read_while_the_journal_is_written(path: Path) -> None:
    """A transaction of the writer blocks no reader, and its row is not seen yet."""
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM attachments")
        assert len(read_rows(path).records) == 2
        writer.execute("ROLLBACK")


def test_reader_changes_nothing(path: Path) -> None:
    with closing(Journal(path)) as journal:
        before = journal.all()
        read_rows(path)
        assert journal.all() == before
        assert journal.losses == 0


@pytest.mark.parametrize("data", [b"nonsense", b"{}", b'{"state": 5}', b"\xff"])
def test_unreadable_row_hides_no_other(path: Path, data: bytes) -> None:
    """It is named, and stays for the agent to set aside."""
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("UPDATE attachments SET record = ? WHERE ifname = 'eth0'", (data,))
    found = read_rows(path)
    assert [row.id.ifname for row in found.records] == ["eth1"]
    assert [text.partition(":")[0] for text in found.unreadable] == ["net c1 eth0"]
    assert sum(count_rows(path).values()) == 2
    assert len(read_rows(path, unfinished=True).records) == 1


def test_locked_journal_is_an_error(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked"):
            read_rows(path)
        other.execute("ROLLBACK")


def test_damaged_journal_is_an_error(tmp_path: Path) -> None:
    """It is left as it is."""
    path = tmp_path / "journal.db"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        read_rows(path)
    assert list(tmp_path.iterdir()) == [path]


def test_description_has_the_release_and_no_secret() -> None:
    row = record(state=DELETING)
    row.settings = {"kind": "orch", "orch_api_root": "https://user:secret@api", "k8s_auth_token": "secret"}
    assert describe(row) | {"since": None, "tried": None, "attempts": None, "reason": None} == describe(row)
    row.defer("no answer")
    described = describe(row)
    assert (described["reason"], described["attempts"], described["pod"]) == ("no answer", 1, "ns/pod")
    assert "secret" not in str(described)
