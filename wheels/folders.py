"""Folders that builds share: one build at a time, and files that are whole."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other build uses a folder, whose generated code is that of all wheels of a build."""
    folder.mkdir(exist_ok=True)
    with (folder / "wheels.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another build of wheels is at work in {folder}: this one begins when it has ended", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def publish(wheel: Path, final: Path) -> None:
    """Put a wheel that was checked where it belongs: an interrupted build leaves no part of one under its name."""
    draft = final.with_name(f".{final.name}.draft")
    try:
        shutil.copyfile(wheel, draft)
        draft.replace(final)
    finally:
        draft.unlink(missing_ok=True)
