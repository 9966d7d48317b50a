"""The embedded store in several concurrent processes, some of which are killed."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from svc.datastore import sqlite
from svc.datastore.api import Create, Delete, Entry, StoreError
from svc.datastore.embedded import EmbeddedStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, HandleQuery, ResourceKey
from svc.model.resource import Resource

CHECKOUT = Path(__file__).parents[2]
COUNTED = "10.0.0.0/26"
COUNTER = HandleKey("counter")
CLUSTER = ResourceKey("ClusterInformation", "default")

PROGRAM = """
import sys
from pathlib import Path
from svc.datastore.api import Conflict, Create, StoreError, Update
from svc.datastore.embedded import EmbeddedStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, ResourceKey
print("ready", flush=True)
sys.stdin.readline()
store = EmbeddedStore(Path(sys.argv[1]))

def count():
    entry = store.get(HandleKey("counter"))
    wanted = entry.value.changed("10.0.0.0/26", 1)
    store.write([Update(entry.key, wanted, entry.revision), Create(HandleKey(f"done.{wanted.blocks['10.0.0.0/26']}"), wanted)])
    return wanted.blocks["10.0.0.0/26"]

"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[EmbeddedStore]:
    with closing(EmbeddedStore(path)) as opened:
        yield opened


@contextmanager
def processes(number: int, path: Path, program: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start processes that have imported all modules and begin at the same time."""
    command = [sys.executable, "-c", PROGRAM + program, str(path)]
    with ExitStack() as opened:
        started = [
            opened.enter_context(
                subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            )
            for _ in range(number)
        ]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
        yield started


def output(process: "subprocess.Popen[str]") -> str:
    """Return the remaining output of a process that must end without an error."""
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return printed


def counted(store: EmbeddedStore) -> int:
    value = store.get(COUNTER).value
    assert isinstance(value, Handle)
    return value.blocks.get(COUNTED, 0)


def write_one(store: EmbeddedStore, name: str = "h") -> Entry:
    (entry,) = store.write([Create(HandleKey(name), Handle({COUNTED: 1}))])
    assert entry is not None
    return entry


def test_processes_create_one_store(path: Path) -> None:
    """Eight processes read the same identity and leave no temporary files. The last session removes the files of SQLite. If two
    processes end at the same time, the next session removes them."""
    with processes(
        8, path, "print(store.get(ResourceKey('ClusterInformation', 'default')).value.spec['clusterGUID'])"
    ) as running:
        identities = {output(process) for process in running}
    with closing(EmbeddedStore(path)) as store:
        entry = store.get(CLUSTER).value
    assert isinstance(entry, Resource)
    assert identities == {entry.spec["clusterGUID"] + "\n"}
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


def test_processes_lose_no_update(path: Path, store: EmbeddedStore) -> None:
    """Four processes count in one key while this process reads it."""
    store.write([Create(COUNTER, Handle({}))])
    program = """
done = 0
while done < 100:
    try:
        count()
        done += 1
    except Conflict:
        pass
"""
    with processes(4, path, program) as running:
        seen = [counted(store)]
        while any(process.poll() is None for process in running):
            seen.append(counted(store))
        for process in running:
            output(process)
    assert seen == sorted(seen)
    assert counted(store) == 400
    assert len(store.list(HandleQuery())) == 401


def test_killed_writer_loses_nothing_committed(path: Path, store: EmbeddedStore) -> None:
    """Each reported transaction is stored completely, and the store still works."""
    store.write([Create(COUNTER, Handle({}))])
    for kills in range(1, 4):
        with processes(1, path, "while True: print(count(), flush=True)") as (running,):
            assert running.stdout is not None
            reported = [int(running.stdout.readline()) for _ in range(50 * kills)]
            os.kill(running.pid, signal.SIGKILL)
            reported += [int(line) for line in running.stdout.read().splitlines() if line]
            running.wait()
        assert counted(store) in (reported[-1], reported[-1] + 1)
        assert len(store.list(HandleQuery())) == counted(store) + 1
        with closing(EmbeddedStore(path)) as again:
            assert again._writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert counted(again) == counted(store)
            write_one(again, f"after.{kills}")
            again.write([Delete(HandleKey(f"after.{kills}"))])


def test_writers_wait_for_another_process(path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers do not wait, and a writer waits for a limited time."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    with closing(EmbeddedStore(path)) as first, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is locked") as caught:
            write_one(first)
        assert f"process {os.getpid()} (" in caught.value.details
        assert first.get(CLUSTER) == store.get(CLUSTER)
        writer = threading.Thread(target=write_one, args=(store,))
        writer.start()
        other.execute("ROLLBACK")
        writer.join()
    assert store.get(HandleKey("h"))
