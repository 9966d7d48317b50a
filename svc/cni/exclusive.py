"""Keeps processes that change the same state apart: one-shot calls, and an agent from its start on."""

import errno
import fcntl
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = "oneshot.lock"


@contextmanager
def alone(state_dir: Path) -> Iterator[None]:
    """Waits until nobody else is. OSError when the directory cannot be used."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state_dir / LOCK_NAME).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_served(path: Path) -> bool:
    """Whether an agent listens on the socket. One that starts does so before it lets anybody else be `alone`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(str(path)) in (0, errno.EAGAIN)  # where too many wait to be heard, too
