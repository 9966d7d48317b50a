"""Folders that builds share: one build at a time, files that are whole, and what earlier builds have left."""

import fcntl
import shutil
import zipfile
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


def of_other_commits(folder: Path, commit: str) -> Iterator[str]:
    """Yield what a user should know of each wheel in a folder that was not built of this commit."""
    for wheel in sorted(folder.glob("*.whl")):
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".dist-info/commit")]
                found = archive.read(names[0]).decode().strip() if names else "not known"
        except (zipfile.BadZipFile, UnicodeDecodeError) as error:
            found = f"cannot be read: {error}"
        if found != commit:
            yield f"{wheel.name} is not of this commit ({found}): build it again or remove it"
