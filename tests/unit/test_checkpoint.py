"""Checkpoints beside the work: what was committed gets into the file itself, and nothing about it may fail a commit."""

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from svc.datastore import checkpoint, sqlite
from svc.datastore.checkpoint import WalCheckpointer


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "COMMITS", 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.db"
    sqlite.create(path, _fill)
    return path


def _fill(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE t (n INTEGER)")


def commit(connection: sqlite3.Connection, checkpoints: WalCheckpointer, times: int) -> None:
    for number in range(times):
        connection.execute("INSERT INTO t VALUES (?)", (number,))
        checkpoints.committed()


def in_file(path: Path) -> int:
    """Rows in the file alone, without the log beside it."""
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    with closing(sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_was_committed_gets_into_the_file(path: Path) -> None:
    checkpoints = WalCheckpointer(path)
    with closing(sqlite.connect(path)) as connection:
        commit(connection, checkpoints, 2)
        assert in_file(path) == 0
        assert "checkpoints" not in [thread.name for thread in threading.enumerate()]
        for rows in (3, 6, 9):  # again and again
            commit(connection, checkpoints, 1 if rows == 3 else 3)
            eventually(lambda rows=rows: in_file(path) == rows)  # type: ignore[misc]
        checkpoints.close()
        assert "checkpoints" not in [thread.name for thread in threading.enumerate()]


def test_a_reader_and_a_writer_under_way_stop_nobody(path: Path) -> None:
    checkpoints = WalCheckpointer(path)
    with closing(sqlite.connect(path)) as connection, closing(sqlite.connect(path)) as other:
        commit(connection, checkpoints, 1)
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO t VALUES (100)")
        checkpoints.committed()
        checkpoints.committed()
        eventually(lambda: in_file(path) == 1)
        other.execute("COMMIT")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        checkpoints.close()


def test_a_file_that_is_gone_is_logged_and_tried_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = WalCheckpointer(path)
    aside = path.with_name("aside.db")
    with closing(sqlite.connect(path)) as connection, caplog.at_level(logging.WARNING):
        path.rename(aside)
        commit(connection, checkpoints, 3)
        eventually(lambda: "no checkpoint of" in caplog.text)
        aside.rename(path)
        commit(connection, checkpoints, 3)
        eventually(lambda: in_file(path) == 6)
        checkpoints.close()


def test_a_thread_that_the_system_refuses_fails_no_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next commit has another try."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    checkpoints = WalCheckpointer(path)
    with closing(sqlite.connect(path)) as connection:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            commit(connection, checkpoints, 3)
        commit(connection, checkpoints, 1)
        eventually(lambda: in_file(path) == 4)
        checkpoints.close()


def test_the_log_is_cut_off_after_a_long_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it reads, the log only grows; then it is short again, also without another commit."""
    monkeypatch.setattr(checkpoint, "LONGEST_LOG", 1 << 20)
    monkeypatch.setattr(checkpoint, "AGAIN_SECONDS", 0.05)
    path = tmp_path / "file.db"
    sqlite.create(path, _fill_blobs)
    log = tmp_path / "file.db-wal"
    checkpoints = checkpoint.WalCheckpointer(path)
    with closing(sqlite.connect(path)) as writer, closing(sqlite.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM t").fetchone()
        for _ in range(200):
            writer.execute("INSERT INTO t VALUES (zeroblob(8192))")
            checkpoints.committed()
        assert log.stat().st_size > checkpoint.LONGEST_LOG
        reader.execute("COMMIT")
        until = time.monotonic() + 20
        while log.stat().st_size > checkpoint.LONGEST_LOG:
            assert time.monotonic() < until
            time.sleep(0.02)
        checkpoints.close()


def _fill_blobs(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE t (x BLOB)")
