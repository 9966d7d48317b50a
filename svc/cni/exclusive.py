"""Keeps processes that change the same state apart: one-shot calls, and the recovery of a starting agent."""

import fcntl
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
