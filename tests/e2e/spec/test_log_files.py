"""Sections 2.1 and 8: the log file is rotated by size, and rotated files are removed by age and number."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.pod import Pod
from harness.polling import wait_until
from harness.spec_rows import field, statement
from svc.timestamps import date_and_time

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

MEGABYTE = 1 << 20
ROOM = 10  # bytes; every line is longer
DAY = 86400


def filled(log: Path, size: int) -> None:
    """Make a sparse log file of this size."""
    with log.open("wb") as file:
        file.truncate(size)
    log.chmod(0o640)


def rotated(log: Path, days: float) -> Path:
    """Make a file that was rotated this long ago."""
    stamp = date_and_time(time.time() - days * DAY).replace(" ", "T").replace(":", "-")
    path = log.with_name(f"{log.stem}-{stamp}.000.log.gz")
    path.touch()
    return path


def others(log: Path) -> set[str]:
    return {file.name for file in log.parent.iterdir() if file != log}


def rotate(pod: Pod, log: Path) -> None:
    filled(log, MEGABYTE)
    pod.add(log_file_max_size=1)
    assert 0 < log.stat().st_size < MEGABYTE


@statement("8", "log_file_max_size", "100 MB, unless another size is given.", "A MB is 2^20 bytes.")
@field(
    "log_file_max_size",
    "The line that would exceed the size starts a new file. Rotated files are compressed, with the time in their names.",
    choice="0 means the default, for this field and the two below.",
)
@pytest.mark.parametrize(("config", "megabytes"), [({}, 100), ({"log_file_max_size": 2}, 2)], ids=["default", "two"])
def test_full_log_file_is_rotated(pods: MakePod, tmp_path: Path, config: dict[str, int], megabytes: int) -> None:
    log = tmp_path / "cni.log"
    filled(log, (megabytes - 1) * MEGABYTE)
    pod = pods(log_file_path=str(log), **config)
    pod.add()
    assert (log.stat().st_size > (megabytes - 1) * MEGABYTE, others(log)) == (True, set())
    filled(log, megabytes * MEGABYTE - ROOM)
    pod.delete()
    assert log.read_bytes().startswith(b"2")
    assert "verb=DEL" in log.read_text()
    wait_until(lambda: len(others(log)) == 1 and others(log).pop().endswith(".log.gz"))


@statement("8", "log_file_max_age", "30 days, unless another age is given.", "The age counts from the rotation.")
@field("log_file_max_age", "Older ones are removed with the next rotation, and once a day.")
@pytest.mark.parametrize(("config", "days"), [({}, 30), ({"log_file_max_age": 2}, 2)], ids=["default", "two"])
def test_old_files_are_removed(pods: MakePod, tmp_path: Path, config: dict[str, int], days: int) -> None:
    log = tmp_path / "cni.log"
    old, young = rotated(log, days + 0.1), rotated(log, days - 0.1)
    rotate(pods(log_file_path=str(log), **config), log)
    wait_until(lambda: not old.exists())
    assert young.exists()


@statement("8", "log_file_max_count", "10 rotated files, unless another number is given.", "The one in use is not counted.")
@field("log_file_max_count", "The oldest ones are removed.")
@pytest.mark.parametrize(("config", "number"), [({}, 10), ({"log_file_max_count": 2}, 2)], ids=["default", "two"])
def test_files_beyond_the_number_are_removed(pods: MakePod, tmp_path: Path, config: dict[str, int], number: int) -> None:
    log = tmp_path / "cni.log"
    present = [rotated(log, age + 1) for age in range(12)]  # the youngest first
    rotate(pods(log_file_path=str(log), **config), log)
    wait_until(lambda: len(others(log)) == number and all(name.endswith(".gz") for name in others(log)))
    assert {file.name for file in present[: number - 1]} <= others(log)
