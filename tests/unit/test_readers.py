"""Readers of one SQLite file do not wait for each other, nor for a commit."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from svc.datastore import sqlite
from svc.datastore.readers import CONNECTIONS, Readers, fetch

READ = "SELECT value FROM numbers"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    def fill(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE numbers (value INTEGER)")
        connection.execute("INSERT INTO numbers VALUES (7)")

    sqlite.create(tmp_path / "numbers.sqlite", fill)
    return tmp_path / "numbers.sqlite"


class File:
    """A file with its readers, whose first connection the test may keep busy."""

    def __init__(self, path: Path) -> None:
        self.first, self.lock, self.is_current = sqlite.connect(path), threading.Lock(), True
        self.readers = Readers(path, self.first, self.lock, lambda: self.is_current)

    def used(self) -> sqlite3.Connection:
        found: sqlite3.Connection = self.readers.run(lambda connection: connection)
        return found

    @contextmanager
    def busy(self, number: int) -> Iterator[list[sqlite3.Connection]]:
        """Keep `number` connections busy, each in a thread of its own, for the time of the block."""
        held: list[sqlite3.Connection] = []
        entered, leave = threading.Semaphore(0), threading.Event()

        def hold(connection: sqlite3.Connection) -> None:
            held.append(connection)
            entered.release()
            assert leave.wait(10)

        threads = [threading.Thread(target=self.readers.run, args=(hold,)) for _ in range(number)]
        for thread in threads:
            thread.start()
            assert entered.acquire(timeout=10)
        try:
            yield held
        finally:
            leave.set()
            for thread in threads:
                thread.join()

    def close(self) -> None:
        self.readers.close()
        self.first.close()


@pytest.fixture
def file(path: Path) -> Iterator[File]:
    with closing(File(path)) as file:
        yield file


def require_wait(file: File, busy: int) -> None:
    """Require that a reader waits while so many connections are busy, and then ends."""
    ended = threading.Event()

    def read() -> None:
        file.used()
        ended.set()

    thread = threading.Thread(target=read)
    with file.busy(busy):
        thread.start()
        assert not ended.wait(0.1)
    assert ended.wait(10)
    thread.join()


def test_free_first_connection_is_used(file: File) -> None:
    assert file.used() is file.first
    assert file.readers.run(fetch, READ) == [(7,)]


def test_readers_use_different_connections_at_once(file: File) -> None:
    with file.busy(CONNECTIONS) as held:
        assert len(set(map(id, held))) == CONNECTIONS
        assert [fetch(connection, READ) for connection in held] == [[(7,)]] * CONNECTIONS
    with file.busy(CONNECTIONS) as again:
        assert list(map(id, again)) == list(map(id, held))  # none is opened twice


def test_first_need_opens_all(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many descriptors the process has does not depend on how many readers met since its start."""
    with file.busy(2):
        monkeypatch.setattr(sqlite, "connect", None)
    with file.busy(CONNECTIONS) as held:
        assert len(set(map(id, held))) == CONNECTIONS


def test_reader_beyond_the_limit_waits(file: File) -> None:
    require_wait(file, CONNECTIONS)


def test_reader_sees_what_a_commit_beside_it_has_written(file: File) -> None:
    with file.lock:
        file.first.execute("BEGIN IMMEDIATE")
        file.first.execute("UPDATE numbers SET value = 8")
        assert file.readers.run(fetch, READ) == [(7,)]
        file.first.execute("COMMIT")
        assert file.readers.run(fetch, READ) == [(8,)]


@pytest.mark.parametrize("reason", ["replaced", "closed", "out of descriptors"])
def test_reader_waits_for_the_first_if_no_more_can_be_opened(
    file: File, path: Path, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    if reason == "replaced":
        file.is_current = False
    elif reason == "closed":
        file.readers.close()
    else:
        monkeypatch.setattr(sqlite, "connect", fails)
    require_wait(file, 1)
    assert file.used() is file.first


def test_file_that_is_replaced_while_it_is_opened_is_not_read(file: File, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, opened = sqlite.connect, []

    def replace(name: Path) -> sqlite3.Connection:
        file.is_current = False
        opened.append(real(name))
        return opened[-1]

    monkeypatch.setattr(sqlite, "connect", replace)
    require_wait(file, 1)
    (other,) = opened
    with pytest.raises(sqlite3.ProgrammingError):  # it is closed
        other.execute(READ)


def test_failure_of_a_read_frees_the_connection(file: File) -> None:
    with pytest.raises(sqlite3.OperationalError):
        file.readers.run(fetch, "SELECT nothing FROM nowhere")
    assert file.used() is file.first


def test_other_connections_do_not_wait_for_locks(file: File) -> None:
    with file.busy(1), file.busy(1) as held:
        assert held[0].execute("PRAGMA busy_timeout").fetchone() == (0,)
