"""Waits: how they end, their callbacks, and resumable functions."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.blocking import run_blocking
from svc import deadline
from svc.attach.waiting import await_store
from svc.call_trace import CallTrace
from svc.model.errors import Code, PeerError
from svc.waits.wait import Resumable, Wait, WaitOutcome, limited

SHORT_SECONDS, LONG_SECONDS = 0.02, 60.0


def wait_for(seconds: float) -> Wait:
    return Wait(time.monotonic() + seconds)


def test_first_outcome_counts() -> None:
    wait, calls = wait_for(LONG_SECONDS), list[str]()
    wait.then(lambda: calls.append("first"))
    wait.then(lambda: calls.append("second"))
    wait.end(WaitOutcome.READY)
    wait.end(WaitOutcome.TIMEOUT)
    assert wait.outcome is WaitOutcome.READY
    assert calls == ["first", "second"]


def test_callback_of_an_ended_wait_is_called_at_once() -> None:
    wait, calls = wait_for(LONG_SECONDS), list[WaitOutcome | None]()
    wait.end(WaitOutcome.DISCONNECTED)
    wait.then(lambda: calls.append(wait.outcome))
    assert calls == [WaitOutcome.DISCONNECTED]


def test_join_ends_at_the_deadline() -> None:
    wait = wait_for(SHORT_SECONDS)
    wait.join()
    assert wait.outcome is WaitOutcome.TIMEOUT


def test_deadline_in_the_past_is_a_timeout_at_once() -> None:
    wait = wait_for(-1)
    wait.join()
    assert wait.outcome is WaitOutcome.TIMEOUT


def test_join_ends_with_the_wait() -> None:
    wait = wait_for(LONG_SECONDS)
    ending = threading.Thread(target=wait.end, args=(WaitOutcome.READY,))
    ending.start()
    wait.join()
    ending.join()
    assert wait.outcome is WaitOutcome.READY


def test_callback_runs_once_if_threads_end_a_wait_together() -> None:
    for _ in range(200):
        wait, calls = wait_for(LONG_SECONDS), list[int]()
        wait.then(lambda calls=calls: calls.append(1))  # type: ignore[misc]
        threads = [
            threading.Thread(target=wait.end, args=(end,))
            for end in (WaitOutcome.READY, WaitOutcome.TIMEOUT, WaitOutcome.DISCONNECTED)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert calls == [1]


def test_resumable_is_run_to_its_result() -> None:
    def steps() -> Resumable[str]:
        outcomes = []
        for _ in range(2):
            wait = wait_for(SHORT_SECONDS)
            yield wait
            outcomes.append(str(wait.outcome))
        return " ".join(outcomes)

    assert run_blocking(steps()) == "WaitOutcome.TIMEOUT WaitOutcome.TIMEOUT"


def test_resumable_without_waits_is_run_at_once() -> None:
    def steps() -> Resumable[int]:
        yield from ()
        return 7

    assert run_blocking(steps()) == 7


def test_exception_of_a_resumable_reaches_the_caller() -> None:
    def steps() -> Iterator[Wait]:
        yield wait_for(SHORT_SECONDS)
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_blocking(steps())  # type: ignore[arg-type]


def test_waits_do_not_count_in_the_limit_of_a_resumable() -> None:
    left: list[float] = []

    def steps() -> Resumable[str]:
        left.append(deadline.remaining(LONG_SECONDS))
        time.sleep(SHORT_SECONDS)
        wait = wait_for(0.2)
        yield wait
        left.append(deadline.remaining(LONG_SECONDS))
        return "done"

    assert run_blocking(limited(steps(), 5.0)) == "done"
    assert 4.9 < left[0] <= 5.0
    assert 4.8 < left[1] <= 5.0 - SHORT_SECONDS
    assert deadline.remaining(LONG_SECONDS) == LONG_SECONDS


def test_limited_resumable_that_is_closed_cleans_up() -> None:
    closed: list[bool] = []

    def steps() -> Resumable[None]:
        try:
            yield wait_for(LONG_SECONDS)
        finally:
            closed.append(True)

    running = limited(steps(), 5.0)
    next(running)
    running.close()
    assert closed == [True]


def test_agent_that_stops_while_a_node_claim_is_decided_says_so() -> None:
    wait = wait_for(LONG_SECONDS)
    claim = SimpleNamespace(decision=lambda: wait)
    session = SimpleNamespace(claim=claim, node="n", held_seconds=lambda: 0)
    call: Any = SimpleNamespace(session=session, trace=CallTrace("r"), request=SimpleNamespace(resumable=False))
    row: Any = None
    waits = await_store(call, row)
    assert next(waits) is wait
    wait.end(WaitOutcome.SHUTDOWN)
    with pytest.raises(PeerError, match=r"^the agent stops while the claim of node 'n' is decided in the datastore: ") as stop:
        next(waits)
    assert (stop.value.code, "the runtime repeats the call" in stop.value.details) == (Code.SHUTTING_DOWN, True)
