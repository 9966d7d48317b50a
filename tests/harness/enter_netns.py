"""Running code of svc inside a temporary network namespace, in the test's own process."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Place(Protocol):
    """A network namespace with a file that refers to it."""

    @property
    def path(self) -> str: ...


@contextmanager
def entered(netns: Place) -> Iterator[None]:
    """Move the calling thread into the namespace for the `with` block. Threads and sockets that it makes there stay inside."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(netns.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _move(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _move(home)
    finally:
        os.close(home)


def _move(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
