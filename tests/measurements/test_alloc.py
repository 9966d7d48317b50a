"""The profiler of allocations, on the embedded store."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.polling import wait_until

ROOT = Path(__file__).parents[2]
SOURCE = """\
def called():
    total = 0
    for number in range(5):
        total += number
    return total
"""


@pytest.mark.parametrize(("release", "left"), [("lifo", 3), ("fifo", 3), ("random", 3), ("none", 43)])
def test_release_patterns(bench: Any, release: str, left: int) -> None:
    """A thread keeps so many addresses; without releases those of the warm-up as well."""
    work = bench("alloc_work")
    with work.work_on(work.Load(release=release, held=3, rounds=30)) as running:
        list(work.VIEWS["time"](running, Path()))
        assert sum(map(len, running._held)) == left


def test_work_for_a_time_does_not_exhaust_the_pool(bench: Any) -> None:
    """Such as that for a flame graph, whose seconds are more than the addresses of a pool."""
    work = bench("alloc_work")
    with work.work_on(work.Load(release="none", blocks=510)) as running:
        assert running.load.room == 64 + 32
        while len(running.meter.times("assign")) < 150:
            running.run_for(0.1)
            assert sum(map(len, running._held)) <= 96


def test_phases_add_up_to_the_calls(bench: Any) -> None:
    work = bench("alloc_work")
    with work.work_on(work.Load(pools=3, blocks=2, fill=0.25, rounds=40)) as running:
        figures = list(work.VIEWS["time"](running, Path()))
        meter = running.meter
        whole = sum(meter.times("assign")) + sum(meter.times("release"))
        assert sum(meter.phases().values()) == pytest.approx(whole, rel=0.02)
        assert all(value >= 0 for value in meter.phases().values())
    by_name = {figure.name: figure for figure in figures}
    assert by_name["alloc_assign"].n == 40
    assert {figure.parameters["of"]: figure.ours.p50 for figure in figures if figure.name == "alloc_count"}["writes"] == 1


def test_threads_allocate_side_by_side(bench: Any) -> None:
    work = bench("alloc_work")
    with work.work_on(work.Load(threads=4, rounds=25)) as running:
        list(work.VIEWS["time"](running, Path()))
        assert len(running.meter.times("assign")) == 100


def test_impossible_loads_are_refused(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    alloc = bench("alloc")
    for arguments, reason in (
        (["--nodes", "2"], "the embedded store is of one node"),
        (["--blocks", "600"], "a pool has 512 blocks of this size"),
        (["--release", "none", "--rounds", "100000"], "without releases the pool is exhausted"),
        (["--held", "100000"], "the threads hold more addresses than the pool has"),
        (["--pools", "513"], "argument --pools: '513' is not a whole number from 1 to 512"),
        (["--threads", "0"], "argument --threads: '0' is not a whole number from 1 on"),
        (["--fill", "nan"], "argument --fill: 'nan' is not a number from 0 to 1"),
        (["--block-size", "31"], "argument --block-size: '31' is not a whole number from 20 to 30"),
        (["--output", "/proc/version"], "argument --output: [Errno 17] File exists: '/proc/version': name a folder"),
    ):
        with pytest.raises(SystemExit):
            alloc.main(["--store", "embedded", *arguments])
        assert reason in capsys.readouterr().err


def test_interrupted_profile_leaves_nothing(tmp_path: Path) -> None:
    """A terminal signals the command and its parts at once, and the command then ends the parts once more."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "bench", "alloc", "--store", "embedded", "--parts", "time", "--rounds", "100000000"]
    command += ["--output", str(tmp_path), "--json", str(tmp_path / "a.jsonl")]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}, start_new_session=True)
    try:
        wait_until(lambda: any(folder.glob("svc-bench-*/*")))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143
    wait_until(lambda: not any(folder.glob("svc-bench-*")))


def test_allocations_are_counted_by_place(bench: Any, tmp_path: Path) -> None:
    """The command runs the profiler in a process of its own, writes a file of results, and a list."""
    pytest.importorskip("memray", reason="the packages of the group bench are not installed")
    command = [sys.executable, "-m", "bench", "alloc", "--store", "embedded", "--parts", "allocations", "--rounds", "20"]
    command += ["--output", str(tmp_path), "--json", str(tmp_path / "a.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = bench("results").read_all(tmp_path / "a.jsonl")
    assert next(iter(run.figures.values())).ours.p50 > 50
    assert "svc/ipam/" in (tmp_path / "alloc-embedded-allocations.txt").read_text()
    assert list(tmp_path.glob("*.memray")) == []


def test_lines_are_those_of_the_core(bench: Any) -> None:
    """A function that was compiled from a .pyx file is traced, and no other."""
    tracer = bench("alloc_views").LineTracer()
    scope: dict[str, Any] = {}
    exec(compile(SOURCE, "x.pyx", "exec"), scope)

    def outside() -> object:
        return scope["called"]()

    tracer.start()
    try:
        outside()
    finally:
        tracer.stop()
    assert {line: hits for (_, line), hits in tracer.hits.items()} == {2: 1, 3: 6, 4: 5, 5: 1}
    assert all(seconds >= 0 for seconds in tracer.seconds.values())
