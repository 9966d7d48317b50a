"""The journal: what is put comes back, from any thread and process; what cannot be used says so."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from svc.attach.journal import IntentLost, Journal
from svc.attach.record import ADDED, ADDING, DELETING, AttachmentId, Record
from svc.datastore import sqlite
from svc.datastore.api import StoreError
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import Code

ID = AttachmentId("net", "c1", "eth0")


def record(key: AttachmentId = ID, state: str = ADDED, host_name: str = "svc0") -> Record:
    return Record(
        id=key, state=state, boot_id="boot", sandbox=(4, 2**40), node="node1", settings={"kind": "embedded"},
        host_name=host_name, mac="02:00:00:00:00:aa", pod="pod", namespace="ns", mtu=1400, queues=2,
        allow_ip_forwarding=True, addresses=["10.65.0.7"], host_index=7, peer_index=2, result={"cniVersion": "1.1.0"},
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with closing(Journal(path)) as journal:
        yield journal


@pytest.mark.parametrize("durable", [False, True])
def test_record_comes_back_as_it_was_put(journal: Journal, durable: bool) -> None:
    """Every field of it, tuples included."""
    journal.begin(record(), durable=durable)
    assert journal.get(ID) == record()


def test_record_that_was_never_put_is_none(journal: Journal) -> None:
    assert journal.get(ID) is None
    journal.remove(record())


def test_row_of_an_earlier_version_is_read(journal: Journal, path: Path) -> None:
    """It knew no profiles: its names are our own. It is written as a row of today."""
    old = record().to_bytes().replace(b',"profile":""', b"")
    assert b"profile" not in old
    with closing(sqlite3.connect(path)) as earlier, earlier:
        earlier.execute("INSERT INTO attachments VALUES ('net', 'c1', 'eth0', 'svc0', ?, 1)", (old,))
    found = journal.get(ID)
    assert found == record()
    assert found is not None
    assert found.profile == ""
    journal.update(found)
    assert journal.all() == [record()]


def test_later_record_replaces_the_earlier(journal: Journal) -> None:
    """Of the same attachment; there is never more than one."""
    journal.begin(record(state=ADDING, host_name="svc0"))
    journal.begin(record(state=ADDED, host_name="svc1"))
    assert journal.all() == [record(state=ADDED, host_name="svc1")]
    assert journal.with_host_name("svc0") == []


@pytest.mark.parametrize(
    "other", [AttachmentId("net2", "c1", "eth0"), AttachmentId("net", "c2", "eth0"), AttachmentId("net", "c1", "eth1")]
)
def test_each_part_of_the_identity_counts(journal: Journal, other: AttachmentId) -> None:
    first = record()
    journal.begin(first)
    journal.begin(record(other, DELETING))
    journal.remove(first)
    assert journal.all() == [record(other, DELETING)]


def test_records_are_found_by_what_they_share(journal: Journal) -> None:
    first, second = record(), record(AttachmentId("net", "c1", "eth1"), host_name="svc1")
    other, foreign = record(AttachmentId("net", "c2", "eth0")), record(AttachmentId("net2", "c1", "eth0"), DELETING)
    for each in (first, second, other, foreign):
        journal.begin(each)
    assert journal.of_container("net", "c1") == [first, second]
    assert journal.of_network("net") == [first, second, other]
    assert journal.with_host_name("svc0") == [first, other, foreign]
    assert journal.owed() == [foreign]
    assert len(journal.all()) == 4


def test_names_may_be_anything(journal: Journal) -> None:
    """They come from outside, and are no part of any statement."""
    odd = AttachmentId("net' OR 1=1 --", 'c"1', "é\u20ac")
    journal.begin(record())
    other = record(odd)
    journal.begin(other)
    assert journal.of_network("net' OR 1=1 --") == [record(odd)]
    journal.remove(other)
    assert journal.all() == [record()]


def test_records_outlive_the_process_that_put_them(journal: Journal, path: Path) -> None:
    """Without a flush to disk, and however it ends."""
    script = f"""
import os
from pathlib import Path
from svc.attach.journal import IntentLost, Journal
from svc.attach.record import AttachmentId
journal = Journal(Path({str(path)!r}))
(present,) = journal.all()
present.id = AttachmentId("net", "of-the-killed", "eth0")
journal.begin(present)
os.kill(os.getpid(), 9)
"""
    journal.begin(record())
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    assert [each.id.container_id for each in journal.all()] == ["c1", "of-the-killed"]


def test_threads_and_processes_share_it(journal: Journal, path: Path) -> None:
    """Two journals on one file stand for two processes."""
    together = threading.Barrier(8)

    def work(journal: Journal, worker: int) -> None:
        together.wait(20)
        for number in range(25):
            mine = AttachmentId("net", f"c{worker}-{number}", "eth0")
            one = record(mine, ADDING)
            journal.begin(one)
            one.state = ADDED
            journal.update(one, durable=number % 5 == 0)
            assert journal.get(mine) == record(mine, ADDED)
            if number % 2:
                journal.remove(one)

    with closing(Journal(path)) as other, ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, (journal, other)[worker % 2], worker) for worker in range(8)]:
            done.result(60)
    assert len(journal.all()) == 8 * 13


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to see what is flushed")
def test_only_a_durable_put_is_flushed(path: Path, tmp_path: Path) -> None:
    """A flush is what costs, so only what is owed pays for it."""
    script = f"""
import os
from pathlib import Path
from svc.attach.journal import IntentLost, Journal
from svc.attach.record import AttachmentId, Record
journal = Journal(Path({str(path)!r}))
for durable in (False, False, True, False):
    journal.begin(Record(AttachmentId("net", "c1", "eth0"), "added", "", (0, 0), "", {{}}, "", ""), durable=durable)
    os.write(2, b"PUT")
journal.close()
"""
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=fsync,fdatasync,write", sys.executable, "-c", script]
    subprocess.run(command, capture_output=True, check=True)
    _, *puts, _ = trace.read_text().split('"PUT"')
    assert ["sync(" in put for put in puts] == [False, True, False]


# damage


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
    "garbage": lambda path: path.write_bytes(b"this is no database, and it is longer than a header of one would be" * 20),
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
        assert re.match(rf"process {os.getpid()} \(.+\) has locked it", refused.value.details)
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


# generations


def test_update_after_the_row_is_gone_creates_none(journal: Journal) -> None:
    """Who removed it has answered that nothing of the container is left."""
    one = record(state=ADDING)
    journal.begin(one)
    journal.require(one)
    journal.remove(one)
    for work in (journal.update, journal.require):
        with pytest.raises(IntentLost, match="'c1' was deleted or added again") as caught:
            work(one)
        assert caught.value.code == Code.UNKNOWN_CONTAINER
    assert journal.all() == []


def test_row_of_a_later_intent_is_not_touched(journal: Journal) -> None:
    """Neither by an update nor by a removal of the one before."""
    earlier, later = record(state=ADDING), record(state=ADDING, host_name="svc1")
    journal.begin(earlier)
    journal.begin(later)
    assert later.generation > earlier.generation > 0
    journal.remove(earlier)
    for work in (journal.update, journal.require, journal.owe):
        with pytest.raises(IntentLost):
            work(earlier)
    journal.require(later)
    assert journal.all() == [record(state=ADDING, host_name="svc1")]


def test_generation_comes_back_with_the_record(journal: Journal) -> None:
    """A recovery after a start works on the row that it has read, and on no other."""
    one = record()
    journal.begin(one)
    found = journal.get(ID)
    assert found is not None
    assert found.generation == one.generation
    assert b"generation" not in found.to_bytes()


def test_generations_of_processes_are_never_the_same(journal: Journal, path: Path) -> None:
    """Nor after the file was closed and opened again."""
    seen = set()
    with closing(Journal(path)) as other:
        for each in (journal, other, journal):
            one = record()
            each.begin(one)
            seen.add(one.generation)
    with closing(Journal(path)) as again:
        one = record()
        again.begin(one)
        seen.add(one.generation)
    assert len(seen) == 4


def test_pending_release_is_noted_without_a_row(journal: Journal) -> None:
    """What was taken for an attachment whose row is gone is still to be released."""
    one = record(state=ADDING)
    journal.begin(one)
    journal.remove(one)
    journal.owe(one)
    assert journal.owed() == [record(state=DELETING)]


# versions of the file


def unversioned(path: Path, *rows: Record, column: str = "") -> None:
    """As the first releases made it."""
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE attachments (network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL, "
            f"host_name TEXT NOT NULL, record BLOB NOT NULL{column}, PRIMARY KEY (network, container, ifname)) WITHOUT ROWID"
        )
        connection.execute("CREATE INDEX by_host_name ON attachments (host_name)")
        for row in rows:
            values = (row.id.network, row.id.container_id, row.id.ifname, row.host_name, row.to_bytes())
            connection.execute(
                "INSERT INTO attachments (network, container, ifname, host_name, record) VALUES (?, ?, ?, ?, ?)", values
            )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


@pytest.mark.parametrize("column", ["", ", extra TEXT"], ids=["as it was", "with an extra column"])
def test_file_without_a_version_is_migrated(path: Path, column: str) -> None:
    """All rows of it, and each has a generation of its own."""
    rows = [record(AttachmentId("net", f"c{number}", "eth0")) for number in range(3)]
    unversioned(path, *rows, column=column)
    for _ in range(2):
        with closing(Journal(path)) as journal:
            assert journal.all() == rows
            assert len({each.generation for each in journal.all()} - {0}) == 3
            new = record(AttachmentId("net", "new", "eth0"))
            journal.begin(new)
            assert new.generation not in {each.generation for each in rows}
            journal.remove(new)
            rows = journal.all()


def test_processes_migrate_a_file_once(path: Path) -> None:
    unversioned(path, record())
    together = threading.Barrier(6)

    def opened() -> list[Record]:
        together.wait(20)
        with closing(Journal(path)) as journal:
            return journal.all()

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(opened) for _ in range(6)]:
            assert done.result(30) == [record()]


@pytest.mark.parametrize("named", [True, False], ids=["which names its release", "which names none"])
def test_file_of_a_newer_version_is_refused_as_it_is(path: Path, named: bool) -> None:
    """And the error says what to install."""
    Journal(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 3")
        connection.execute("UPDATE about SET value = '7.1.0' WHERE name = 'release'" if named else "DROP TABLE about")
    with pytest.raises(StoreError, match="has schema version 3, this release reads up to 2") as caught:
        Journal(path)
    assert ("install svc 7.1.0 or newer" if named else "install the release of svc that wrote it") in caught.value.details
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


def test_closed_journal_says_so(path: Path) -> None:
    journal = Journal(path)
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.begin(record())


def test_file_is_its_owners_alone(journal: Journal, path: Path) -> None:
    journal.begin(record())
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(modes) >= {"journal.db"}
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes
    assert os.stat(path.parent).st_mode & 0o077 == 0


@pytest.mark.parametrize(("key", "handle"), [(ID, "net.c1"), (AttachmentId("a.b", "c", "eth1"), "a.b.c")])
def test_handle_is_shared_by_the_interfaces_of_a_container(key: AttachmentId, handle: str) -> None:
    assert record(key).handle == handle
