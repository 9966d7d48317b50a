"""The deadline of a call: the time that is left, and the code that sees it."""

import math
import threading
from contextvars import copy_context

import pytest

from svc import deadline


def test_without_a_deadline_nothing_is_bounded() -> None:
    assert deadline.current() == math.inf
    assert deadline.remaining(7.0) == 7.0
    assert not deadline.is_over()


def test_limit_bounds_what_is_left_and_ends_with_its_block() -> None:
    with deadline.limit(5.0):
        assert 4.0 < deadline.remaining(60.0) <= 5.0
        assert deadline.remaining(2.0) == 2.0
    assert deadline.current() == math.inf


def test_an_inner_limit_never_gives_more_time() -> None:
    with deadline.limit(5.0), deadline.limit(60.0):
        assert deadline.remaining(60.0) <= 5.0


def test_time_that_is_over_is_zero() -> None:
    with deadline.limit(0.0):
        assert deadline.is_over()
        assert deadline.remaining(5.0) == 0.0
        assert not deadline.wait(threading.Event())


def test_extended_gives_time_to_end_a_call() -> None:
    with deadline.limit(0.0), deadline.extended(5.0):
        assert 4.0 < deadline.remaining(60.0) <= 5.0


def test_wait_returns_when_the_event_comes_first() -> None:
    event = threading.Event()
    event.set()
    assert deadline.wait(event)
    with deadline.limit(5.0):
        assert deadline.wait(event)


@pytest.mark.parametrize(("copied", "bounded"), [(True, True), (False, False)])
def test_another_thread_sees_it_in_a_copied_context_only(copied: bool, bounded: bool) -> None:
    seen: list[float] = []

    def look() -> None:
        seen.append(deadline.current())

    with deadline.limit(5.0):
        context = copy_context()
        thread = threading.Thread(target=(lambda: context.run(look)) if copied else look)
        thread.start()
        thread.join()
    assert (seen[0] < math.inf) == bounded
