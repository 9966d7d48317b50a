"""Folders that builds share: one build at a time, files that are whole, and what earlier builds have left."""

import fcntl
import shutil
import zipfile
from collections.abc import Container, Iterator
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


def of_other_commits(folder: Path, built: Container[str]) -> Iterator[str]:
    """Yield a line for each wheel in a folder that is not of the commit of those just built, whose names are given."""
    found = {wheel.name: _commit_in(wheel) for wheel in sorted(folder.glob("*.whl"))}
    commits = {commit for name, commit in found.items() if name in built}
    for name, commit in found.items():
        if commits and commit not in commits:
            yield f"{name} is not of the commit of this build ({commit}): build it again or remove it"


def _commit_in(wheel: Path) -> str:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".dist-info/commit")]
            return archive.read(names[0]).decode().strip() if names else "not known"
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        return f"cannot be read: {error}"
