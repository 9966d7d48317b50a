"""Work in parallel: by a few threads, by the caller's own if there is no other, and never twice."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.limits import no_further_thread
from svc.datastore.orch.parallel import ParallelWriter

MOST = 4


@pytest.fixture
def writer() -> Iterator[ParallelWriter]:
    with closing(ParallelWriter(MOST, "writer")) as writer:
        yield writer


def test_outcomes_come_in_order(writer: ParallelWriter) -> None:
    """Any number of them, again and again."""
    for count in (0, 1, MOST, 100):
        assert writer.map(lambda item: item * 2, range(count)) == [item * 2 for item in range(count)]


def test_so_many_are_done_at_once(writer: ParallelWriter) -> None:
    """And no more: the barrier lets no thread through before."""
    barrier, threads = threading.Barrier(MOST, timeout=30), set()

    def meet(_: int) -> int:
        threads.add(threading.get_ident())
        return barrier.wait()

    assert sorted(writer.map(meet, range(MOST))) == list(range(MOST))
    assert len(threads) == MOST


@pytest.mark.parametrize("bad", [0, 7, 49])
def test_a_failure_is_raised_when_all_have_stopped(writer: ParallelWriter, bad: int) -> None:
    """Nothing is begun, and nothing is under way, once the caller knows."""
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
def test_the_threads_that_there_are_do_it_all(tmp_path: Path, begun: int) -> None:
    """Each item once, also when no thread was begun before; what could not be begun does not come later either."""
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
