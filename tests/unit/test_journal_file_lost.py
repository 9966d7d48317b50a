"""Journal file that is removed or replaced while it is open: its content is written back."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.journal_rows import record
from svc.attach.journal import Journal
from svc.attach.record import DELETING, AttachmentId
from svc.datastore.api import StoreError


def remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def remove_database(path: Path) -> None:
    path.unlink()


def remove_log(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()


def replace_by_another(path: Path) -> None:
    remove(path)
    with closing(Journal(path)) as other:
        other.put_note("whose", "another")


def replace_by_directory(path: Path) -> None:
    remove(path)
    path.mkdir()


LOSSES = (remove, remove_database, remove_log, replace_by_another, replace_by_directory)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with closing(Journal(path)) as journal:
        yield journal


def identity(number: int) -> AttachmentId:
    return AttachmentId("net", f"c{number}", "eth0")


@pytest.mark.parametrize("lose", LOSSES)
def test_content_is_written_back(journal: Journal, path: Path, lose: Callable[[Path], None]) -> None:
    """This includes what was written after the loss. No row counts as lost."""
    first, second, third = (record(identity(number)) for number in range(3))
    journal.begin(first)
    journal.put_note("whose", "ours")
    lose(path)
    journal.begin(second)
    journal.record_pending_release(first)
    losses, changes = journal.losses, journal.changes
    journal.restore_file()
    assert (journal.losses, journal.changes) == (losses, changes)
    assert path.stat().st_mode & 0o777 == 0o600
    journal.require(first)
    journal.begin(third)
    with closing(Journal(path)) as other:
        assert {each.id for each in other.all()} == {identity(number) for number in range(3)}
        assert [each.generation for each in other.pending_releases()] == [first.generation]
        assert other.pending_releases()[0].state == DELETING
        assert other.note("whose") == "ours"
        later = record(identity(9))
        other.begin(later)
    assert later.generation not in {each.generation for each in (first, second, third)}
    assert len({each.generation for each in journal.all()}) == 4


def test_pending_release_is_not_recorded_in_a_removed_file(journal: Journal, path: Path) -> None:
    one = record()
    journal.begin(one)
    remove(path)
    journal.record_pending_release(one)
    with closing(Journal(path)) as other:
        assert [each.id for each in other.pending_releases()] == [one.id]


def test_file_that_replaced_the_journal_is_kept(journal: Journal, path: Path) -> None:
    replace_by_another(path)
    journal.restore_file()
    (kept,) = (file for file in path.parent.iterdir() if re.fullmatch(r"journal\.db\.damaged-[0-9T.]+Z", file.name))
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("SELECT value FROM about WHERE name = 'whose'").fetchone() == ("another",)


def test_existing_file_is_not_written_again(journal: Journal, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """This holds also while another process opens and closes it."""
    before = path.stat().st_ino
    for _ in range(2):
        with closing(Journal(path)) as other:
            other.begin(record())
        journal.restore_file()
    assert path.stat().st_ino == before
    assert not caplog.messages


def test_file_that_cannot_be_written_back_stays_in_use(journal: Journal, path: Path) -> None:
    journal.begin(record())
    path.parent.rename(path.parent.with_name("moved"))
    with pytest.raises(StoreError):
        journal.restore_file()
    assert journal.all() == [record()]
    path.parent.with_name("moved").rename(path.parent)
    journal.restore_file()
    assert journal.all() == [record()]
