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
TURN_NAME = "turn.lock"
_PAUSE_SECONDS = 0.005


@contextmanager
def next_turn(state_dir: Path) -> Iterator[None]:
    """Inside, nobody who would give way begins: an agent that starts is not kept waiting by all the calls that wait for it."""
    with _lock_file(state_dir, TURN_NAME) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # those who only look hold it for a moment
        yield


@contextmanager
def alone(state_dir: Path, seconds: float = math.inf, *, gives_way: bool = False) -> Iterator[None]:
    """Waits until nobody else is. PeerError after so many seconds; OSError when the directory cannot be used."""
    with _lock_file(state_dir, LOCK_NAME) as lock, _lock_file(state_dir, TURN_NAME) as turn:
        until = time.monotonic() + seconds
        while (gives_way and _is_another_turn(turn)) or not _taken(lock):
            if time.monotonic() >= until:
                raise PeerError(
                    f"other calls without an agent have kept {lock.name!r} locked for {seconds:g} s",
                    details="start svc-agent; `fuser` tells which process has the file open",
                    code=Code.TRY_AGAIN,
                )
            time.sleep(_PAUSE_SECONDS)
        yield


def _lock_file(state_dir: Path, name: str) -> IO[str]:
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return (state_dir / name).open("a")


def _is_another_turn(turn: IO[str]) -> bool:
    """Shared, for any number may look at once."""
    if not _taken(turn, fcntl.LOCK_SH):
        return True
    fcntl.flock(turn, fcntl.LOCK_UN)
    return False


def _taken(lock: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_served(path: Path) -> bool:
    """Whether an agent listens on the socket. One that starts does so before it lets anybody else be `alone`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(str(path)) in (0, errno.EAGAIN)  # where too many wait to be heard, too
