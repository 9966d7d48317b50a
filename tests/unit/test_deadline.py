"""The deadline of a call: the remaining time, and the code to which it applies."""

import math
import threading
from contextvars import copy_context

import pytest

from svc import deadline


def test_time_is_unlimited_without_a_deadline() -> None:
    assert deadline.current() == math.inf
    assert deadline.remaining(7.0) == 7.0
    assert not deadline.is_over()


def test_limit_applies_inside_its_block() -> None:
    with deadline.limit(5.0):
        assert 4.0 < deadline.remaining(60.0) <= 5.0
        assert deadline.remaining(2.0) == 2.0
    assert deadline.current() == math.inf


def test_inner_limit_never_extends_the_time() -> None:
    with deadline.limit(5.0), deadline.limit(60.0):
        assert deadline.remaining(60.0) <= 5.0


def test_remaining_time_is_zero_after_the_deadline() -> None:
    with deadline.limit(0.0):
        assert deadline.is_over()
        assert deadline.remaining(5.0) == 0.0
        assert not deadline.wait(threading.Event())


def test_extended_sets_a_later_deadline() -> None:
    with deadline.limit(0.0), deadline.extended(5.0):
        assert 4.0 < deadline.remaining(60.0) <= 5.0


def test_wait_returns_true_if_the_event_is_set() -> None:
    event = threading.Event()
    event.set()
    assert deadline.wait(event)
    with deadline.limit(5.0):
        assert deadline.wait(event)


@pytest.mark.parametrize(("copied", "bounded"), [(True, True), (False, False)])
def test_deadline_applies_to_another_thread_only_in_a_copied_context(copied: bool, bounded: bool) -> None:
    seen: list[float] = []

    def look() -> None:
        seen.append(deadline.current())

    with deadline.limit(5.0):
        context = copy_context()
        thread = threading.Thread(target=(lambda: context.run(look)) if copied else look)
        thread.start()
        thread.join()
    assert (seen[0] < math.inf) == bounded
