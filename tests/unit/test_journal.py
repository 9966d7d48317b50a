"""Journal: stored records, generations, migration of older files and refusal of newer ones."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.journal_rows import ID, record
from svc.attach.journal import Journal
from svc.attach.record import ADDED, ADDING, DELETING, AttachmentId, IntentLost, Record
from svc.datastore.api import StoreError
from svc.model.errors import Code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with closing(Journal(path)) as journal:
        yield journal


@pytest.mark.parametrize("durable", [False, True])
def test_record_is_read_as_it_was_written(journal: Journal, durable: bool) -> None:
    """All fields are equal, tuples included."""
    journal.begin(record(), durable=durable)
    assert journal.get(ID) == record()


def test_unknown_record_is_none(journal: Journal) -> None:
    assert journal.get(ID) is None
    journal.remove(record())


def test_row_of_an_earlier_version_is_read(journal: Journal, path: Path) -> None:
    """Rows of earlier versions have no profile, which means the names of svc. An update writes a current row."""
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


def test_row_with_all_fields_is_read(journal: Journal, path: Path) -> None:
    """Earlier builds wrote fields that have their defaults, and no padding."""
    with closing(sqlite3.connect(path)) as earlier, earlier:
        earlier.execute("INSERT INTO attachments VALUES ('net', 'c1', 'eth0', 'svc0', ?, 1)", (orjson.dumps(record()),))
    assert journal.all() == [record()]


@pytest.mark.parametrize(
    "changes",
    [
        {"routes": []}, {"routes": ["10.0.0.0/8"]}, {"facts": {}}, {"facts": {"labels": {}}}, {"result": None}, {"mtu": 0},
        {"queues": 0}, {"queues": 1}, {"addresses": []}, {"unmanaged": True}, {"waits_until": 0.5}, {"profile": "calico"},
    ],
    ids=str,
)  # fmt: skip
def test_row_omits_only_defaults(journal: Journal, changes: dict[str, Any]) -> None:
    """An empty value may differ from the default: without routes, a sandbox gets none; None means the default routes."""
    written = replace(record(), **changes)
    journal.begin(written)
    assert journal.get(ID) == written


def test_row_keeps_its_size_when_the_result_is_added() -> None:
    """A change of the size would rewrite up to six pages of the file."""
    adding = replace(record(), state=ADDING, result=None, addresses=[], host_index=0, peer_index=0)
    assert len(adding.to_bytes()) == len(record().to_bytes())


def test_later_record_replaces_the_earlier(journal: Journal) -> None:
    """An attachment has at most one row."""
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


def test_records_are_found_by_container_network_and_interface(journal: Journal) -> None:
    first, second = record(), record(AttachmentId("net", "c1", "eth1"), host_name="svc1")
    other, foreign = record(AttachmentId("net", "c2", "eth0")), record(AttachmentId("net2", "c1", "eth0"), DELETING)
    for each in (first, second, other, foreign):
        journal.begin(each)
    assert journal.of_container("net", "c1") == [first, second]
    assert journal.of_network("net") == [first, second, other]
    assert journal.with_host_name("svc0") == [first, other, foreign]
    assert journal.pending_releases() == [foreign]
    assert len(journal.all()) == 4


def test_names_may_contain_any_character(journal: Journal) -> None:
    """Names come from outside, and never become part of an SQL statement."""
    odd = AttachmentId("net' OR 1=1 --", 'c"1', "é\u20ac")
    journal.begin(record())
    other = record(odd)
    journal.begin(other)
    assert journal.of_network("net' OR 1=1 --") == [record(odd)]
    journal.remove(other)
    assert journal.all() == [record()]


def test_records_survive_a_killed_process(journal: Journal, path: Path) -> None:
    """No flush to disk is necessary for this."""
    script = f"""
import os
from pathlib import Path
from svc.attach.journal import Journal
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


def test_threads_and_processes_share_the_file(journal: Journal, path: Path) -> None:
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
def test_only_durable_writes_are_flushed(path: Path, tmp_path: Path) -> None:
    """A flush is expensive, so only pending releases cause one."""
    script = f"""
import os
from pathlib import Path
from svc.attach.journal import Journal
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


# generations


def test_update_does_not_restore_a_removed_row(journal: Journal) -> None:
    """The call that removed it has answered that nothing of the container is left."""
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
    """The earlier intent can neither update nor remove it."""
    earlier, later = record(state=ADDING), record(state=ADDING, host_name="svc1")
    journal.begin(earlier)
    journal.begin(later)
    assert later.generation > earlier.generation > 0
    journal.remove(earlier)
    for work in (journal.update, journal.require, journal.record_pending_release):
        with pytest.raises(IntentLost):
            work(earlier)
    journal.require(later)
    assert journal.all() == [record(state=ADDING, host_name="svc1")]


def test_generation_is_read_with_the_record(journal: Journal) -> None:
    """Recovery changes only the row that it has read."""
    one = record()
    journal.begin(one)
    found = journal.get(ID)
    assert found is not None
    assert found.generation == one.generation
    assert b"generation" not in found.to_bytes()


def test_generations_of_processes_differ(journal: Journal, path: Path) -> None:
    """They also differ after the file was closed and opened again."""
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


def test_pending_release_is_recorded_without_a_row(journal: Journal) -> None:
    """Addresses of an attachment whose row was removed must still be released."""
    one = record(state=ADDING)
    journal.begin(one)
    journal.remove(one)
    journal.record_pending_release(one)
    assert journal.pending_releases() == [record(state=DELETING)]


def test_settled_rows_are_left_out(journal: Journal, path: Path) -> None:
    """Among thousands of rows, few are of calls that run or were interrupted. A row that cannot be read is set aside."""
    rows = [record(AttachmentId("net", state, "eth0"), state) for state in (ADDING, ADDED, DELETING, "bad")]
    for each in rows:
        journal.begin(each)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attachments SET record = 'not JSON' WHERE container = 'bad'")
    assert [each.state for each in journal.unsettled()] == [ADDING, DELETING]
    assert journal.losses == 2  # the new file, and the bad row


# versions of the file


def create_unversioned(path: Path, *rows: Record, column: str = "") -> None:
    """Create a journal as the first releases did."""
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


def test_pending_release_has_its_age_and_the_last_reason(journal: Journal) -> None:
    """Its age begins with the first failure. The text of the reason is bounded."""
    one = record()
    journal.begin(one)
    assert one.pending is None
    began = time.time()
    journal.record_pending_release(one, "etcd does not answer")
    (read,) = journal.pending_releases()
    assert read.pending is not None
    since = read.pending["since"]
    assert began <= since <= time.time()
    assert (read.pending["attempts"], read.pending["reason"]) == (1, "etcd does not answer")
    journal.record_pending_release(read, "x" * 10_000)
    (again,) = journal.pending_releases()
    assert again.pending is not None
    assert (again.pending["since"], again.pending["attempts"], len(again.pending["reason"])) == (since, 2, 500)
    assert again.pending["tried"] >= since


@pytest.mark.parametrize("column", ["", ", extra TEXT"], ids=["as it was", "with an extra column"])
def test_file_without_a_version_is_migrated(path: Path, column: str) -> None:
    """It keeps all rows, and each gets its own generation."""
    rows = [record(AttachmentId("net", f"c{number}", "eth0")) for number in range(3)]
    create_unversioned(path, *rows, column=column)
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
    create_unversioned(path, record())
    together = threading.Barrier(6)

    def read_all() -> list[Record]:
        together.wait(20)
        with closing(Journal(path)) as journal:
            return journal.all()

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(read_all) for _ in range(6)]:
            assert done.result(30) == [record()]


@pytest.mark.parametrize("named", [True, False], ids=["which names its release", "which names none"])
def test_file_of_a_newer_version_is_refused_and_not_changed(path: Path, named: bool) -> None:
    """The error says which release to install."""
    Journal(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 3")
        connection.execute("UPDATE about SET value = '7.1.0' WHERE name = 'release'" if named else "DROP TABLE about")
    with pytest.raises(StoreError, match="has schema version 3, this release reads up to 2") as caught:
        Journal(path)
    assert ("install svc 7.1.0 or newer" if named else "install the release of svc that wrote it") in caught.value.details
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


def test_closed_journal_raises_an_error(path: Path) -> None:
    journal = Journal(path)
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.begin(record())


def test_only_the_owner_has_access_to_the_file(journal: Journal, path: Path) -> None:
    journal.begin(record())
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(modes) >= {"journal.db"}
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes
    assert os.stat(path.parent).st_mode & 0o077 == 0


@pytest.mark.parametrize(("key", "handle"), [(ID, "net.c1"), (AttachmentId("a.b", "c", "eth1"), "a.b.c")])
def test_handle_is_shared_by_the_interfaces_of_a_container(key: AttachmentId, handle: str) -> None:
    assert record(key).handle == handle


def test_change_of_settings_keeps_the_other_fields(journal: Journal) -> None:
    """Another call has changed the row since the record was read."""
    written = record()
    journal.begin(written)
    read = journal.get(ID)
    assert read is not None
    journal.record_pending_release(written)
    settings = {"kind": "etcdv3", "etcd_endpoints": "http://[::1]:2379,http://ü:2379"}
    journal.change_settings(read, settings)
    found = journal.get(ID)
    assert found is not None
    assert (found.state, found.settings, found.generation) == (DELETING, settings, written.generation)
    assert read.settings == settings
    found.settings = written.settings
    assert found == written


def test_pending_release_keeps_changed_settings(journal: Journal) -> None:
    """A release by the former settings fails after the row has got other ones."""
    read = record()
    journal.begin(read)
    moved = journal.get(ID)
    assert moved is not None
    settings = {"kind": "etcdv3", "etcd_endpoints": "http://new"}
    journal.change_settings(moved, settings)
    read.addresses = ["10.0.0.1"]
    journal.record_pending_release(read)
    found = journal.get(ID)
    assert found is not None
    assert (found.state, found.settings, found.addresses) == (DELETING, settings, ["10.0.0.1"])
    found.settings = read.settings
    assert found == read


def test_change_of_settings_does_not_restore_a_removed_row(journal: Journal) -> None:
    written = record()
    journal.begin(written)
    journal.remove(written)
    journal.change_settings(written, {"kind": "embedded"})
    assert journal.all() == []


def test_release_that_another_call_has_completed_is_not_recorded_again(journal: Journal) -> None:
    first, second = record(), record()
    journal.record_pending_release(first)
    second.generation, second.state = first.generation, first.state
    journal.remove(first)
    journal.record_pending_release(second)
    assert journal.all() == []


def test_interfaces_are_those_of_the_boot(journal: Journal, path: Path) -> None:
    """An attachment whose pair is being made has its name, and no index yet. Rows of earlier boots and bad rows have none."""
    for name, state, boot in (("a", ADDED, "boot"), ("b", ADDING, "boot"), ("c", ADDED, "earlier"), ("d", ADDED, "boot")):
        row = record(AttachmentId("net", name, "eth0"), state, host_name=f"svc{name}")
        row.boot_id = boot
        journal.begin(row)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attachments SET record = 'not JSON' WHERE container = 'd'")
    assert journal.interfaces("boot") == {("svca", 7), ("svcb", 0)}
