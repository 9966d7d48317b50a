"""The journal: what is put comes back, from any thread and process; what cannot be used says so."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from svc.attach.journal import Journal
from svc.attach.record import ADDED, ADDING, DELETING, AttachmentId, Record
from svc.datastore.api import StoreError

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
    journal.put(record(), durable=durable)
    assert journal.get(ID) == record()


def test_record_that_was_never_put_is_none(journal: Journal) -> None:
    assert journal.get(ID) is None
    journal.remove(ID)


def test_row_of_an_earlier_version_is_read(journal: Journal, path: Path) -> None:
    """It knew no profiles: its names are our own. It is written as a row of today."""
    old = record().to_bytes().replace(b',"profile":""', b"")
    assert b"profile" not in old
    with closing(sqlite3.connect(path)) as earlier, earlier:
        earlier.execute("INSERT INTO attachments VALUES ('net', 'c1', 'eth0', 'svc0', ?)", (old,))
    found = journal.get(ID)
    assert found == record()
    assert found is not None
    assert found.profile == ""
    journal.put(found)
    assert journal.all() == [record()]


def test_later_record_replaces_the_earlier(journal: Journal) -> None:
    """Of the same attachment; there is never more than one."""
    journal.put(record(state=ADDING, host_name="svc0"))
    journal.put(record(state=ADDED, host_name="svc1"))
    assert journal.all() == [record(state=ADDED, host_name="svc1")]
    assert journal.with_host_name("svc0") == []


@pytest.mark.parametrize(
    "other", [AttachmentId("net2", "c1", "eth0"), AttachmentId("net", "c2", "eth0"), AttachmentId("net", "c1", "eth1")]
)
def test_each_part_of_the_identity_counts(journal: Journal, other: AttachmentId) -> None:
    journal.put(record())
    journal.put(record(other, DELETING))
    journal.remove(ID)
    assert journal.all() == [record(other, DELETING)]


def test_records_are_found_by_what_they_share(journal: Journal) -> None:
    first, second = record(), record(AttachmentId("net", "c1", "eth1"), host_name="svc1")
    other, foreign = record(AttachmentId("net", "c2", "eth0")), record(AttachmentId("net2", "c1", "eth0"), DELETING)
    for each in (first, second, other, foreign):
        journal.put(each)
    assert journal.of_container("net", "c1") == [first, second]
    assert journal.of_network("net") == [first, second, other]
    assert journal.with_host_name("svc0") == [first, other, foreign]
    assert journal.owed() == [foreign]
    assert len(journal.all()) == 4


def test_names_may_be_anything(journal: Journal) -> None:
    """They come from outside, and are no part of any statement."""
    odd = AttachmentId("net' OR 1=1 --", 'c"1', "é\u20ac")
    journal.put(record())
    journal.put(record(odd))
    assert journal.of_network("net' OR 1=1 --") == [record(odd)]
    journal.remove(odd)
    assert journal.all() == [record()]


def test_records_outlive_the_process_that_put_them(journal: Journal, path: Path) -> None:
    """Without a flush to disk, and however it ends."""
    script = f"""
import os
from pathlib import Path
from svc.attach.journal import Journal
from svc.attach.record import AttachmentId
journal = Journal(Path({str(path)!r}))
(present,) = journal.all()
present.id = AttachmentId("net", "of-the-killed", "eth0")
journal.put(present)
os.kill(os.getpid(), 9)
"""
    journal.put(record())
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
            journal.put(record(mine, ADDING))
            journal.put(record(mine, ADDED), durable=number % 5 == 0)
            assert journal.get(mine) == record(mine, ADDED)
            if number % 2:
                journal.remove(mine)

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
from svc.attach.journal import Journal
from svc.attach.record import AttachmentId, Record
journal = Journal(Path({str(path)!r}))
for durable in (False, False, True, False):
    journal.put(Record(AttachmentId("net", "c1", "eth0"), "added", "", (0, 0), "", {{}}, "", ""), durable=durable)
    os.write(2, b"PUT")
journal.close()
"""
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=fsync,fdatasync,write", sys.executable, "-c", script]
    subprocess.run(command, capture_output=True, check=True)
    _, *puts, _ = trace.read_text().split('"PUT"')
    assert ["sync(" in put for put in puts] == [False, True, False]


def test_unusable_file_says_so(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database, and it is longer than a header of one would be" * 20)
    with pytest.raises(StoreError, match="is not a database") as caught:
        Journal(path).all()
    assert str(path) in caught.value.msg
    assert "move it away" in caught.value.details


def test_directory_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        Journal(tmp_path / "file" / "journal.db")


def test_locked_file_says_so(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has kept it for too long."""
    journal._connection.execute("PRAGMA busy_timeout = 20")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            journal.put(record())
        with pytest.raises(StoreError, match="locked"):
            journal.put(record(), durable=True)
        other.execute("ROLLBACK")
    journal.put(record())
    assert journal.all() == [record()]


def test_closed_journal_says_so(path: Path) -> None:
    journal = Journal(path)
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.put(record())


def test_file_is_its_owners_alone(journal: Journal, path: Path) -> None:
    journal.put(record())
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(modes) >= {"journal.db"}
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes
    assert os.stat(path.parent).st_mode & 0o077 == 0


@pytest.mark.parametrize(("key", "handle"), [(ID, "net.c1"), (AttachmentId("a.b", "c", "eth1"), "a.b.c")])
def test_handle_is_shared_by_the_interfaces_of_a_container(key: AttachmentId, handle: str) -> None:
    assert record(key).handle == handle
