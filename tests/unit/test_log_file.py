"""The log file: appended to by many, rotated by any of them, and no line is lost or torn."""

import fcntl
import gzip
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from svc.logs.log_file import append, rotated_name
from svc.logs.rotation import prune

LINE = b"x" * 99 + b"\n"
ROTATED = re.compile(r"cni-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}\.log")
DAY = 86400

WRITER = """
import sys
from svc.logs.log_file import append
from svc.logs.rotation import prune
path, name, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for number in range(count):
    if append(path, f"{name} {number} {'x' * 80}\\n".encode(), size):
        prune(path, 1, 10_000)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cni.log"


def rotated(log: Path) -> list[Path]:
    return sorted(path for path in log.parent.iterdir() if path != log)


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_lines_are_appended_and_directories_made(log: Path) -> None:
    """Only root and the group read them."""
    assert not append(str(log), LINE, 1000)
    assert not append(str(log), LINE, 1000)
    assert log.read_bytes() == LINE * 2
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o640, 0o750)


def test_file_that_would_grow_too_large_is_rotated(log: Path) -> None:
    """Exactly as large as allowed is not too large."""
    assert [append(str(log), LINE, 300) for _ in range(4)] == [False, False, False, True]
    (old,) = rotated(log)
    assert ROTATED.fullmatch(old.name)
    assert (old.read_bytes(), log.read_bytes()) == (LINE * 3, LINE)


def test_line_that_is_too_large_by_itself_is_written(log: Path) -> None:
    assert not append(str(log), LINE, 10)
    assert log.read_bytes() == LINE


def test_rotated_file_gets_no_further_line(log: Path) -> None:
    """Not even from a writer that opened it before: it is marked by its permissions."""
    append(str(log), LINE, 100)
    append(str(log), LINE, 100)
    (old,) = rotated(log)
    assert old.stat().st_mode & 0o777 == 0o440
    os.rename(old, log)
    with pytest.raises(OSError, match="no write permission"):
        append(str(log), LINE, 1000)


def test_target_of_a_link_is_rotated_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "cni.log").symlink_to(tmp_path / "real" / "cni.log")
    for _ in range(2):
        append(str(tmp_path / "cni.log"), LINE, 100)
    prune(str(tmp_path / "cni.log"), 30, 10)
    assert (tmp_path / "cni.log").is_symlink()
    (old,) = rotated(tmp_path / "real" / "cni.log")
    assert content(old) == LINE


def test_lock_that_is_never_given_back_keeps_nobody_waiting(log: Path) -> None:
    """The line is written, the rotation is put off."""
    append(str(log), LINE, 100)
    with log.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not append(str(log), LINE, 100)
    assert log.read_bytes() == LINE * 2
    assert append(str(log), LINE, 100)


def test_rotation_that_fails_costs_no_line(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(str(log), LINE, 100)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "rename", refuse)
    assert not append(str(log), LINE, 100)
    assert log.read_bytes() == LINE * 2


def test_devices_are_not_rotated() -> None:
    assert not append("/dev/null", LINE, 10)
    with pytest.raises(OSError, match="No space left"):
        append("/dev/full", LINE, 10)


def test_names_tell_the_moment() -> None:
    """A file of the same millisecond is not overwritten."""
    assert rotated_name("/log/cni.log", 1_763_665_401.0421) == "/log/cni-2025-11-20T19-03-21.042.log"
    assert rotated_name("/log/cni", 0.0) == "/log/cni-1970-01-01T00-00-00.000"


def test_two_rotations_of_a_millisecond_keep_both_files(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc.logs.log_file.time", type("Clock", (), {"time": staticmethod(lambda: 1.0), "sleep": time.sleep}))
    for _ in range(3):
        append(str(log), LINE, 100)
    assert len(rotated(log)) == 2


# tidying up


def old_file(log: Path, age: float, text: bytes = LINE) -> Path:
    """One that was rotated so many days ago."""
    log.parent.mkdir(exist_ok=True)
    path = Path(rotated_name(str(log), time.time() - age * DAY))
    path.write_bytes(text)
    return path


def test_rotated_files_are_compressed(log: Path) -> None:
    """Whole, and with nothing left beside them."""
    old = old_file(log, 1, LINE * 10_000)
    prune(str(log), 30, 10)
    (packed,) = rotated(log)
    assert packed.name == f"{old.name}.gz"
    assert content(packed) == LINE * 10_000
    assert packed.stat().st_size < 10_000
    prune(str(log), 30, 10)
    assert rotated(log) == [packed]


def test_broken_off_compression_is_done_again(log: Path) -> None:
    """Whether its process was killed before or after the packed file was complete."""
    for age, leftover in ((1, ".gz.partial"), (2, ".gz")):
        old = old_file(log, age)
        old.with_name(old.name + leftover).write_bytes(b"half")
    prune(str(log), 30, 10)
    assert [content(path) for path in rotated(log)] == [LINE, LINE]


def test_old_files_go(log: Path) -> None:
    """By the date in their name; compressed by any program, and those whose compression was interrupted."""
    kept, gone = old_file(log, 1.9), old_file(log, 2.1)
    for ending in (".gz", ".zst", ".gz.partial"):
        gone.with_name(gone.name + ending).write_bytes(b"")
    prune(str(log), 2, 10)
    assert [path.name for path in rotated(log)] == [f"{kept.name}.gz"]


def test_oldest_of_too_many_files_go(log: Path) -> None:
    files = [old_file(log, age) for age in (3, 1, 2, 4)]
    prune(str(log), 30, 2)
    assert {path.name for path in rotated(log)} == {f"{files[number].name}.gz" for number in (1, 2)}


def test_other_files_of_the_directory_stay(log: Path) -> None:
    old_file(log, 100)
    others = {"cni-old.log", "other-2020-01-01T00-00-00.000.log", "cni-2020-01-01T00-00-00.000.txt", "cni.log.1"}
    for name in others:
        (log.parent / name).write_text("")
    prune(str(log), 30, 10)
    assert {path.name for path in rotated(log)} == others


def test_file_that_another_process_packs_is_left_to_it(log: Path) -> None:
    old = old_file(log, 1)
    with old.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        prune(str(log), 30, 10)
    assert rotated(log) == [old]


def test_compression_on_a_full_disk_leaves_the_file(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = old_file(log, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("svc.logs.rotation.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        prune(str(log), 30, 10)
    assert rotated(log) == [old]


def test_many_processes_lose_and_tear_no_line(log: Path) -> None:
    """Across dozens of rotations, each followed by compressions and removals."""
    writers, count = 6, 400
    commands = [[sys.executable, "-c", WRITER, str(log), f"w{number}", str(count), "4000"] for number in range(writers)]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait(60) for process in running] == [0] * writers
    assert len(rotated(log)) > 20
    found = b"".join(content(path) for path in [*rotated(log), log]).decode().splitlines()
    assert sorted(found) == sorted(f"w{writer} {number} {'x' * 80}" for writer in range(writers) for number in range(count))


# Rights


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_rights_do_not_depend_on_the_umask(log: Path, umask: int) -> None:
    log.parent.mkdir()
    before = os.umask(umask)
    try:
        assert [append(str(log), LINE, 100) for _ in range(3)] == [False, True, True]
        prune(str(log), 30, 10)
    finally:
        os.umask(before)
    assert log.stat().st_mode & 0o777 == 0o640
    assert len(rotated(log)) == 2
    assert {path.stat().st_mode & 0o777 for path in rotated(log)} == {0o440}


@pytest.mark.parametrize("umask", [0, 0o077])
def test_missing_directories_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    log = tmp_path / "a" / "b" / "cni.log"
    before = os.umask(umask)
    try:
        assert [append(str(log), LINE, 1000) for _ in range(2)] == [False, False]
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (log.parent.parent, log.parent)] == [0o750, 0o750]


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o660, 0o777, 0o604])
def test_file_that_others_could_open_is_moved_aside(log: Path, mode: int) -> None:
    """They may keep its lock for ever, which would prevent its rotation."""
    log.parent.mkdir()
    log.write_bytes(LINE)
    log.chmod(mode)
    with log.open("rb") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        assert append(str(log), LINE * 2, 1000)
        (old,) = rotated(log)
        assert (old.read_bytes(), log.read_bytes()) == (LINE, LINE * 2)
        assert (old.stat().st_mode & 0o777, log.stat().st_mode & 0o777) == (0o440, 0o640)
        assert append(str(log), LINE * 9, 1000)
    assert log.read_bytes() == LINE * 9


def test_rotated_files_of_an_older_version_are_tightened(log: Path) -> None:
    append(str(log), LINE, 1000)
    old = Path(f"{rotated_name(str(log), time.time())}.gz")
    old.write_bytes(gzip.compress(LINE))
    old.chmod(0o444)
    prune(str(log), 30, 10)
    assert old.stat().st_mode & 0o777 == 0o440


def test_directory_that_everybody_may_write_is_refused(log: Path) -> None:
    """Another user could put a file of its own in the place of the log."""
    log.parent.mkdir()
    log.parent.chmod(0o777)
    with pytest.raises(OSError, match="everybody may write its directory"):
        append(str(log), LINE, 1000)
    assert not log.exists()
    log.parent.chmod(0o1777)
    append(str(log), LINE, 1000)


@pytest.mark.root
@pytest.mark.parametrize("what", ["directory", "parent", "file"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, what: str) -> None:
    log = tmp_path / "a" / "b" / "cni.log"
    log.parent.mkdir(parents=True)
    log.touch(0o640)
    os.chown({"directory": log.parent, "parent": log.parent.parent, "file": log}[what], 65534, 65534)
    with pytest.raises(OSError, match="belongs to user 65534"):
        append(str(log), LINE, 1000)
    assert log.read_bytes() == b""


@pytest.mark.root
@pytest.mark.parametrize("name", ["cni.log", "logs/cni.log"])
def test_link_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    """Any user can put a link into a sticky directory, so that root would write a file of the user's choice."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / Path(name).parts[0]
    link.symlink_to(victim)
    if name != "cni.log":
        victim.mkdir()
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError, match=r"the link .* belongs to user 65534"):
        append(str(shared / name), LINE, 1000)
    assert not victim.is_file()
    assert not (victim / "cni.log").exists()
    os.chown(link, 0, 0, follow_symlinks=False)
    append(str(shared / name), LINE, 1000)
