"""SQLite files of svc: creation, connections, waits for locks, free space, and errors for users.

A new file is written under another name and hard-linked to its path when it is complete. Other processes therefore never open
an incomplete database, even if two of them create it at the same time.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from svc import deadline
from svc.atomic_file import sync
from svc.datastore.api import NoSpace, StoreError
from svc.imports import require_descriptors
from svc.model.errors import PeerError
from svc.model.shortage import shortage
from svc.private_directory import create_directories
from svc.retry import Backoff

WAL_SUFFIXES = ("-wal", "-shm")  # suffixes of the files beside an open database
BUSY_SECONDS = 5.0  # limit of the wait for a lock of another process
_MIN_BACKOFF, _MAX_BACKOFF = 0.001, 0.05  # seconds between two attempts to lock the file
_NEW_WAIT_SECONDS = 1.0  # a new wait begins if no attempt has found the file locked for so long
LOG_PAGES = 10_000  # pages of 4 KB; a commit makes the checkpoint itself if the WAL file has as many
NEEDED_BYTES = 512 * 1024  # one ADD appends less to the WAL file of the journal or of the embedded store
INDEX_BYTES = 32 * 1024  # size of the smallest index of a WAL file

_FILES = 4  # SQLite opens as many for one connection: database, WAL file, its index and the directory
_WRITE_LOCK = "120"  # the byte of the file -shm that a writer locks (SQLite's WAL index format)
_PAGES = slice(16, 20)  # of the file -shm: the number of pages in the WAL file (SQLite's WAL index format)
_OPEN_LOCK = "1073741826"  # the first byte that an open connection locks in the database file (SQLite's file locks)
_PRESENT_SECONDS = 2.0  # limit of the wait for the files beside a database, which an agent that runs puts back in a second

Result = TypeVar("Result")

RESTORE = (  # the fix for a damaged embedded store
    "it is damaged: stop svc-agent, and run `svcctl store restore FILE` with a copy that `svcctl store backup FILE` made; "
    "without a copy, move it away with the files beside it: a new store is created in its place, without pools and attachments"
)
_DAMAGES = ("not a database", "malformed", "no such table", "Could not decode to UTF-8")  # the last is of a damaged key
_REMEDIES = (  # part of SQLite's message, and the fix
    ("is full", "free space on its file system"),
    ("readonly", "make the file and its directory writable for this user"),
    ("unable to open", "make the file and its directory exist and writable for this user"),
    ("was removed while", "svc-agent writes its files back within seconds: repeat this; end any other process"),
    ("is locked", "another process keeps it locked: find it with fuser, and stop it"),
    ("disk I/O", "look for disk errors in the kernel log"),
    ("closed database", "the store was closed: open it again"),
)


def store_error(path: Path, error: sqlite3.Error | OSError, damaged: str = RESTORE) -> StoreError:
    """Return the StoreError for an error of SQLite or of the file system. `damaged` is the fix for a damaged file."""
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
    elif "disk I/O" in reason and _has_no_index_space(path):
        reason, remedy = "the disk is full", _REMEDIES[0][1]
    kind = NoSpace if "is full" in reason else StoreError
    return kind(f"store {str(path)!r} failed: {reason}", details=remedy)


def _lack_of_files(error: sqlite3.Error | OSError) -> PeerError | None:
    """Return the shortage of file descriptors, if it is the cause. SQLite does not report why it cannot open a file."""
    if isinstance(error, OSError):
        return shortage(error)
    if "unable to open" in str(error):
        try:
            require_descriptors(_FILES)
        except OSError as failure:
            return shortage(failure)
    return None


def _is_truncated(path: Path, error: sqlite3.Error) -> bool:
    """Return whether the file or its WAL file was truncated. SQLite reports an I/O error if its index lists missing pages."""
    if "disk I/O" not in str(error):
        return False
    if is_damage(error):
        return True
    log = path.with_name(f"{path.name}-wal")
    with suppress(OSError):
        if path.stat().st_size == 0:
            return True
        if not hasattr(error, "sqlite_errorname"):  # Python 3.11 tells that a file is too short
            return log.stat().st_size == 0 and _lists_pages(path.with_name(f"{path.name}-shm"))
    return False


def _lists_pages(index: Path) -> bool:
    """Return whether the index of a WAL file lists pages. That of an empty one lists none, unless the file was truncated."""
    return any(index.read_bytes()[_PAGES])


def _writer_of(path: Path) -> str:
    """Return the process that holds SQLite's write lock, from /proc/locks; empty if it is not known.

    Do not open the locked file: with POSIX locks, closing it releases every lock that this process has on it.
    """
    return _lock_holder(path.with_name(f"{path.name}-shm"), "WRITE", _WRITE_LOCK)


def _lock_holder(path: Path, wanted: str, start: str) -> str:
    """Return a process that has locked the file from this byte on, from /proc/locks; empty if it is not known."""
    with suppress(OSError):
        status = path.stat()
        file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, mode, *fields = line.split()
            if (kind, mode, *fields[1:3]) == ("POSIX", wanted, file, start):
                return f"process {fields[0]} ({Path('/proc', fields[0], 'comm').read_text().strip()})"
    return ""


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether the error means that the content of the file is damaged."""
    is_short = getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_SHORT_READ"  # since Python 3.11
    return is_short or any(text in str(error) for text in _DAMAGES)


def _has_no_index_space(path: Path) -> bool:
    """Return whether the file system lacks space for the index of a WAL file, which SQLite reports as an I/O error."""
    with suppress(OSError):
        return _lacks_space(path, INDEX_BYTES)
    return False


def _lacks_space(path: Path, needed: int) -> bool:
    system = os.statvfs(path.parent)
    return bool(system.f_blocks) and system.f_bfree * system.f_frsize < needed  # a file system without a size has no limit


def require_disk_space(path: Path) -> None:
    """Raise NoSpace if the directory of the file lacks space for one more ADD. Ignore other errors of the test.

    A successful write proves nothing, because SQLite reuses the pages of its WAL file. So allocate the space and free it again,
    which also respects quotas and the blocks that a file system reserves for root.
    """
    try:
        if _lacks_space(path, NEEDED_BYTES):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # not allocated, because another process may need the rest
        from tempfile import TemporaryFile  # imported here, because only STATUS needs it

        with TemporaryFile(dir=path.parent, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, NEEDED_BYTES)
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(
                f"store {str(path)!r} cannot grow, the disk is full: {failure.strerror}",
                details=f"free space on its file system (df {path.parent}), {NEEDED_BYTES >> 10} KiB at least",
            ) from failure


class Errors:
    """Reusable context manager that turns errors of SQLite and of the file system into StoreError."""

    __slots__ = ("_damaged", "_failed", "_path")

    def __init__(self, path: Path, damaged: str = RESTORE, failed: Callable[[], None] = lambda: None) -> None:
        """Set the file, the fix for a damaged file, and what is called after each error."""
        self._path, self._damaged, self._failed = path, damaged, failed

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(failure, (sqlite3.Error, OSError)):
            self._failed()
            raise store_error(self._path, failure, self._damaged) from failure


class LockWait:
    """Wait for other processes that lock a file.

    The limit applies to the file, not to each call. If the file has been locked for BUSY_SECONDS, later calls, such
    as the rollback of a failed call, fail at their first attempt.
    """

    __slots__ = ("_since", "last")

    def __init__(self) -> None:
        self._since = 0.0  # monotonic time from which on every attempt found the file locked
        self.last = 0.0  # monotonic time of the last attempt that found it locked; 0 if an attempt succeeded since

    def run(self, attempt: Callable[..., Result], *arguments: object) -> Result:
        """Return the result of `attempt(*arguments)`. Retry it while another connection locks the file.

        `attempt` must not wait: its connection has no busy timeout, and it releases all locks when it raises. The threads of
        a process can therefore wait in parallel. After BUSY_SECONDS or at the deadline of the call, raise the last
        sqlite3.OperationalError.
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
        if now - self.last > _NEW_WAIT_SECONDS:
            self._since = now
        self.last = now
        return now - self._since >= BUSY_SECONDS or deadline.is_over()


def in_transaction(connection: sqlite3.Connection, work: Callable[[], Result]) -> Result:
    """Run `work` in a transaction, commit and return its result. Roll back if it raises."""
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
    """Create a database that `fill` fills, durably and in one step. Keep an existing file. Raise OSError, sqlite3.Error."""
    create_directories(path.parent, 0o700)
    with suppress(FileExistsError):  # another process has created it, with the same content
        with draft_of(path) as draft, closing(connect(draft)) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")  # so that no file appears beside the draft
            in_transaction(connection, lambda: fill(connection))
            connection.execute("PRAGMA journal_mode = WAL")  # the header of the file keeps this mode


def write_copy(connection: sqlite3.Connection, path: Path, place: Callable[[Path, Path], object] = os.link) -> None:
    """Copy the connection's database to the file `path`, durably and in one step. Raise OSError, sqlite3.Error.

    The file must be new, unless `place` replaces it. A damaged database raises sqlite3.DatabaseError, and is not copied.
    """
    with draft_of(path, place) as draft, closing(connect(draft)) as copy:
        connection.backup(copy)
        require_sound(copy)


def require_sound(connection: sqlite3.Connection) -> None:
    """Read the whole database. Raise sqlite3.DatabaseError if it is damaged."""
    (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {finding}")


@contextmanager
def draft_of(path: Path, place: Callable[[Path, Path], object] = os.link) -> Iterator[Path]:
    """Create an empty temporary file. After the block, sync it and link it to `path`, or place it there otherwise."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        yield draft
        sync(draft)
        place(draft, path)
        sync(path.parent)
    finally:
        for suffix in ("", *WAL_SUFFIXES):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def identity(path: Path | str) -> tuple[int, int] | None:
    """Return device and inode number of the file; None if it does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def identities(path: Path) -> tuple[tuple[int, int] | None, ...]:
    """Return the identity of the file, its log and its index, which show whether one of them was removed or replaced."""
    return tuple(identity(f"{path}{suffix}") for suffix in ("", *WAL_SUFFIXES))  # each call asks: so no new Path


def _require_files_beside(path: Path) -> None:
    """Raise sqlite3.OperationalError if another connection has the file open, and its log or index was removed.

    A new connection would make new ones, and neither would see what the other writes. A process that opens the file has none
    for a moment.
    """
    over = time.monotonic() + _PRESENT_SECONDS
    while missing := next((file for suffix in WAL_SUFFIXES if not os.path.exists(file := f"{path}{suffix}")), None):
        holder = _lock_holder(path, "READ", _OPEN_LOCK)
        if not holder:
            return
        if time.monotonic() >= over:
            raise sqlite3.OperationalError(f"{missing!r} was removed while {holder} has the store open")
        time.sleep(_MAX_BACKOFF)


def connect(path: Path, *, exclusive: bool = False) -> sqlite3.Connection:
    """Return a connection to an existing file, without implicit transactions, for one thread at a time. Raise sqlite3.Error.

    An `exclusive` connection needs no space for the index of the WAL file, and locks all other connections out. On a
    read-only file system the connection can only read.
    """
    _require_files_beside(path)
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{_mode(path)}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _mode(path: Path) -> str:
    """Return the mode to open the file in. On a read-only file system SQLite cannot create a missing WAL file."""
    with suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY and not path.with_name(f"{path.name}-wal").exists():
            return "mode=ro&immutable=1"
    return "mode=rw"
