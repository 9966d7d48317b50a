"""The policy set-up wait: the data-plane agent tells by a file for each endpoint that its policy is in place.

All who wait share one thread and one inotify watch for each directory, which come with the first and go with the last.

A file may be one that an earlier sandbox of the same pod has left: the policy that it speaks of is another sandbox's. Where
its content names addresses, and none of them is the endpoint's, it does not count until it is written anew. Whatever else
it holds, nothing at all included, that it is there is what counts.
"""

import logging
import os
import stat
import threading
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import orjson

from svc._core.cidr import Address
from svc.waits.inotify import Inotify, Lost
from svc.waits.wait import End, Wait

LOOK_SECONDS: Final = 0.5  # between looks at what cannot be watched, and at whether the path leads to another directory
_LARGEST: Final = 64 << 10  # bytes; what is larger is no status that we know
_ADDRESSES: Final = ("ipv4Nets", "ipv6Nets")

_log = logging.getLogger(__name__)


def file_name(orchestrator: str, namespace: str, pod: str, endpoint: str) -> str:
    """Three fields joined by a space, each escaped as a segment of a URL's path: `k8s default%2Fweb-0 eth0`."""
    return " ".join(quote(field, safe="$&+=:@") for field in (orchestrator, f"{namespace}/{pod}", endpoint))


class PolicyWait(Wait):
    """One endpoint's wait for its file. `path` is where it must appear."""

    def __init__(self, path: str, addresses: Sequence[str], deadline: float) -> None:
        super().__init__(deadline)
        self.path = path
        self._addresses = addresses

    def is_over(self) -> bool:
        """Whether the file is there, for this sandbox."""
        return stands(self.path, self._addresses)

    def why_not(self) -> str:
        """What a user may want to know of a file that did not come."""
        directory = os.path.dirname(self.path)
        try:
            os.stat(self.path)
        except FileNotFoundError:
            return "there is no such file" if os.path.isdir(directory) else f"directory {directory!r} does not exist"
        except OSError as failure:
            return failure.strerror or str(failure)
        return "the file is of an earlier sandbox of the pod: it names other addresses"


class StatusFiles:
    """Those of all directories, from any thread. `close` ends what is waited for, and the threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directories: dict[str, Directory] = {}

    def wait(self, directory: str, name: str, addresses: Sequence[str], deadline: float) -> PolicyWait:
        """One that may have ended already."""
        wait = PolicyWait(os.path.join(directory, name), addresses, deadline)
        if wait.is_over():
            wait.end(End.DONE)
        else:
            self._directory(directory).look_for(name, wait)
        return wait

    def close(self) -> None:
        for directory in tuple(self._directories.values()):
            directory.close()

    def _directory(self, path: str) -> "Directory":
        with self._lock:
            return self._directories.setdefault(path, Directory(path))


class Directory:
    """One directory, which need not exist, and may be replaced by another one at any time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._waiting: dict[str, set[PolicyWait]] = {}
        self._thread: threading.Thread | None = None
        self._inotify: Inotify | None = None

    def look_for(self, name: str, wait: PolicyWait) -> None:
        with self._lock:
            if self._thread is None:  # first, for it may be refused
                thread = threading.Thread(target=self._run, name="endpoint-status", daemon=True)
                thread.start()
                self._thread = thread
            self._waiting.setdefault(name, set()).add(wait)
        wait.then(lambda: self._forget(name, wait))
        _look_for([wait])  # it may have come before it was looked for

    def close(self) -> None:
        with self._lock:
            thread = self._thread
        for wait in self._all():
            wait.end(End.STOPPING)
        if thread is not None:
            thread.join()

    def _forget(self, name: str, wait: PolicyWait) -> None:
        with self._lock:
            waits = self._waiting[name]
            waits.discard(wait)
            if not waits:
                del self._waiting[name]
            if not self._waiting and self._inotify is not None:
                self._inotify.wake()

    def _run(self) -> None:
        try:
            inotify = Inotify()
        except OSError:  # too many files are open
            self._look_again_and_again()
            return
        with inotify:
            self._follow(inotify)

    def _look_again_and_again(self) -> None:
        while self._is_wanted(None):
            _look_for(self._all())
            time.sleep(LOOK_SECONDS)

    def _follow(self, inotify: Inotify) -> None:
        watched: tuple[int, int] | None = None
        while self._is_wanted(inotify):
            if (found := _identity(self._path)) != watched or found is None:
                watched = self._watch(inotify, found)
                _look_for(self._all())  # of this moment: no event tells of what has come before the watch
            try:
                _look_for(self._named(inotify.changed(LOOK_SECONDS)))
            except Lost:
                watched = None

    def _is_wanted(self, inotify: Inotify | None) -> bool:
        """False when nobody waits any more, and this thread ends."""
        with self._lock:
            if not self._waiting:
                self._thread = self._inotify = None
                return False
            self._inotify = inotify
            return True

    def _watch(self, inotify: Inotify, found: tuple[int, int] | None) -> tuple[int, int] | None:
        """What is watched now: where that cannot be, the files are looked for again and again."""
        if found is None:
            return None
        try:
            inotify.watch(self._path)
        except OSError:
            return None
        return found

    def _all(self) -> list[PolicyWait]:
        with self._lock:
            return [wait for waits in self._waiting.values() for wait in waits]

    def _named(self, names: set[str]) -> list[PolicyWait]:
        """Those who wait for files of these names."""
        with self._lock:
            return [wait for name in names & self._waiting.keys() for wait in self._waiting[name]]


def _look_for(waits: Sequence[PolicyWait]) -> None:
    for wait in waits:
        if wait.is_over():
            wait.end(End.DONE)


def stands(path: str, addresses: Sequence[str]) -> bool:
    """Whether there is a file, and it is not one that speaks of other addresses only."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(info.st_mode) and info.st_size and _is_of_others(path, addresses))


def _is_of_others(path: str, addresses: Sequence[str]) -> bool:
    try:
        content = orjson.loads(_content(path))
        named = [Address(text.partition("/")[0]) for field in _ADDRESSES for text in _texts(content.get(field))]
    except (OSError, ValueError, AttributeError):
        return False  # it says nothing that we understand
    return bool(named) and set(named).isdisjoint(map(Address, addresses))


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(fd, _LARGEST)
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
