"""Parallel work: a few threads do it, or only the thread of the caller, and each item is done once."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.limits import no_further_thread
from svc.datastore.orch.parallel import ParallelWriter

MAX_PARALLEL = 4


@pytest.fixture
def writer() -> Iterator[ParallelWriter]:
    with closing(ParallelWriter(MAX_PARALLEL, "writer")) as writer:
        yield writer


def test_results_are_in_order(writer: ParallelWriter) -> None:
    """This holds for any number of items, and for each repetition."""
    for count in (0, 1, MAX_PARALLEL, 100):
        assert writer.map(lambda item: item * 2, range(count)) == [item * 2 for item in range(count)]


def test_items_are_processed_in_parallel(writer: ParallelWriter) -> None:
    """The barrier opens only when all threads have reached it."""
    barrier, threads = threading.Barrier(MAX_PARALLEL, timeout=30), set()

    def meet(_: int) -> int:
        threads.add(threading.get_ident())
        return barrier.wait()

    assert sorted(writer.map(meet, range(MAX_PARALLEL))) == list(range(MAX_PARALLEL))
    assert len(threads) == MAX_PARALLEL


@pytest.mark.parametrize("bad", [0, 7, 49])
def test_failure_is_raised_after_all_threads_have_stopped(writer: ParallelWriter, bad: int) -> None:
    """No item is in progress when the caller gets the exception, and none is begun afterwards."""
    busy: set[int] = set()

    def fail(item: int) -> None:
        busy.add(item)
        try:
            if item == bad:
                raise KeyError(item)
        finally:
            busy.remove(item)

    with pytest.raises(KeyError, match=str(bad)):
        writer.map(fail, range(50))
    assert not busy
    assert writer.map(str, range(3)) == ["0", "1", "2"]


PROGRAM = """
import sys, threading
from contextlib import closing
from svc.datastore.orch.parallel import ParallelWriter

done = []
with closing(ParallelWriter(4, "writer")) as writer:
    writer.map(done.append, range(int(sys.argv[1])))
    before = threading.active_count()
    print(before, flush=True)
    sys.stdin.readline()
    writer.map(done.append, range(100, 200))
    print(threading.active_count() - before, flush=True)
    sys.stdin.readline()
print(sorted(done[-100:]) == list(range(100, 200)), len(done))
"""


@pytest.mark.root
@pytest.mark.parametrize("begun", [1, 2, 4])
def test_existing_threads_do_all_work(tmp_path: Path, begun: int) -> None:
    """Each item is done once, even if no thread can be started. No failed start is repeated."""
    command = [sys.executable, "-c", PROGRAM, str(begun)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline()
        with no_further_thread(process.pid):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"True {begun + 100}\n"
