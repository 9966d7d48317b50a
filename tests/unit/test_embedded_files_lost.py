"""Files beside an open store that are removed: no process makes others, and the content is written back."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.embedded_fixtures import path, store
from svc.datastore.api import Create, StoreError
from svc.datastore.embedded import EmbeddedStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, HandleQuery

__all__ = ["path", "store"]

FOREIGN = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('CREATE TABLE foreign_table (x)'); c.close()"
OPEN = (
    "import sys; from pathlib import Path; from svc.datastore.embedded import EmbeddedStore; EmbeddedStore(Path(sys.argv[1]))"
)


def add(store: EmbeddedStore, name: str) -> None:
    store.write([Create(HandleKey(name), Handle({"10.0.0.0/26": 1}))])


def names(store: EmbeddedStore) -> set[str]:
    return {entry.key.handle for entry in store.list(HandleQuery()) if isinstance(entry.key, HandleKey)}


def kept(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.replaced-*"))


def remove(path: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        os.unlink(f"{path}{suffix}")


LOSSES = (("-wal",), ("-shm",), ("-wal", "-shm"))


@pytest.mark.parametrize("lost", LOSSES, ids="".join)
def test_content_is_written_back(
    path: Path, store: EmbeddedStore, lost: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """This includes what was written after the loss. The session and others then use the same files."""
    add(store, "before")
    revision = store.position()
    assert store.is_current()
    remove(path, *lost)
    assert not store.is_current()
    add(store, "after")
    assert store.write_back()
    assert store.is_current()
    assert "files beside" in caplog.text
    assert store.position() != revision
    add(store, "later")
    with closing(EmbeddedStore(path)) as other:
        assert names(other) == {"before", "after", "later"}
        add(other, "other")
    assert names(store) == {"before", "after", "later", "other"}
    assert [file.stat().st_mode & 0o777 for file in path.parent.iterdir()].count(0o600) == len(list(path.parent.iterdir()))


@pytest.mark.parametrize("lost", LOSSES, ids="".join)
@pytest.mark.parametrize("is_own", [True, False], ids=["thread", "process"])
def test_others_are_refused_until_then(path: Path, store: EmbeddedStore, lost: tuple[str, ...], *, is_own: bool) -> None:
    """Otherwise they would make files of their own beside it, and neither would see what the other writes."""
    add(store, "before")
    remove(path, *lost)
    if is_own:
        with pytest.raises(StoreError) as refusal:
            EmbeddedStore(path)
        text = str(refusal.value)
    else:
        text = subprocess.run([sys.executable, "-c", OPEN, path], capture_output=True, text=True, check=False).stderr
    assert re.search(rf"store\.db{lost[0]}' was removed while process {os.getpid()} \(.*\) has the store open", text)
    assert "writes its files back" in text
    assert {file.name for file in path.parent.iterdir()} == {"store.db", "store.db-wal", "store.db-shm"} - {
        f"store.db{suffix}" for suffix in lost
    }


def test_log_of_another_program_is_kept(path: Path, store: EmbeddedStore) -> None:
    """What another program has written in the meantime is not mixed with the content."""
    add(store, "before")
    remove(path, "-wal", "-shm")
    subprocess.run([sys.executable, "-c", FOREIGN, path], check=True)
    Path(f"{path}-wal").write_bytes(b"foreign")
    assert store.write_back()
    (database, log) = (file for file in kept(path) if not file.name.endswith("-shm"))
    assert (log.name, log.read_bytes()) == (f"{database.name}-wal", b"foreign")
    with closing(EmbeddedStore(path)) as opened:
        assert names(opened) == {"before"}
        assert not opened._writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'foreign_table'").fetchall()


def replace(path: Path) -> None:
    path.unlink()
    EmbeddedStore(path.with_name("new.db")).close()
    path.with_name("new.db").rename(path)


@pytest.mark.parametrize("lose", [Path.unlink, replace], ids=["removed", "replaced"])
def test_replaced_database_is_not_written_over(path: Path, store: EmbeddedStore, lose: Callable[[Path], None]) -> None:
    """A new session opens what is there."""
    add(store, "before")
    lose(path)
    assert not store.is_current()
    assert not store.write_back()
    assert not kept(path)


def test_database_that_was_overwritten_is_left(path: Path, store: EmbeddedStore) -> None:
    """An operator who copies a file over it while it is open has mixed both. The mixture is not taken for the content."""
    for number in range(100):  # so few that no checkpoint begins
        add(store, f"h{number}")
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(copy)) as other:
        store._writer.backup(other)
    for number in range(100, 200):
        add(store, f"h{number}")
    store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store._writer.execute("PRAGMA shrink_memory")  # it would have intact pages in memory
    damaged = bytearray(copy.read_bytes())
    damaged[8192:] = os.urandom(len(damaged) - 8192)
    remove(path, "-wal", "-shm")
    with path.open("r+b") as file:
        file.write(damaged)
        file.truncate()
    with pytest.raises(StoreError, match="damaged"):
        store.write_back()
    assert path.read_bytes() == damaged
    assert not [file for file in path.parent.iterdir() if file.name.startswith(".")]


def test_full_disk_leaves_the_session_as_it_is(path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt succeeds."""
    add(store, "before")
    remove(path, "-wal")

    def full(_: Path) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr("svc.datastore.sqlite.sync", full)
        with pytest.raises(StoreError, match="No space left"):
            store.write_back()
    add(store, "between")
    assert names(store) == {"before", "between"}
    assert store.write_back()
    assert names(store) == {"before", "between"}


def test_nothing_is_written_to_the_former_file(path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new file cannot be opened, a call in flight fails, and another session has everything that was written."""
    add(store, "before")
    remove(path, "-wal")

    def refuse(_: EmbeddedStore) -> None:
        raise OSError(24, os.strerror(24))

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedStore, "_open", refuse)
        with pytest.raises(StoreError):
            store.write_back()
    with pytest.raises(StoreError, match="closed database"):
        add(store, "lost")
    assert not store.is_current()
    assert not store.write_back()
    with closing(EmbeddedStore(path)) as other:
        assert names(other) == {"before"}


def test_no_write_and_no_read_fails(path: Path, store: EmbeddedStore) -> None:
    """Threads write and read while files are lost and written back again and again."""
    over, written = threading.Event(), [0, 0]
    failures: list[Exception] = []

    def write(thread: int) -> None:
        while not over.is_set():
            try:
                add(store, f"{thread}-{written[thread]}")
                written[thread] += 1
                assert len(names(store)) >= written[thread]
            except Exception as failure:
                failures.append(failure)
                return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        remove(path, "-wal", "-shm")
        assert store.write_back()
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert min(written) > 0
    with closing(EmbeddedStore(path)) as other:
        assert names(other) == {f"{thread}-{number}" for thread in range(2) for number in range(written[thread])}


def test_kill_after_write_back_loses_nothing(path: Path) -> None:
    """A process that is killed then has left everything in the new files."""
    program = (
        "import os, sys; from pathlib import Path; from svc.datastore.embedded import EmbeddedStore\n"
        "from svc.datastore.api import Create; from svc.model.ipam import Handle; from svc.model.keys import HandleKey\n"
        "path = Path(sys.argv[1]); store = EmbeddedStore(path)\n"
        "add = lambda name: store.write([Create(HandleKey(name), Handle({'10.0.0.0/26': 1}))])\n"
        "add('before'); os.unlink(f'{path}-wal'); store.write_back(); add('after'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -9
    with closing(EmbeddedStore(path)) as opened:
        assert names(opened) == {"before", "after"}


def test_read_only_copy_opens(path: Path, tmp_path: Path) -> None:
    """A copy of the database alone has no files beside it, and no other process has it open."""
    with closing(EmbeddedStore(path)) as store:
        add(store, "before")
    shutil.copy(path, tmp_path / "copy.db")
    with closing(EmbeddedStore(tmp_path / "copy.db")) as copy:
        assert names(copy) == {"before"}
        assert copy.is_current()
