"""Gauges of the journal's rows."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.journal_rows import record
from svc.agent import gauges
from svc.attach import journal as journal_module
from svc.attach import oneshot_calls
from svc.attach.journal import Journal
from svc.attach.record import ADDED, DELETING, AttachmentId
from svc.datastore.api import StoreError

Values = dict[str, float]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        yield journal


def begin(journal: Journal, number: int, state: str) -> None:
    journal.begin(record(AttachmentId("net", f"c{number}", "eth0"), state))


def values(attachments: gauges._Attachments) -> Values:
    """Return the present values, read again."""
    attachments._due = 0.0
    return {" ".join((name, *(text for _, text in labels))): value for name, labels, value in attachments.samples()}


def test_rows_are_counted_by_state(journal: Journal) -> None:
    attachments = gauges._Attachments(journal)
    assert set(values(attachments).values()) == {0}
    for number, state in enumerate((ADDED, ADDED, DELETING)):
        begin(journal, number, state)
    oneshot_calls.count_call(journal)
    oneshot_calls.count_call(journal)
    found = values(attachments)
    assert (found["attachments added"], found["attachments deleting"], found["attachments adding"]) == (2, 1, 0)
    assert (found["pending_releases"], found["oneshot_calls_total"]) == (1, 2)


def test_age_is_that_of_the_oldest_pending_release(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is carried out, the next one counts. Without any, the age is 0. A row of an earlier build has no time."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    for number, since in (1, 900.0), (2, 960.0):
        row = record(AttachmentId("net", f"c{number}", "eth0"), DELETING)
        row.pending = {"since": since}
        journal.begin(row)
    begin(journal, 3, DELETING)
    attachments = gauges._Attachments(journal)
    ages = []
    for row in journal.pending_releases():
        ages.append(values(attachments)["pending_release_oldest_seconds"])
        journal.remove(row)
        now[0] += 5
    assert ages == [100, 45, 10]
    assert values(attachments)["pending_release_oldest_seconds"] == 0
    begin(journal, 4, DELETING)
    now[0] -= 3600  # the clock was set back
    assert values(attachments)["pending_release_oldest_seconds"] == 0
    now[0] -= 60
    assert values(attachments)["pending_release_oldest_seconds"] == 0


def test_unreadable_row_is_left_to_calls(journal: Journal, tmp_path: Path) -> None:
    """Reading metrics must not replace the file, as for a damaged one."""
    begin(journal, 1, ADDED)
    begin(journal, 2, ADDED)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as other, other:
        other.execute("UPDATE attachments SET record = '{\"id\"' WHERE container = 'c1'")
    losses = journal.losses
    assert values(gauges._Attachments(journal))["attachments added"] == 1
    assert journal.losses == losses
    assert not list(tmp_path.glob("*damaged*"))


def test_unusable_journal_keeps_the_last_values(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    attachments = gauges._Attachments(journal)
    begin(journal, 1, ADDED)
    before = values(attachments)

    def fails() -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(journal, "states", fails)
    assert values(attachments) == before


def test_locked_journal_delays_a_reader_for_a_moment(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits for 5 s."""
    attachments = gauges._Attachments(journal)
    begin(journal, 1, ADDED)
    before = values(attachments)

    def locked(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(journal_module, "fetch", locked)
    began = time.monotonic()
    assert values(attachments) == before
    assert time.monotonic() - began < 2


def test_large_journal_is_not_read_for_each_scrape(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading takes at most 0.5 % of the time."""
    clock, reads = [1000.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def slow() -> list[tuple[int, str, None]]:
        reads.append(clock[0])
        clock[0] += 0.01
        return []

    monkeypatch.setattr(journal, "states", slow)
    attachments = gauges._Attachments(journal)
    while clock[0] < 1010:
        list(attachments.samples())
        clock[0] += 0.1
    assert 4 <= len(reads) <= 6
