"""Waits by themselves: how they end, and what their callers get."""

import threading
import time
from collections.abc import Iterator

import pytest

from harness.blocking import run_blocking
from svc import deadline
from svc.waits.wait import Resumable, Wait, WaitOutcome, limited

SOON, FAR = 0.02, 60.0  # seconds


def wait_for(seconds: float) -> Wait:
    return Wait(time.monotonic() + seconds)


def test_first_end_counts() -> None:
    wait, told = wait_for(FAR), list[str]()
    wait.then(lambda: told.append("first"))
    wait.then(lambda: told.append("second"))
    wait.end(WaitOutcome.READY)
    wait.end(WaitOutcome.TIMEOUT)
    assert wait.outcome is WaitOutcome.READY
    assert told == ["first", "second"]


def test_callback_of_an_ended_wait_is_called_at_once() -> None:
    wait, told = wait_for(FAR), list[WaitOutcome | None]()
    wait.end(WaitOutcome.DISCONNECTED)
    wait.then(lambda: told.append(wait.outcome))
    assert told == [WaitOutcome.DISCONNECTED]


def test_join_ends_at_the_deadline() -> None:
    wait = wait_for(SOON)
    wait.join()
    assert wait.outcome is WaitOutcome.TIMEOUT


def test_deadline_in_the_past_is_late_at_once() -> None:
    wait = wait_for(-1)
    wait.join()
    assert wait.outcome is WaitOutcome.TIMEOUT


def test_join_ends_with_the_wait() -> None:
    wait = wait_for(FAR)
    ending = threading.Thread(target=wait.end, args=(WaitOutcome.READY,))
    ending.start()
    wait.join()
    ending.join()
    assert wait.outcome is WaitOutcome.READY


def test_many_that_end_it_at_once_tell_once() -> None:
    for _ in range(200):
        wait, told = wait_for(FAR), list[int]()
        wait.then(lambda told=told: told.append(1))  # type: ignore[misc]
        threads = [
            threading.Thread(target=wait.end, args=(end,))
            for end in (WaitOutcome.READY, WaitOutcome.TIMEOUT, WaitOutcome.DISCONNECTED)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told == [1]


def test_steps_are_carried_out_to_their_result() -> None:
    def steps() -> Resumable[str]:
        outcomes = []
        for _ in range(2):
            wait = wait_for(SOON)
            yield wait
            outcomes.append(str(wait.outcome))
        return " ".join(outcomes)

    assert run_blocking(steps()) == "WaitOutcome.TIMEOUT WaitOutcome.TIMEOUT"


def test_steps_that_never_wait_are_carried_out_at_once() -> None:
    def steps() -> Resumable[int]:
        yield from ()
        return 7

    assert run_blocking(steps()) == 7


def test_failure_of_steps_is_the_callers() -> None:
    def steps() -> Iterator[Wait]:
        yield wait_for(SOON)
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_blocking(steps())  # type: ignore[arg-type]


def test_limited_steps_have_one_limit_in_which_waits_do_not_count() -> None:
    left: list[float] = []

    def steps() -> Resumable[str]:
        left.append(deadline.remaining(FAR))
        time.sleep(SOON)
        wait = wait_for(0.2)
        yield wait
        left.append(deadline.remaining(FAR))
        return "done"

    assert run_blocking(limited(steps(), 5.0)) == "done"
    assert 4.9 < left[0] <= 5.0
    assert 4.8 < left[1] <= 5.0 - SOON
    assert deadline.remaining(FAR) == FAR


def test_limited_steps_that_are_closed_clean_up() -> None:
    closed: list[bool] = []

    def steps() -> Resumable[None]:
        try:
            yield wait_for(FAR)
        finally:
            closed.append(True)

    running = limited(steps(), 5.0)
    next(running)
    running.close()
    assert closed == [True]
