"""Log file: processes append and rotate in parallel, and no line is lost or split."""

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


def test_lines_are_appended_and_directories_created(log: Path) -> None:
    """Only root and its group can read them."""
    assert not append(str(log), LINE, 1000)
    assert not append(str(log), LINE, 1000)
    assert log.read_bytes() == LINE * 2
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o640, 0o750)


def test_file_that_would_grow_too_large_is_rotated(log: Path) -> None:
    """A file of exactly the allowed size is not rotated."""
    assert [append(str(log), LINE, 300) for _ in range(4)] == [False, False, False, True]
    (old,) = rotated(log)
    assert ROTATED.fullmatch(old.name)
    assert (old.read_bytes(), log.read_bytes()) == (LINE * 3, LINE)


def test_line_that_is_too_large_by_itself_is_written(log: Path) -> None:
    assert not append(str(log), LINE, 10)
    assert log.read_bytes() == LINE


def test_rotated_file_gets_no_further_line(log: Path) -> None:
    """A writer that opened it before the rotation sees this from its permissions."""
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


def test_lock_that_is_never_released_does_not_block_writers(log: Path) -> None:
    """The line is written, and the rotation is postponed."""
    append(str(log), LINE, 100)
    with log.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not append(str(log), LINE, 100)
    assert log.read_bytes() == LINE * 2
    assert append(str(log), LINE, 100)


def test_failed_rotation_loses_no_line(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_names_of_rotated_files_contain_the_time() -> None:
    """The time has the precision of a millisecond."""
    assert rotated_name("/log/cni.log", 1_763_665_401.0421) == "/log/cni-2025-11-20T19-03-21.042.log"
    assert rotated_name("/log/cni", 0.0) == "/log/cni-1970-01-01T00-00-00.000"


def test_two_rotations_of_a_millisecond_keep_both_files(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc.logs.log_file.time", type("Clock", (), {"time": staticmethod(lambda: 1.0), "sleep": time.sleep}))
    for _ in range(3):
        append(str(log), LINE, 100)
    assert len(rotated(log)) == 2


# compression and removal


def old_file(log: Path, age: float, text: bytes = LINE) -> Path:
    """Create a file that was rotated this number of days ago."""
    log.parent.mkdir(exist_ok=True)
    path = Path(rotated_name(str(log), time.time() - age * DAY))
    path.write_bytes(text)
    return path


def test_rotated_files_are_compressed(log: Path) -> None:
    """The content stays complete, and no temporary file is left."""
    old = old_file(log, 1, LINE * 10_000)
    prune(str(log), 30, 10)
    (packed,) = rotated(log)
    assert packed.name == f"{old.name}.gz"
    assert content(packed) == LINE * 10_000
    assert packed.stat().st_size < 10_000
    prune(str(log), 30, 10)
    assert rotated(log) == [packed]


def test_interrupted_compression_is_repeated(log: Path) -> None:
    """The process may be killed before or after the compressed file is complete."""
    for age, leftover in ((1, ".gz.partial"), (2, ".gz")):
        old = old_file(log, age)
        old.with_name(old.name + leftover).write_bytes(b"half")
    prune(str(log), 30, 10)
    assert [content(path) for path in rotated(log)] == [LINE, LINE]


def test_old_files_are_removed(log: Path) -> None:
    """The date in the name decides. Files of any compression count, and files of an interrupted one."""
    kept, expired = old_file(log, 1.9), old_file(log, 2.1)
    for ending in (".gz", ".zst", ".gz.partial"):
        expired.with_name(expired.name + ending).write_bytes(b"")
    prune(str(log), 2, 10)
    assert [path.name for path in rotated(log)] == [f"{kept.name}.gz"]


def test_oldest_files_above_the_limit_are_removed(log: Path) -> None:
    files = [old_file(log, age) for age in (3, 1, 2, 4)]
    prune(str(log), 30, 2)
    assert {path.name for path in rotated(log)} == {f"{files[number].name}.gz" for number in (1, 2)}


def test_other_files_of_the_directory_are_kept(log: Path) -> None:
    old_file(log, 100)
    others = {"cni-old.log", "other-2020-01-01T00-00-00.000.log", "cni-2020-01-01T00-00-00.000.txt", "cni.log.1"}
    for name in others:
        (log.parent / name).write_text("")
    prune(str(log), 30, 10)
    assert {path.name for path in rotated(log)} == others


def test_file_that_another_process_compresses_is_skipped(log: Path) -> None:
    old = old_file(log, 1)
    with old.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        prune(str(log), 30, 10)
    assert rotated(log) == [old]


def test_compression_on_a_full_disk_keeps_the_file(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = old_file(log, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("svc.logs.rotation.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        prune(str(log), 30, 10)
    assert rotated(log) == [old]


def test_parallel_processes_lose_and_split_no_line(log: Path) -> None:
    """Dozens of rotations happen, each followed by compressions and removals."""
    writers, count = 6, 400
    commands = [[sys.executable, "-c", WRITER, str(log), f"w{number}", str(count), "4000"] for number in range(writers)]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait(60) for process in running] == [0] * writers
    assert len(rotated(log)) > 20
    found = b"".join(content(path) for path in [*rotated(log), log]).decode().splitlines()
    assert sorted(found) == sorted(f"w{writer} {number} {'x' * 80}" for writer in range(writers) for number in range(count))


# rights


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
def test_file_that_other_users_could_open_is_moved_aside(log: Path, mode: int) -> None:
    """Those users may hold its lock for ever, which would prevent its rotation."""
    log.parent.mkdir()
    log.write_bytes(LINE)
    log.chmod(mode)
    with log.open("rb") as other_user:
        fcntl.flock(other_user, fcntl.LOCK_EX)
        assert append(str(log), LINE * 2, 1000)
        (old,) = rotated(log)
        assert (old.read_bytes(), log.read_bytes()) == (LINE, LINE * 2)
        assert (old.stat().st_mode & 0o777, log.stat().st_mode & 0o777) == (0o440, 0o640)
        assert append(str(log), LINE * 9, 1000)
    assert log.read_bytes() == LINE * 9


def test_rotated_files_of_an_older_version_get_stricter_modes(log: Path) -> None:
    append(str(log), LINE, 1000)
    old = Path(f"{rotated_name(str(log), time.time())}.gz")
    old.write_bytes(gzip.compress(LINE))
    old.chmod(0o444)
    prune(str(log), 30, 10)
    assert old.stat().st_mode & 0o777 == 0o440


def test_directory_that_all_users_may_write_is_refused(log: Path) -> None:
    """Another user could replace the log by another file."""
    log.parent.mkdir()
    log.parent.chmod(0o777)
    with pytest.raises(OSError, match="every user may write to its directory"):
        append(str(log), LINE, 1000)
    assert not log.exists()
    log.parent.chmod(0o1777)
    append(str(log), LINE, 1000)


@pytest.mark.root
@pytest.mark.parametrize("what", ["directory", "parent", "file"])
def test_file_or_directory_of_another_user_is_refused(tmp_path: Path, what: str) -> None:
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
