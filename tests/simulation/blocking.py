"""Cooperative, deterministic models of `threading`, `time`, `datetime` and `fcntl` for the modules under simulation."""

import fcntl as real_fcntl
import os
import random as real_random
import threading as real_threading
import time as real_time
from collections.abc import Callable
from datetime import datetime as real_datetime
from datetime import timezone, tzinfo
from functools import partial
from types import TracebackType
from typing import IO, Any

from simulation.scheduler import Process, Scheduler
from svc.cni.locks import Holder

File = IO[str] | int

EPOCH = 1_800_000_000.0  # the wall clock at virtual time 0


class Current:
    """The running schedule, for objects that the product's code makes without a reference to it."""

    scheduler: Scheduler
    random: real_random.Random


class Lock:
    """A model of `threading.Lock`. A release wakes no particular thread."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = Current.scheduler
        if not scheduler.is_inside():
            return True
        me = scheduler.current
        if self._depth and not (self.reentrant and self._owner is me):
            if not blocking:
                return False
            limit = None if timeout < 0 else timeout
            if not scheduler.block("waits for a lock", lambda: not self._depth, limit):
                return False
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        if not Current.scheduler.is_inside():
            return  # called by the scheduler while no task runs
        self._depth = max(0, self._depth - 1)
        if not self._depth:
            self._owner = None

    def locked(self) -> bool:
        return bool(self._depth)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class RLock(Lock):
    """A model of `threading.RLock`."""

    reentrant = True


class Condition:
    """A model of `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[list[bool]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        told = [False]
        self._waiting.append(told)
        self._lock.release()
        try:
            return Current.scheduler.block("waits for news", lambda: told[0], timeout)
        finally:
            if told in self._waiting:
                self._waiting.remove(told)
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout):
                return bool(predicate())
        return True

    def notify(self, count: int = 1) -> None:
        for told in self._waiting[:count]:
            told[0] = True
        del self._waiting[:count]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """A model of `threading.Event`."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or Current.scheduler.block("waits for an event", self.is_set, timeout)


class Thread:
    """A model of `threading.Thread`: a task of the process that starts it."""

    def __init__(
        self, target: Callable[..., object] | None = None, name: str = "thread", args: tuple[Any, ...] = (), *,
        kwargs: dict[str, Any] | None = None, daemon: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.daemon = daemon
        self._call: Callable[[], object] = partial(target, *args, **(kwargs or {})) if target else (lambda: None)
        self._over = False
        self._started = False

    def start(self) -> None:
        parent = Current.scheduler.current
        self._started = True
        Current.scheduler.spawn(parent.process, f"{parent.process.name}/{self.name}", self._run, daemon=True)

    def join(self, timeout: float | None = None) -> None:
        Current.scheduler.block(f"joins {self.name}", lambda: self._over, timeout)

    def is_alive(self) -> bool:
        return self._started and not self._over

    def _run(self) -> None:
        try:
            self._call()
        finally:
            self._over = True


class Local:
    """A model of `threading.local`."""

    def __init__(self) -> None:
        object.__setattr__(self, "_by_task", {})

    def _mine(self) -> dict[str, Any]:
        key = Current.scheduler.current.number if Current.scheduler.is_inside() else -1
        found: dict[str, Any] = object.__getattribute__(self, "_by_task").setdefault(key, {})
        return found

    def __getattr__(self, name: str) -> Any:
        try:
            return self._mine()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._mine()[name] = value

    def __delattr__(self, name: str) -> None:
        self._mine().pop(name, None)


class Threading:
    """A model of the module `threading`."""

    Lock, RLock, Condition, Event, Thread, local = Lock, RLock, Condition, Event, Thread, Local
    TIMEOUT_MAX = real_threading.TIMEOUT_MAX

    @staticmethod
    def get_ident() -> int:
        return Current.scheduler.current.number + 1 if Current.scheduler.is_inside() else 0

    get_native_id = get_ident

    @staticmethod
    def current_thread() -> object:
        return Current.scheduler.current


class Time:
    """A model of the module `time` with the virtual clock."""

    gmtime, strftime, localtime = real_time.gmtime, real_time.strftime, real_time.localtime
    CLOCK_BOOTTIME = real_time.CLOCK_BOOTTIME

    @staticmethod
    def monotonic() -> float:
        return Current.scheduler.now

    perf_counter = monotonic

    @staticmethod
    def monotonic_ns() -> int:
        return int(Current.scheduler.now * 1e9)

    @staticmethod
    def clock_gettime_ns(_clock: int) -> int:
        return Time.monotonic_ns()

    @staticmethod
    def time() -> float:
        return EPOCH + Current.scheduler.now

    @staticmethod
    def time_ns() -> int:
        return int((EPOCH + Current.scheduler.now) * 1e9)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep. A task that polls a file lock sleeps until that lock is free, because failed attempts do not matter."""
        missed = FileLocks.missed.pop(Current.scheduler.current.number, None)
        if missed is None:
            Current.scheduler.block("sleeps", lambda: False, seconds)
        else:
            Current.scheduler.block("polls a file lock", missed, max(seconds, FileLocks.TIMEOUT_SECONDS))


class Clock(real_datetime):
    """A model of the class `datetime`."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> real_datetime:  # type: ignore[override]
        return real_datetime.fromtimestamp(EPOCH + Current.scheduler.now, tz or timezone.utc)


class FileLocks:
    """A model of the module `fcntl`. The locks are real kernel locks on files of this schedule, but waiting is cooperative."""

    LOCK_EX, LOCK_SH, LOCK_NB, LOCK_UN = real_fcntl.LOCK_EX, real_fcntl.LOCK_SH, real_fcntl.LOCK_NB, real_fcntl.LOCK_UN
    TIMEOUT_SECONDS = 30.0  # virtual seconds after which a polling task checks its deadline again
    missed: dict[int, Callable[[], bool]] = {}  # noqa: RUF012  by task: whether the lock that it did not get is free now
    owners: dict[object, Process] = {}  # noqa: RUF012  by file: the last process that had it exclusively
    notes: dict[object, tuple[Process, str]] = {}  # noqa: RUF012  by file

    @classmethod
    def flock(cls, file: File, operation: int) -> None:
        scheduler = Current.scheduler
        task = scheduler.current
        scheduler.step(f"flock {_name_of(file)} {_FLOCKS.get(operation, operation)}", "kill")
        if operation & cls.LOCK_UN:
            real_fcntl.flock(file, operation)
            return
        cls.missed.pop(task.number, None)
        while not cls._take(file, operation):
            if operation & cls.LOCK_NB:
                cls.missed[task.number] = lambda: cls._is_free(file, operation)
                raise BlockingIOError
            scheduler.block("waits for a file lock", lambda: cls._is_free(file, operation))
        if operation & cls.LOCK_EX:
            cls.owners[_identity(file)] = task.process

    @classmethod
    def note(cls, lock: Any, purpose: str) -> None:
        """Record the use of the lock by the running process, in place of `LockFile.note`."""
        cls.notes[_identity(lock._file)] = Current.scheduler.current.process, purpose

    @classmethod
    def holder(cls, lock: Any) -> Holder:
        """Return the holder, in place of `LockFile.holder`.

        The kernel cannot tell, because all simulated processes share one pid.
        """
        owner = cls.owners.get(_identity(lock._file))
        process, purpose = cls.notes.get(_identity(lock._file), (None, ""))
        return Holder(1, purpose if process is owner and owner is not None and owner.runs else "")

    @classmethod
    def reset(cls) -> None:
        cls.notes.clear()
        cls.missed.clear()
        cls.owners.clear()

    @classmethod
    def _is_free(cls, file: File, operation: int) -> bool:
        """Return whether the lock is free. A closed file counts as free, so that its task continues."""
        try:
            if not cls._take(file, operation):
                return False
            real_fcntl.flock(file, cls.LOCK_UN)
        except (OSError, ValueError):
            return True
        return True

    @classmethod
    def _take(cls, file: File, operation: int) -> bool:
        try:
            real_fcntl.flock(file, operation | cls.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_FLOCKS = {
    FileLocks.LOCK_EX: "exclusive",
    FileLocks.LOCK_SH: "shared",
    FileLocks.LOCK_EX | FileLocks.LOCK_NB: "exclusive, at once",
    FileLocks.LOCK_SH | FileLocks.LOCK_NB: "shared, at once",
    FileLocks.LOCK_UN: "free",
}


def _name_of(file: File) -> str:
    identity = _identity(file)
    if identity not in _NAMES:
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file.name
        _NAMES[identity] = path.rpartition("/")[2]
    return _NAMES[identity]


_NAMES: dict[object, str] = {}  # by file: no lock file is renamed or removed while schedules run


def _identity(file: File) -> object:
    status = os.fstat(file if isinstance(file, int) else file.fileno())
    return status.st_dev, status.st_ino
