"""Wait for policy setup: the policy agent writes a file for each endpoint when its policy is in place.

All waits for files of one directory share one thread and one inotify watch, which exist as long as one of them waits.

A previous sandbox of the same pod may have left a file. If the content of a file names addresses, and none of them is the
endpoint's, the file does not count until it changes. A file with any other content, or an empty file, means ready.
"""

import logging
import os
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, Final
from urllib.parse import quote

import orjson

from svc._core.cidr import Address
from svc.waits.inotify import Inotify, WatchLost
from svc.waits.wait import Wait, WaitOutcome

LOOK_SECONDS: Final = 0.5  # between polls of unwatched files, and checks of the identity of a watched directory
_MAX_BYTES: Final = 64 << 10  # of a status file; the rest of a larger file is not read
_ADDRESSES: Final = ("ipv4Nets", "ipv6Nets")

_log = logging.getLogger(__name__)


def file_name(orchestrator: str, namespace: str, pod: str, endpoint: str) -> str:
    """Return three fields joined by a space, each escaped as a segment of a URL's path: `k8s default%2Fweb-0 eth0`."""
    return " ".join(quote(field, safe="$&+=:@") for field in (orchestrator, f"{namespace}/{pod}", endpoint))


class PolicyWait(Wait):
    """The wait of one endpoint for its file at `path`."""

    def __init__(self, path: str, addresses: Sequence[str], deadline: float) -> None:
        super().__init__(deadline)
        self.path = path
        self._addresses = addresses

    def is_ready(self) -> bool:
        """Return True if the file exists, and does not name only addresses of other sandboxes."""
        try:
            info = os.stat(self.path)
        except (OSError, ValueError):
            return False
        return not (stat.S_ISREG(info.st_mode) and info.st_size and _is_of_others(self.path, self._addresses))

    def waits_for(self) -> str:
        """Return the file, and why it does not count."""
        return f"policy: {self.path!r}: {self.why_not_ready()}"

    def why_not_ready(self) -> str:
        """Return why the file does not count, for a user."""
        directory = os.path.dirname(self.path)
        try:
            os.stat(self.path)
        except FileNotFoundError:
            return "the file does not exist" if os.path.isdir(directory) else f"directory {directory!r} does not exist"
        except OSError as failure:
            return failure.strerror or str(failure)
        return "the file is of a previous sandbox of the pod: it names other addresses"


class EndpointStatusFiles:
    """The status files of all directories, for any thread. `close` ends the waits and the threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directories: dict[str, DirectoryWatch] = {}

    def wait(self, directory: str, name: str, addresses: Sequence[str], deadline: float) -> PolicyWait:
        """Return a wait, which may have already ended."""
        wait = PolicyWait(os.path.join(directory, name), addresses, deadline)
        if wait.is_ready():
            wait.end(WaitOutcome.READY)
        else:
            with self._lock:
                watch = self._directories.setdefault(directory, DirectoryWatch(directory))
            watch.add(wait)
        return wait

    def close(self) -> None:
        for directory in tuple(self._directories.values()):
            directory.close()


class DirectoryWatch:
    """The watch of one directory. The directory need not exist, and another one may replace it at any time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._waiting: set[PolicyWait] = set()
        self._thread: threading.Thread | None = None
        self._inotify: Inotify | None = None

    def add(self, wait: PolicyWait) -> None:
        with self._lock:
            if self._thread is None:  # first, because the system may refuse a thread
                thread = threading.Thread(target=self._run, name="endpoint-status", daemon=True)
                thread.start()
                self._thread = thread
            self._waiting.add(wait)
        wait.then(lambda: self._remove(wait))
        _end_ready([wait])  # the file may have appeared before the wait was added

    def close(self) -> None:
        with self._lock:
            thread = self._thread
        for wait in self._all():
            wait.end(WaitOutcome.SHUTDOWN)
        if thread is not None:
            thread.join()

    def _remove(self, wait: PolicyWait) -> None:
        with self._lock:
            self._waiting.discard(wait)
            if not self._waiting and self._inotify is not None:
                self._inotify.wake()

    def _run(self) -> None:
        try:
            inotify = Inotify()
        except OSError:  # too many open files
            self._poll()
            return
        with closing(inotify):
            self._watch_and_check(inotify)

    def _poll(self) -> None:
        while self._is_wanted(None):
            _end_ready(self._all())
            time.sleep(LOOK_SECONDS)

    def _watch_and_check(self, inotify: Inotify) -> None:
        watched: tuple[int, int] | None = None
        while self._is_wanted(inotify):
            if (found := _identity(self._path)) != watched or found is None:
                watched = None
                with suppress(OSError):  # a directory that cannot be watched is polled
                    if found is not None:
                        inotify.watch(self._path)
                        watched = found
                _end_ready(self._all())  # the watch reports no file that appeared before it
            try:
                _end_ready(self._named(inotify.changed(LOOK_SECONDS)))
            except WatchLost:
                watched = None

    def _is_wanted(self, inotify: Inotify | None) -> bool:
        """Return False if no wait is left: then this thread ends."""
        with self._lock:
            if not self._waiting:
                self._thread = self._inotify = None
                return False
            self._inotify = inotify
            return True

    def _all(self) -> list[PolicyWait]:
        with self._lock:
            return list(self._waiting)

    def _named(self, names: set[str]) -> list[PolicyWait]:
        with self._lock:
            return [wait for wait in self._waiting if os.path.basename(wait.path) in names]


def _end_ready(waits: Sequence[PolicyWait]) -> None:
    for wait in waits:
        if wait.is_ready():
            wait.end(WaitOutcome.READY)


def _is_of_others(path: str, addresses: Sequence[str]) -> bool:
    try:
        content = orjson.loads(_content(path))
        named = [Address(text.partition("/")[0]) for field in _ADDRESSES for text in _texts(content.get(field))]
    except (OSError, ValueError, AttributeError):
        return False  # any other content means ready
    return bool(named) and set(named).isdisjoint(map(Address, addresses))


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(fd, _MAX_BYTES)
    finally:
        os.close(fd)


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _identity(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino
