"""Items that another program changes again and again: the controller follows them less often, and the others as before."""

import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from svc.controllers import controller
from svc.controllers.controller import Controller, Tally
from svc.controllers.dispute_limit import PAUSE_SECONDS, WINDOW_SECONDS, WRITES, DisputeLimit
from svc.controllers.retry_queue import RetryQueue


def test_writes_within_the_limit_follow_at_once() -> None:
    limit: DisputeLimit[str] = DisputeLimit()
    assert [limit.written("a", 0) for _ in range(WRITES)] == [0] * WRITES
    assert limit.written("a", 1) == PAUSE_SECONDS
    assert limit.written("b", 1) == 0


def test_another_window_begins_without_a_pause() -> None:
    limit: DisputeLimit[str] = DisputeLimit()
    for _ in range(WRITES + 1):
        limit.written("a", 0)
    assert limit.written("a", WINDOW_SECONDS - 1) == PAUSE_SECONDS
    assert limit.written("a", WINDOW_SECONDS) == 0


def test_present_windows_are_kept() -> None:
    limit: DisputeLimit[str] = DisputeLimit()
    for _ in range(WRITES):
        limit.written("old", 0)
        limit.written("new", WINDOW_SECONDS / 2)
    limit.forget_before(WINDOW_SECONDS)
    assert len(limit._windows) == 1
    assert limit.written("new", WINDOW_SECONDS) == PAUSE_SECONDS


def test_held_item_is_due_when_its_time_is_over() -> None:
    queue: RetryQueue[str] = RetryQueue()
    queue.add("before", 0)
    for item in ("before", "after"):
        queue.hold(item, 10)
    queue.add("after", 1)
    queue.add("other", 2)
    assert [queue.take(9.9), queue.take(9.9)] == ["other", None]
    assert {queue.take(10), queue.take(10)} == {"before", "after"}


def test_item_that_is_no_longer_held_is_due_at_once() -> None:
    queue: RetryQueue[str] = RetryQueue()
    queue.hold("a", 10)
    queue.forget_held(9)
    assert len(queue._held) == 1
    queue.forget_held(10)
    assert queue._held == {}
    queue.add("a", 11)
    assert queue.take(11) == "a"


class Writing(Controller[str]):
    """A controller that writes an item each time, and whose item is changed again while it is written."""

    name = "node"

    def __init__(self) -> None:
        live = SimpleNamespace(is_known=True)
        shared: Any = SimpleNamespace(tally=Tally(), live=live)
        super().__init__(shared, ())

    def round_items(self) -> Iterable[str]:
        return ()

    def settle(self, item: str) -> None:
        self.tally.count_written(1)
        self.add([item])


def test_disputed_item_pauses_and_is_reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(controller, "time", SimpleNamespace(monotonic=lambda: now[0]))
    caplog.set_level(logging.WARNING)
    part = Writing()
    part.add(["a"])

    def drain() -> int:
        """Settle what is due, and return the number of writes."""
        before = part.tally.written
        while (item := part._queue.take(now[0])) is not None:
            part._attempt(item)
        return part.tally.written - before

    assert drain() == WRITES + 1
    assert drain() == 0
    assert "it has changed very often: changes are followed only after 10 s" in caplog.messages[0]
    part.add(["b"])
    part._attempt("b")
    assert part._queue.take(now[0]) == "b"
    now[0] = PAUSE_SECONDS
    assert part._queue.take(now[0]) == "a"
