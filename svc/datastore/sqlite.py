"""SQLite files of ours: how they come into being, are opened, and what their errors mean to a user.

A new file is prepared under another name and linked into place when it is complete, so that nobody, not even a second
process that creates it at the same moment, ever sees half a database.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from svc import deadline
from svc.datastore.api import NoSpace, StoreError
from svc.descriptors import require_descriptors
from svc.model.errors import PeerError
from svc.model.shortage import shortage
from svc.retry import Backoff

BUSY_SECONDS = 5.0  # how long a write waits for another process before it gives up
_MIN_BACKOFF, _MAX_BACKOFF = 0.001, 0.05  # seconds between two attempts to get a lock that another process has
_SEEN_SECONDS = 1.0  # after which a file that was locked counts as free again
LOG_PAGES = 10_000  # of 4 KB, in the log beside a file, from which on a commit itself makes the checkpoint

_FILES = 4  # that SQLite opens for one connection: database, log, index and directory
_WRITE_LOCK = "120"  # the byte of the file -shm that a writer locks (SQLite's WAL index format)

Result = TypeVar("Result")

RESTORE = (  # the remedy for a damaged embedded store
    "it is damaged: stop svc-agent, and run `svcctl store restore FILE` with a copy that `svcctl store backup FILE` made; "
    "without a copy, move it away with the files beside it: a fresh store is created in its place, which knows none of its pods"
)
_REMEDIES = (  # what SQLite's message says, what to do
    ("is full", "free space on its file system"),
    ("readonly", "make the file and its directory writable for this user"),
    ("unable to open", "make the file and its directory exist and writable for this user"),
    ("is locked", "another process keeps it locked: find it with fuser, and stop it"),
    ("disk I/O", "look for disk errors in the kernel log"),
    ("closed database", "the store was closed: open it again"),
)


def store_error(path: Path, error: sqlite3.Error | OSError, damaged: str = RESTORE) -> StoreError:
    """Return what to raise in place of an error of SQLite or of the file system. `damaged` is the remedy for a damaged file."""
    if lack := _lack_of_files(error):
        return StoreError(f"store {str(path)!r} failed: {lack.msg}", details=lack.details, code=lack.code)
    if isinstance(error, OSError):
        details = f"have a directory {str(path.parent)!r} that this user may write to"
        return StoreError(f"store {str(path)!r} cannot be made: {error.strerror}", details=details)
    remedy = next((remedy for text, remedy in _REMEDIES if text in str(error)), "this is unexpected: please report it")
    reason = str(error)
    if _is_truncated(path, error):
        reason, remedy = "file is not a database: it was truncated", damaged
    elif is_damage(error):
        remedy = damaged
    elif "is locked" in str(error) and (holder := _writer_of(path)):
        remedy = f"{holder} keeps it locked: stop it"
    kind = NoSpace if "is full" in str(error) else StoreError
    return kind(f"store {str(path)!r} failed: {reason}", details=remedy)


def _lack_of_files(error: sqlite3.Error | OSError) -> PeerError | None:
    """Return the lack of file descriptors, if that is the cause. SQLite does not tell why it cannot open a file."""
    if isinstance(error, OSError):
        return shortage(error)
    if "unable to open" in str(error):
        try:
            require_descriptors(_FILES)
        except OSError as failure:
            return shortage(failure)
    return None


def _is_truncated(path: Path, error: sqlite3.Error) -> bool:
    """Whether the file or its log was truncated. SQLite reports an I/O error where its index knows pages that are not there."""
    if "disk I/O" not in str(error):
        return False
    with suppress(OSError):
        return is_damage(error) or path.stat().st_size == 0
    return False


def _writer_of(path: Path) -> str:
    """Return the process that has SQLite's lock for writers, from the kernel's table; empty if it is not known.

    The locked file itself must not be opened: closing it would release every lock that this process has on it.
    """
    with suppress(OSError):
        status = path.with_name(f"{path.name}-shm").stat()
        file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, mode, *fields = line.split()
            if (kind, mode, *fields[1:3]) == ("POSIX", "WRITE", file, _WRITE_LOCK):
                return f"process {fields[0]} ({Path('/proc', fields[0], 'comm').read_text().strip()})"
    return ""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is not what SQLite, or this program, wrote."""
    is_short = getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_SHORT_READ"  # since Python 3.11
    return is_short or any(text in str(error) for text in ("not a database", "malformed"))


class Errors:
    """Around a block, as often as wanted: what SQLite and the file system raise in it becomes a StoreError."""

    __slots__ = ("_damaged", "_path")

    def __init__(self, path: Path, damaged: str) -> None:
        """`damaged` is the remedy for a damaged file."""
        self._path, self._damaged = path, damaged

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(failure, (sqlite3.Error, OSError)):
            raise store_error(self._path, failure, self._damaged) from failure


class LockWait:
    """The wait for other processes that lock a file. Its limit counts for the file, not for each call: if the file has been
    locked for BUSY_SECONDS, calls that come later, the rollback of a failed one for example, fail at their first attempt.
    """

    __slots__ = ("_since", "last")

    def __init__(self) -> None:
        self._since = 0.0  # found locked then, and at every attempt since
        self.last = 0.0  # found locked last; 0 where an attempt has succeeded since

    def run(self, attempt: Callable[..., Result], *arguments: object) -> Result:
        """Return what `attempt(*arguments)` returns. Repeat it while another connection locks the file, until the deadline of
        the call at most.

        `attempt` must not wait by itself: its connection has no busy timeout, and it releases every lock when it raises. So
        the threads of a process wait side by side. Raise the last sqlite3.OperationalError when the time is over.
        """
        backoff: Backoff | None = None
        while True:
            try:
                result = attempt(*arguments)
            except sqlite3.OperationalError as failure:
                if "is locked" not in str(failure) or self._is_over(time.monotonic()):
                    raise
            else:
                self.last = 0.0
                return result
            backoff = backoff or Backoff(_MIN_BACKOFF, _MAX_BACKOFF)
            backoff.sleep()

    def _is_over(self, now: float) -> bool:
        if now - self.last > _SEEN_SECONDS:
            self._since = now
        self.last = now
        return now - self._since >= BUSY_SECONDS or deadline.is_over()


def in_transaction(connection: sqlite3.Connection, work: Callable[[], Result]) -> Result:
    """Return what `work` returns, committed; roll back if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def create(path: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Makes a database appear at `path` as `fill` leaves it, on disk and complete, unless a file is there already.

    OSError and sqlite3.Error when it cannot be done.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError), _draft_of(path) as draft:  # somebody else was faster, with the same content
        _fill(draft, fill)


def write_copy(connection: sqlite3.Connection, path: Path) -> None:
    """Make a copy of the connection's database appear at `path`, on disk and complete.

    OSError, also if a file is there already, and sqlite3.Error.
    """
    with _draft_of(path) as draft, closing(connect(draft)) as copy:
        connection.backup(copy)


@contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """Make an empty file, which appears at `path` as the block leaves it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        yield draft
        _sync(draft)
        os.link(draft, path)
        _sync(path.parent)
    finally:
        for suffix in ("", "-wal", "-shm"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing file, for any thread (one at a time), without implicit transactions. sqlite3.Error."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _fill(draft: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    connection = connect(draft)
    try:
        connection.execute("PRAGMA journal_mode = MEMORY")  # no second file beside a draft
        connection.execute("BEGIN")
        fill(connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")  # kept in the file's header
    finally:
        connection.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
