"""Right of way of short calls: ADDs pause while one is in flight, never longer than the limit."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from svc import right_of_way
from svc.right_of_way import RightOfWay, raised_priority

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
def test_thread_has_a_higher_priority_only_during_the_block() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with raised_priority():
        assert os.getpriority(os.PRIO_PROCESS, 0) < before
        with ThreadPoolExecutor(1) as others:
            assert others.submit(os.getpriority, os.PRIO_PROCESS, 0).result() < before
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_thread_without_the_right_keeps_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with raised_priority():
        pass


def test_interpreter_is_given_up_earlier_while_a_short_call_is_in_flight() -> None:
    ways, usual = RightOfWay(), sys.getswitchinterval()
    ways.begin()
    ways.begin()
    ways.end()
    assert sys.getswitchinterval() == pytest.approx(right_of_way.SWITCH_SECONDS)
    ways.end()
    assert sys.getswitchinterval() == usual
