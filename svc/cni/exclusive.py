"""Keeps processes that change the same state apart: one-shot calls, and an agent from its start on."""

import errno
import fcntl
import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from svc.model.errors import Code, PeerError

LOCK_NAME = "oneshot.lock"
_PAUSE_SECONDS = 0.005


@contextmanager
def alone(state_dir: Path, seconds: float = math.inf) -> Iterator[None]:
    """Waits until nobody else is. PeerError after so many seconds; OSError when the directory cannot be used."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state_dir / LOCK_NAME).open("a") as lock:
        until = time.monotonic() + seconds
        while not _taken(lock):
            if time.monotonic() >= until:
                raise PeerError(
                    f"other calls without an agent have kept {lock.name!r} locked for {seconds:g} s",
                    details="start svc-agent; `fuser` tells which process has the file open",
                    code=Code.TRY_AGAIN,
                )
            time.sleep(_PAUSE_SECONDS)
        yield


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_served(path: Path) -> bool:
    """Whether an agent listens on the socket. One that starts does so before it lets anybody else be `alone`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(str(path)) in (0, errno.EAGAIN)  # where too many wait to be heard, too
