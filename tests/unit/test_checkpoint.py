"""Checkpoints in the background: they copy commits into the database file, and their errors do not fail a commit."""

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
def three_commits_for_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
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


def count_rows(path: Path) -> int:
    """Return the number of rows in the database file, without its log."""
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    with closing(sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_committed_rows_get_into_the_file(path: Path) -> None:
    checkpoints = WalCheckpointer(path)
    with closing(sqlite.connect(path)) as connection:
        commit(connection, checkpoints, 2)
        assert count_rows(path) == 0
        assert "checkpoints" not in [thread.name for thread in threading.enumerate()]
        for rows in (3, 6, 9):  # three checkpoints
            commit(connection, checkpoints, 1 if rows == 3 else 3)
            wait_for(lambda rows=rows: count_rows(path) == rows)  # type: ignore[misc]
        checkpoints.close()
        assert "checkpoints" not in [thread.name for thread in threading.enumerate()]


def test_open_transactions_do_not_block_a_checkpoint(path: Path) -> None:
    checkpoints = WalCheckpointer(path)
    with closing(sqlite.connect(path)) as connection, closing(sqlite.connect(path)) as other:
        commit(connection, checkpoints, 1)
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO t VALUES (100)")
        checkpoints.committed()
        checkpoints.committed()
        wait_for(lambda: count_rows(path) == 1)
        other.execute("COMMIT")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        checkpoints.close()


def test_missing_file_is_logged_and_tried_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = WalCheckpointer(path)
    aside = path.with_name("aside.db")
    with closing(sqlite.connect(path)) as connection, caplog.at_level(logging.WARNING):
        path.rename(aside)
        commit(connection, checkpoints, 3)
        wait_for(lambda: "no checkpoint of" in caplog.text)
        aside.rename(path)
        commit(connection, checkpoints, 3)
        wait_for(lambda: count_rows(path) == 6)
        checkpoints.close()


def test_commit_succeeds_if_no_thread_can_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next commit tries to start the thread again."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    checkpoints = WalCheckpointer(path)
    with closing(sqlite.connect(path)) as connection:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            commit(connection, checkpoints, 3)
        commit(connection, checkpoints, 1)
        wait_for(lambda: count_rows(path) == 4)
        checkpoints.close()


def test_log_is_truncated_after_a_long_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During the read the log only grows. Afterwards it is truncated without another commit."""
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
        deadline = time.monotonic() + 20
        while log.stat().st_size > checkpoint.LONGEST_LOG:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        checkpoints.close()


def _fill_blobs(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE t (x BLOB)")
