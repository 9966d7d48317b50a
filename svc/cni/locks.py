"""Locks between processes: one for a node's state, one for an agent's socket.

A process holds the state lock while its work may change attachments. An agent holds it until its drain has ended. A one-shot
process frees it while it waits for a readiness gate or for policy.
The socket lock excludes two agents with the same run directory. Both lock files are in directories that only root can enter.
The lock files of earlier builds (docs/upgrade.md) are locked as well, so that processes of both builds exclude each other.
"""

import errno
import fcntl
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from svc.model.errors import CallerError, Code, PeerError
from svc.private_directory import make_private
from svc.retry import Backoff
from svc.values import dataclass

DIRECTORY = "lock"  # in the state directory and in the run directory
STATE, START, SOCKET = "state", "start", "socket"
EARLIER_STATE, EARLIER_CALLS, EARLIER_SOCKET = "state.lock", "oneshot.lock", "agent.lock"  # names in earlier builds

AGENT, DRAINING = "agent", "agent that stops"

_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.005, 0.05
_REPORT_SECONDS = 1.0  # after this time an agent logs what it waits for
_MAX_NOTE_BYTES = 512

log = logging.getLogger("svc.agent")


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, and its purpose; 0 and empty if unknown. An agent also notes its `socket`."""

    pid: int = 0
    purpose: str = ""
    socket: str = ""

    @property
    def is_stopped(self) -> bool:
        """Return True if the process is stopped, for example by SIGSTOP."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
        return False

    @property
    def fix(self) -> str:
        if not self.pid:
            return "find the process with `fuser`, and end it"
        if self.purpose == AGENT and not self.is_stopped:
            place = f"socket {self.socket!r}" if self.socket else "the socket that its log names"
            return f"see that it listens on {place} and that this is the socket= of the installation; else restart it"
        resume = f"resume it with `kill -CONT {self.pid}`, or " if self.is_stopped else ""
        return f"{resume}end it with `kill -KILL {self.pid}`"

    def __str__(self) -> str:
        if not self.pid:
            return "a process that cannot be named"
        stopped = ", which is stopped" if self.is_stopped else ""
        return f"process {self.pid} ({self.purpose or 'of another release'}){stopped}"


class LockFile:
    """An exclusive lock on a file. The kernel frees it when the process ends.

    Without `guarded`, other users may have opened the file before its directory became private, and their locks are ignored.
    With `reads`, an existing file on a read-only file system is opened for reading, which is sufficient for the lock.
    """

    def __init__(self, path: Path, *, guarded: bool = True, reads: bool = False) -> None:
        self.path = path
        self._name = str(path)  # `stat` takes a path several times as long as a string
        self._guarded = guarded
        self._reads = reads
        self._use(_open(path, reads=reads))

    def take(self) -> bool:
        """Lock the file; False if another process has locked it."""
        if not self.stands():  # removed or replaced since it was opened
            file = _open(self.path, reads=self._reads)
            os.close(self._file)
            self._use(file)
        if _flock(self._file, fcntl.LOCK_EX):
            return True
        return not self._guarded and bool(pids := self._pids()) and all(map(_is_foreign, pids))

    def is_free(self) -> bool:
        """Return True if no process has locked the file. The file stays unlocked."""
        if not _flock(self._file, fcntl.LOCK_SH):
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def stands(self) -> bool:
        """Return True if the path still names the locked file. No other file has its inode number while it is open."""
        try:
            found = os.stat(self._name)
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_dev == self._device

    def note(self, purpose: str, socket: Path | None = None) -> None:
        """Write the holder's purpose and socket into the file, for processes that wait for the lock."""
        note = {"pid": os.getpid(), "purpose": purpose, "socket": str(socket or "")}
        text = json.dumps(note).encode()[:_MAX_NOTE_BYTES]
        with suppress(OSError):  # for example, the disk is full
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))

    def holder(self) -> Holder:
        """Return the holder that the note names, else the process that the kernel names."""
        with suppress(OSError):
            noted = _read_note(os.pread(self._file, _MAX_NOTE_BYTES, 0))
            if noted.pid in self._pids():
                return noted
        return next((Holder(pid) for pid in self._pids()), Holder())

    def free(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._file)

    def _use(self, file: int) -> None:
        self._file, status = file, os.fstat(file)
        self._inode, self._device = status.st_ino, status.st_dev

    def _pids(self) -> list[int]:
        """Return the PIDs of the processes that hold the lock, from /proc/locks (proc_locks(5))."""
        inode = f":{self._inode}"
        with suppress(OSError):
            rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
            return [int(row[4]) for row in rows if row[1] == "FLOCK" and row[5].endswith(inode)]
        return []


class StateLock:
    """The right to change attachments of one state directory, with its private directories and its lock files.

    `socket` is the path on which an agent will listen. With `reads`, a state directory on a read-only file system can be locked
    if it has been used before. Raise OSError if the directory is unusable, UnsafeDirectory if other users can write there.
    """

    def __init__(self, state_dir: Path, purpose: str, socket: Path | None = None, *, reads: bool = False) -> None:
        make_private(state_dir, 0o700)
        make_private(state_dir / DIRECTORY, 0o700)
        self._state_dir = state_dir
        self._purpose = purpose
        self._socket = socket
        with ExitStack() as opened:
            self._lock = opened.enter_context(closing(LockFile(state_dir / DIRECTORY / STATE, reads=reads)))
            self._start = opened.enter_context(closing(LockFile(state_dir / DIRECTORY / START, reads=reads)))
            self._earlier = opened.enter_context(closing(LockFile(state_dir / EARLIER_STATE, guarded=False, reads=reads)))
            self._earlier_calls = opened.enter_context(closing(LockFile(state_dir / EARLIER_CALLS, guarded=False, reads=reads)))
            self._opened = opened.pop_all()
        self._locks = self._lock, self._earlier, self._earlier_calls

    def take(self, seconds: float, *, gives_way: bool = False, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until no other process holds the lock; False if `unless` returns True during the wait.

        With `gives_way` a starting agent gets the lock first. Raise PeerError, which names the holder, after `seconds`.
        """
        for _ in _until(time.monotonic() + seconds):
            if unless():
                return False
            if not (gives_way and not self._start.is_free()) and self._take_now():
                self._lock.note(self._purpose)
                return True
        raise _held_too_long(self._busy(), seconds)

    def take_as_agent(self, seconds: float) -> None:
        """Take the lock for a starting agent, before calls that have not begun. Raise CallerError if another agent serves."""
        report = time.monotonic() + _REPORT_SECONDS
        for now in _until(time.monotonic() + seconds):
            if self._start.take() and self._take_now():
                self._start.free()
                self._lock.note(self._purpose, self._socket)
                return
            holder = self.holder()
            if holder.purpose == AGENT:
                raise _another_agent(self._state_dir, holder)
            if now > report:
                report = math.inf
                log.warning("waiting up to %g s for %s: it still changes attachments", seconds, holder)
        raise _held_too_long(self._busy(), seconds)

    def holder(self) -> Holder:
        """Return the process that keeps this one from the lock."""
        return self._busy().holder()

    def admit_earlier_calls(self) -> None:
        """Free the call lock of earlier builds. Their calls then look for the agent's socket and hand themselves over."""
        self._earlier_calls.free()

    def drain(self, seconds: float) -> None:
        """Keep new calls of earlier builds from starting until the drain has ended, for at most `seconds`."""
        self._lock.note(DRAINING)
        with suppress(OSError):  # the directory was removed, so those calls have no state to change
            for _ in _until(time.monotonic() + seconds):
                if self._earlier_calls.take():
                    return

    def require(self) -> None:
        """Raise PeerError if the state directory was removed or replaced: the agent must not create a new one in its place."""
        if not self._lock.stands():
            raise PeerError(
                f"state directory {str(self._state_dir)!r} was removed or replaced while the agent ran",
                details="start the agent again",
                code=Code.IO_FAILURE,
            )

    def free(self) -> None:
        """Unlock all files; `take` locks them again."""
        for lock in reversed(self._locks):
            lock.free()

    def close(self) -> None:
        self._opened.close()

    def _take_now(self) -> bool:
        """Lock all files or none. Return True if they are locked."""
        with ExitStack() as taken:
            for lock in self._locks:
                if not lock.take():
                    return False
                taken.callback(lock.free)
            taken.pop_all()
        return True

    def _busy(self) -> LockFile:
        """Return the first file that another process has locked."""
        return next((lock for lock in self._locks if not lock.is_free()), self._lock)


class SocketLock:
    """The right to listen in one run directory."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._opened = ExitStack()

    def take(self) -> None:
        """Take the lock. Raise CallerError if another agent has it, OSError or UnsafeDirectory for an unusable directory."""
        self.close()
        make_private(self._run_dir, 0o755)
        make_private(self._run_dir / DIRECTORY, 0o700)
        self._lock = self._opened.enter_context(closing(LockFile(self._run_dir / DIRECTORY / SOCKET)))
        earlier = self._opened.enter_context(closing(LockFile(self._run_dir / EARLIER_SOCKET, guarded=False)))
        for lock in (self._lock, earlier):
            if not lock.take():
                raise _another_agent(self._run_dir, lock.holder())
        self._lock.note(AGENT)

    def stands(self) -> bool:
        """Return True if the run directory is still the one that was locked."""
        return self._lock.stands()

    def close(self) -> None:
        self._opened.close()


def find_agent_elsewhere(state_dir: Path, path: Path) -> Holder | None:
    """Return the agent that holds a state directory and serves another socket than `path`; None if no such agent exists."""
    file = state_dir / DIRECTORY / STATE
    with suppress(OSError):
        noted = _read_note(file.read_bytes())
        if noted.purpose != AGENT or noted.socket in ("", str(path)):
            return None
        with closing(LockFile(file)) as lock:
            is_alive = lock.holder() == noted
        return noted if is_alive and is_agent_listening(Path(noted.socket)) else None
    return None


def is_agent_listening(path: Path) -> bool:
    """Return True if an agent listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(str(path)) in (0, errno.EAGAIN)  # EAGAIN: the backlog is full


def _read_note(data: bytes) -> Holder:
    """Return the noted holder; an unknown holder if the note is not readable."""
    with suppress(ValueError, TypeError, KeyError):
        note = json.loads(data)
        return Holder(int(note["pid"]), str(note["purpose"]), str(note.get("socket", "")))
    return Holder()


def _open(path: Path, *, reads: bool) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as failure:
        if not reads or failure.errno != errno.EROFS or not path.exists():
            raise
        return os.open(path, flags | os.O_RDONLY)
    os.fchmod(file, 0o600)
    return file


def _flock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_foreign(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid not in (0, os.geteuid())
    except OSError:
        return False


def _until(deadline: float) -> Iterator[float]:
    """Yield the time repeatedly until the deadline: at least once, with growing pauses."""
    backoff = Backoff(_MIN_POLL_SECONDS, _MAX_POLL_SECONDS)
    while True:
        now = time.monotonic()
        yield now
        if now >= deadline:
            return
        time.sleep(min(backoff.next(), max(0.0, deadline - now)))


def _another_agent(directory: Path, holder: Holder) -> CallerError:
    return CallerError(
        f"another agent runs on {str(directory)!r}: {holder}",
        details="stop it first, or give this one a --run-dir and a --state-dir of its own",
        code=Code.IO_FAILURE,
    )


def _held_too_long(lock: LockFile, seconds: float) -> PeerError:
    holder = lock.holder()
    return PeerError(
        f"timed out after {seconds:g} s waiting for lock {str(lock.path)!r}: held by {holder}",
        details=f"{holder.fix}, then try again",
        code=Code.TRY_AGAIN,
    )
