"""inotify(7) for the files of one directory."""

import ctypes
import os
import select
import struct
from typing import Final

_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE = 0x2, 0x8, 0x80, 0x100
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLY_DIRECTORIES: Final = 0x01000000
_WANTED: Final = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE | _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORIES
_LOST: Final = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _OVERFLOW | _IGNORED
_EVERYTHING: Final = -1  # watch descriptor of events for all watches
_EVENT: Final = struct.Struct("iIII")  # struct inotify_event: watch, mask, cookie, length of the name that follows
_BUFFER: Final = 64 << 10


class WatchLost(Exception):
    """The watch ended because the path names another directory or none, or events were dropped."""


class Inotify:
    """The watch of one directory, for one thread. Any other thread may call `wake`."""

    def __init__(self) -> None:
        """Raise OSError if no descriptor is available."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fd = self._watch = -1
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    def watch(self, path: str) -> None:
        """Watch the directory instead of the previous one. Raise OSError, for example because of system limits."""
        if self._fd < 0:
            self._fd = self._checked(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
            self._poll.register(self._fd, select.POLLIN)
        if self._watch >= 0:
            self._libc.inotify_rm_watch(self._fd, self._watch)  # fails if the directory was removed, which ended its watch
            self._watch = -1
        self._watch = self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(path), _WANTED))

    def changed(self, seconds: float) -> set[str]:
        """Wait for at most `seconds`. Return the names of files that were created or written. Raise WatchLost."""
        ready = {fd for fd, _ in self._poll.poll(seconds * 1000)}
        if self._woken in ready:
            os.eventfd_read(self._woken)
        return self._names(os.read(self._fd, _BUFFER)) if self._fd in ready else set()

    def wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    def _names(self, events: bytes) -> set[str]:
        names, position = set(), 0
        while position < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, position)
            position += _EVENT.size + length
            if mask & _LOST and watch in (self._watch, _EVERYTHING):
                raise WatchLost
            names.add(os.fsdecode(events[position - length : position].rstrip(b"\0")))
        return names

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def close(self) -> None:
        os.close(self._woken)
        if self._fd >= 0:
            os.close(self._fd)
