"""Group commit: who waits at the same time is served together, in order, by one of them."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from svc import deadline
from svc.batching import Batcher, NotBegun, _Ticket
from svc.datastore.api import OutcomeUnknown

THREADS = 16
PLACE = "the server"
PATIENCE = 20.0  # seconds


class Workshop:
    """Does the work of a Combiner when it is let to: doubles numbers, refuses negative ones, and remembers the groups."""

    def __init__(self, limit: int = 256, batcher: type[Batcher[int, int]] = Batcher) -> None:
        self.combiner: Batcher[int, int] = batcher(self._work, lambda: PLACE, limit=limit)
        self.groups: list[list[int]] = []
        self.leaders: list[int] = []
        self.failure: BaseException | None = None
        self.answers: list[int] | None = None
        self.gate = threading.Semaphore(0)

    def _work(self, requests: Sequence[int]) -> Sequence[int | BaseException]:
        self.groups.append(list(requests))
        self.leaders.append(threading.get_ident())
        assert self.gate.acquire(timeout=PATIENCE)
        if self.failure is not None:
            raise self.failure
        if self.answers is not None:
            return self.answers
        return [ValueError(f"{number} is negative") if number < 0 else 2 * number for number in requests]

    def waiting(self) -> int:
        return len(self.combiner._waiting)


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as callers:
        yield callers


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it never came to pass"
        time.sleep(0.001)


def started(workshop: Workshop, callers: ThreadPoolExecutor, numbers: Sequence[int]) -> list["Future[int]"]:
    """The first is at work, the others wait behind it in this order."""
    futures = [callers.submit(workshop.combiner.run, numbers[0])]
    wait_for(lambda: len(workshop.groups) == 1)
    for place, number in enumerate(numbers[1:], 1):
        futures.append(callers.submit(workshop.combiner.run, number))
        wait_for(lambda place=place: workshop.waiting() == place)  # type: ignore[misc]
    return futures


def test_lonely_caller_is_served_at_once() -> None:
    """By itself: it needs no other caller, and nothing stays behind."""
    workshop = Workshop()
    workshop.gate.release(2)
    assert (workshop.combiner.run(21), workshop.combiner.run(1)) == (42, 2)
    assert workshop.groups == [[21], [1]]
    assert set(workshop.leaders) == {threading.get_ident()}


def test_those_who_wait_are_served_together_in_order(callers: ThreadPoolExecutor) -> None:
    workshop = Workshop()
    futures = started(workshop, callers, range(1, 10))
    workshop.gate.release(2)
    assert [future.result(PATIENCE) for future in futures] == list(range(2, 20, 2))
    assert workshop.groups == [[1], list(range(2, 10))]


def test_group_has_no_more_than_the_limit(callers: ThreadPoolExecutor) -> None:
    """The rest form the next groups."""
    workshop = Workshop(limit=3)
    futures = started(workshop, callers, range(8))
    workshop.gate.release(4)
    assert [future.result(PATIENCE) for future in futures] == list(range(0, 16, 2))
    assert workshop.groups == [[0], [1, 2, 3], [4, 5, 6], [7]]


def test_one_refusal_is_raised_in_its_caller_alone(callers: ThreadPoolExecutor) -> None:
    workshop = Workshop()
    first, second, refused, last = started(workshop, callers, [1, 2, -3, 4])
    workshop.gate.release(2)
    with pytest.raises(ValueError, match="-3 is negative"):
        refused.result(PATIENCE)
    assert [future.result(PATIENCE) for future in (first, second, last)] == [2, 4, 8]


@pytest.mark.parametrize("failure", [RuntimeError("broken"), KeyboardInterrupt("broken")], ids=["error", "interrupt"])
def test_failure_of_the_work_is_raised_in_all(callers: ThreadPoolExecutor, failure: BaseException) -> None:
    """And in no caller of the next batch."""
    workshop = Workshop()
    futures = started(workshop, callers, [1, 2, 3])
    workshop.gate.release()
    assert futures[0].result(PATIENCE) == 2
    wait_for(lambda: len(workshop.groups) == 2)
    later = callers.submit(workshop.combiner.run, 4)
    wait_for(lambda: workshop.waiting() == 1)
    workshop.failure = failure
    workshop.gate.release()
    raised = [future.exception(PATIENCE) for future in futures[1:]]
    assert list(map(repr, raised)) == [repr(failure)] * 2
    assert raised[0] is not raised[1]  # or their threads would mix up its traceback
    workshop.failure = None
    workshop.gate.release()
    assert later.result(PATIENCE) == 8


def test_leadership_passes_on(callers: ThreadPoolExecutor) -> None:
    """A leader is answered after its own group: it does not work for those who came later."""
    workshop = Workshop()
    first, second = started(workshop, callers, [1, 2])
    workshop.gate.release()
    assert first.result(PATIENCE) == 2
    wait_for(lambda: len(workshop.groups) == 2)
    assert not second.done()
    third = callers.submit(workshop.combiner.run, 3)
    wait_for(lambda: workshop.waiting() == 1)
    workshop.gate.release()
    assert second.result(PATIENCE) == 4
    workshop.gate.release()
    assert third.result(PATIENCE) == 6
    assert workshop.groups == [[1], [2], [3]]


def test_leader_is_the_first_of_its_group(callers: ThreadPoolExecutor) -> None:
    leaders: list[str] = []
    gate = threading.Semaphore(0)

    def work(names: Sequence[str]) -> Sequence[str]:
        leaders.append(threading.current_thread().name)
        assert gate.acquire(timeout=PATIENCE)
        return list(names)

    combiner: Batcher[str, str] = Batcher(work, lambda: PLACE)
    threads = [threading.Thread(target=combiner.run, args=(name,), name=name) for name in ("a", "b", "c")]
    threads[0].start()
    wait_for(lambda: leaders == ["a"])
    for place, thread in enumerate(threads[1:], 1):
        thread.start()
        wait_for(lambda place=place: len(combiner._waiting) == place)  # type: ignore[misc]
    gate.release(2)
    for thread in threads:
        thread.join(PATIENCE)
    assert leaders == ["a", "b"]


def test_work_is_never_done_twice_at_once(callers: ThreadPoolExecutor) -> None:
    """Sixteen threads, each asking again and again: every one gets the answer to its own question."""
    at_work = threading.Lock()
    groups: list[int] = []

    def work(numbers: Sequence[int]) -> Sequence[int]:
        assert at_work.acquire(blocking=False), "two groups at once"
        groups.append(len(numbers))
        time.sleep(0)
        at_work.release()
        return [-number for number in numbers]

    combiner: Batcher[int, int] = Batcher(work, lambda: PLACE, limit=5)
    together = threading.Barrier(THREADS)

    def ask(caller: int) -> bool:
        together.wait(PATIENCE)
        return all(combiner.run(number) == -number for number in range(caller * 1000, caller * 1000 + 200))

    futures = [callers.submit(ask, caller) for caller in range(THREADS)]
    assert all(future.result(PATIENCE) for future in futures)
    assert sum(groups) == THREADS * 200
    assert 1 < max(groups) <= 5
    assert combiner._waiting == []


@pytest.mark.parametrize("answers", [[], [1, 2, 3, 4]], ids=["too-few", "too-many"])
def test_answers_that_do_not_fit_the_questions_are_told_to_all(callers: ThreadPoolExecutor, answers: list[int]) -> None:
    """A bug in the work: no caller may wait for an answer that never comes."""
    workshop = Workshop()
    first, *others = started(workshop, callers, [1, 2, 3])
    workshop.gate.release()
    first.result(PATIENCE)
    wait_for(lambda: len(workshop.groups) == 2)
    workshop.answers = answers
    workshop.gate.release()
    for future in others:
        assert isinstance(future.exception(PATIENCE), ValueError)


# deadlines


def run_within(workshop: Workshop, seconds: float, number: int) -> int:
    with deadline.limit(seconds):
        return workshop.combiner.run(number)


def test_a_caller_whose_time_ends_before_its_turn_leaves(callers: ThreadPoolExecutor) -> None:
    """Its request is never looked at; those behind it are."""
    workshop = Workshop()
    started(workshop, callers, [1])
    late = callers.submit(run_within, workshop, 0.05, 2)
    wait_for(lambda: workshop.waiting() == 1)
    patient = callers.submit(workshop.combiner.run, 3)
    failure = late.exception(PATIENCE)
    assert isinstance(failure, NotBegun)
    assert failure.msg.startswith(f"{PLACE} does not answer")
    workshop.gate.release(2)
    assert patient.result(PATIENCE) == 6
    assert workshop.groups == [[1], [3]]


def test_a_caller_whose_time_ends_in_its_group_learns_that_the_outcome_is_unknown(callers: ThreadPoolExecutor) -> None:
    """The group is carried on for the others."""
    workshop = Workshop()
    first, patient = started(workshop, callers, [1, 2])
    late = callers.submit(run_within, workshop, 0.2, 3)
    wait_for(lambda: workshop.waiting() == 2)
    workshop.gate.release()
    first.result(PATIENCE)
    failure = late.exception(PATIENCE)
    assert isinstance(failure, OutcomeUnknown)
    assert failure.msg.startswith(f"{PLACE} does not answer")
    workshop.gate.release()
    assert patient.result(PATIENCE) == 4
    assert workshop.groups == [[1], [2, 3]]


def test_a_caller_without_time_does_not_begin() -> None:
    workshop = Workshop()
    with pytest.raises(NotBegun):
        run_within(workshop, 0.0, 1)
    assert workshop.groups == []


def test_the_caller_with_the_most_time_leads(callers: ThreadPoolExecutor) -> None:
    """Or the deadline of one would end the requests of all."""
    left: list[float] = []
    gate = threading.Semaphore(0)

    def work(numbers: Sequence[int]) -> Sequence[int]:
        left.append(deadline.remaining(99.0))
        assert gate.acquire(timeout=PATIENCE)
        return list(numbers)

    def ask(seconds: float) -> int:
        with deadline.limit(seconds):
            return combiner.run(1)

    combiner: Batcher[int, int] = Batcher(work, lambda: PLACE)
    futures = [callers.submit(ask, 50.0)]
    wait_for(lambda: len(left) == 1)
    for place, seconds in enumerate((10.0, 60.0, 20.0), 1):
        futures.append(callers.submit(ask, seconds))
        wait_for(lambda place=place: len(combiner._waiting) == place)  # type: ignore[misc]
    gate.release(2)
    assert [future.result(PATIENCE) for future in futures] == [1] * 4
    assert len(left) == 2
    assert left[1] > 50.0


class SlowToLead(Batcher[int, int]):
    """The first leader begins only when `arrived` is set."""

    arrived: threading.Event

    def _lead(self, leader: "_Ticket[int, int]") -> bool:
        assert self.arrived.wait(PATIENCE)
        return super()._lead(leader)


def test_a_leader_without_time_hands_over_to_a_later_caller(callers: ThreadPoolExecutor) -> None:
    """Two requests with more time arrive after the first caller became the leader and before it takes its batch."""
    workshop = Workshop(batcher=SlowToLead)
    SlowToLead.arrived = threading.Event()
    workshop.gate.release(2)

    def call(seconds: float, number: int) -> tuple[int, int]:
        return threading.get_ident(), run_within(workshop, seconds, number)

    first = callers.submit(call, 10.0, 1)
    wait_for(lambda: workshop.waiting() == 1)
    others = [callers.submit(call, 60.0, 2) for _ in range(2)]
    wait_for(lambda: workshop.waiting() == 3)
    SlowToLead.arrived.set()
    served = dict(future.result(PATIENCE) for future in others)
    assert first.result(PATIENCE)[1] == 2
    assert set(served.values()) == {4}
    assert workshop.groups[0][0] == 1
    assert workshop.leaders[0] in served
