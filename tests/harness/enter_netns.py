"""Making and entering network namespaces in the test's own process, which takes a tenth of the time of `ip netns`."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MNT_DETACH = 4096, 2
_libc = ctypes.CDLL(None, use_errno=True)


class Place(Protocol):
    """A network namespace with a file that refers to it."""

    @property
    def path(self) -> str: ...


@contextmanager
def entered(netns: Place) -> Iterator[None]:
    """Move the calling thread into the namespace for the `with` block. Threads and sockets that it makes there stay inside."""
    with _returning():
        there = os.open(netns.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(there, _CLONE_NEWNET))
        finally:
            os.close(there)
        yield


def create(path: str) -> None:
    """Make a network namespace with a file that refers to it, in a directory that `ip netns` has prepared."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
    with _returning():
        _check(_libc.unshare(_CLONE_NEWNET))
        _check(_libc.mount(b"/proc/thread-self/ns/net", path.encode(), b"none", _MS_BIND, None))


def delete(path: str) -> None:
    _check(_libc.umount2(path.encode(), _MNT_DETACH))
    os.unlink(path)


@contextmanager
def _returning() -> Iterator[None]:
    """Move the calling thread back at the end of the `with` block."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            _check(_libc.setns(home, _CLONE_NEWNET))
        finally:
            os.close(home)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
