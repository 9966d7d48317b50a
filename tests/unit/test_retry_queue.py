"""The queue of a controller: each item once, in order, and failed items after their back-off."""

from svc.controllers.retry_queue import MAX_BACKOFF, MIN_BACKOFF, RetryQueue


def drained(queue: RetryQueue[str], now: float) -> list[str]:
    found = []
    while (item := queue.take(now)) is not None:
        found.append(item)
    return found


def test_items_come_once_and_in_order() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for now, item in enumerate(("b", "a", "b", "c")):
        queue.add(item, now)
    assert len(queue) == 3
    assert drained(queue, 10) == ["b", "a", "c"]
    assert queue.take(10) is None
    assert queue.next_due() is None


def test_failed_item_is_due_after_its_back_off() -> None:
    queue: RetryQueue[str] = RetryQueue()
    now, delays = 0.0, []
    for _ in range(12):
        queue.add("a", now)
        assert queue.take(now) == "a"
        delays.append(queue.failed("a", now))
        assert queue.next_due() == now + delays[-1]
        assert queue.take(now + delays[-1] * 0.99) is None
        now += delays[-1]
    assert delays[0] == MIN_BACKOFF
    assert MAX_BACKOFF * 0.75 <= delays[-1] <= MAX_BACKOFF


def test_success_ends_the_back_off() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for _ in range(5):
        queue.add("a", 0)
        queue.take(0)
        queue.failed("a", 0)
    queue.add("a", 0)
    queue.take(0)
    assert queue.done("a")
    assert not queue.done("a")
    assert queue.failed("a", 0) == MIN_BACKOFF


def test_added_item_does_not_wait_for_its_back_off() -> None:
    """A change of an object may remove the reason of the failure."""
    queue: RetryQueue[str] = RetryQueue()
    queue.add("a", 0)
    queue.take(0)
    queue.failed("a", 0)
    queue.add("a", 0.1)
    assert drained(queue, 0.1) == ["a"]
    assert queue.next_due() is None


def test_item_that_was_added_during_its_attempt_is_due_at_once() -> None:
    queue: RetryQueue[str] = RetryQueue()
    queue.add("a", 0)
    queue.take(0)
    queue.add("a", 1)
    queue.failed("a", 1)
    assert queue.take(1) == "a"
