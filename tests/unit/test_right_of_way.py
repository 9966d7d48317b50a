"""Right of way of short calls: ADDs pause while one is in flight, never longer than the limit."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from svc import right_of_way
from svc.right_of_way import RightOfWay, end_precedence, take_precedence

LONG = 60.0  # seconds; a test that waits so long fails


@pytest.fixture(autouse=True)
def _usual_switch_interval() -> Iterator[None]:
    """Restore what calls without an end leave behind."""
    usual = sys.getswitchinterval()
    yield
    sys.setswitchinterval(usual)


def test_nothing_pauses_without_short_calls() -> None:
    RightOfWay().give_way()


def test_pause_ends_with_the_last_short_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right_of_way, "PAUSE_SECONDS", LONG)
    ways, paused = RightOfWay(), threading.Event()
    ways.begin()
    ways.begin()

    def pause() -> None:
        paused.set()
        ways.give_way()

    with ThreadPoolExecutor(1) as others:
        pausing = others.submit(pause)
        paused.wait()
        ways.end()
        assert not pausing.done()
        ways.end()
        pausing.result(LONG / 2)


def test_pause_is_bounded() -> None:
    ways = RightOfWay()
    ways.begin()
    ways.give_way()  # returns although the call goes on
    began = time.monotonic()
    ways.give_way()
    assert time.monotonic() - began < right_of_way.PAUSE_SECONDS  # the limit counts from when the call came, for all pauses


def test_later_short_call_has_right_of_way_beside_one_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = RightOfWay()
    ways.begin()
    ways.give_way()
    monkeypatch.setattr(right_of_way, "PAUSE_SECONDS", LONG)
    ways.begin()
    with ThreadPoolExecutor(1) as others:
        pausing = others.submit(ways.give_way)
        ways.end()
        assert not pausing.done()
        ways.end()
        pausing.result(LONG / 2)


@pytest.mark.root
def test_thread_has_precedence_until_its_end_and_what_it_starts_has_none() -> None:
    def policies() -> list[int]:
        """Return the policies of this thread, of a thread that it starts, and of a program that it starts."""
        show = "import os; print(os.sched_getscheduler(0))"
        program = subprocess.run([sys.executable, "-I", "-S", "-c", show], capture_output=True, check=True)
        with ThreadPoolExecutor(1) as others:
            found = os.sched_getscheduler(0), others.submit(os.sched_getscheduler, 0).result(), int(program.stdout)
        return [policy & ~os.SCHED_RESET_ON_FORK for policy in found]

    take_precedence()
    try:
        assert policies() == [os.SCHED_RR, os.SCHED_OTHER, os.SCHED_OTHER]
    finally:
        end_precedence()
    assert policies() == [os.SCHED_OTHER] * 3


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EINVAL])
def test_thread_that_gets_no_precedence_runs_as_before(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Some C libraries have no such call."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    take_precedence()
    end_precedence()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_interpreter_is_given_up_earlier_while_a_short_call_is_in_flight() -> None:
    ways, usual = RightOfWay(), sys.getswitchinterval()
    ways.begin()
    ways.begin()
    ways.end()
    assert sys.getswitchinterval() == pytest.approx(right_of_way.SWITCH_SECONDS)
    ways.end()
    assert sys.getswitchinterval() == usual
