"""Delays between attempts, and the attempts of a compare-and-swap."""

import itertools

import pytest

from svc.retry import ATTEMPTS, ATTEMPTS_BEFORE_BACKOFF, JITTER, Backoff, attempts

MINIMUM, MAXIMUM = 0.1, 5.0  # seconds


def delays(count: int) -> list[float]:
    backoff = Backoff(MINIMUM, MAXIMUM)
    return [backoff.next() for _ in range(count)]


def test_delay_doubles_up_to_its_maximum() -> None:
    for _ in range(20):
        found = delays(12)
        assert all(MINIMUM <= delay <= MAXIMUM for delay in found)
        for number, delay in enumerate(found):
            longest = min(MAXIMUM, MINIMUM * 2**number)
            assert max(MINIMUM, (1 - JITTER) * longest) <= delay <= longest


def test_delay_has_jitter() -> None:
    """Nodes that start together must not retry at the same time."""
    assert len({delays(4)[-1] for _ in range(20)}) > 1


def test_delay_after_a_reset_is_the_minimum() -> None:
    backoff = Backoff(MINIMUM, MAXIMUM, jitter=0)
    assert [backoff.next() for _ in range(3)] == [MINIMUM, 2 * MINIMUM, 4 * MINIMUM]
    backoff.reset()
    assert backoff.next() == MINIMUM


def test_back_off_precedes_every_fourth_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of the delays is at most half a second."""
    slept: list[float] = []
    monkeypatch.setattr("svc.retry.time.sleep", slept.append)
    assert list(itertools.islice(attempts(), ATTEMPTS_BEFORE_BACKOFF)) == list(range(ATTEMPTS_BEFORE_BACKOFF))
    assert slept == []
    assert list(attempts()) == list(range(ATTEMPTS))
    assert len(slept) == ATTEMPTS // ATTEMPTS_BEFORE_BACKOFF - 1
    assert sum(slept) <= 0.5
