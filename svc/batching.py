"""Group commit: calls that wait at the same time are carried out together.

The first caller leads: it takes everybody who waits (itself first), does the work once for all of them and hands out the
results. Whoever arrived meanwhile forms the next group, led by its own first member, so nobody works for others without end.

Where a group costs much and its size little, callers are announced: a leader waits for those that are on their way already.

No caller waits past the deadline of its call. Of those who wait, the one with the most time left leads: the deadline of one
request ends no other one.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from svc import deadline
from svc.datastore.api import OutcomeUnknown, StoreError

Request = TypeVar("Request")
Result = TypeVar("Result")

_REMEDY = "see whether it runs, is reached from here, and keeps up with the calls"
_SLACK_SECONDS = 1.0  # of two deadlines that differ by less, neither is worth a change of the leader


class NotBegun(StoreError):
    """The call's time ended before its request was looked at: nothing was done for it."""


class _Ticket(Generic[Request, Result]):
    """One caller: waits for its turn until it is answered or must lead; who leads at once has nothing to wait for."""

    __slots__ = ("answered", "deadline", "failure", "request", "result", "turn")

    def __init__(self, request: Request, turn: threading.Event | None) -> None:
        self.request = request
        self.deadline = deadline.current()
        self.result: Result | None = None
        self.failure: BaseException | None = None
        self.answered = False
        self.turn = turn

    def answer(self, outcome: Result | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self.failure = outcome
        else:
            self.result = outcome
        self.answered = True
        self.wake()

    def wake(self) -> None:
        if self.turn is not None:
            self.turn.set()


class Batcher(Generic[Request, Result]):
    """`run(request)` from any thread; `work` gets 1..`limit` requests and returns one outcome each, in order.

    An outcome that is an exception is raised in its caller; an exception out of `work` is raised in all of them. A caller whose
    deadline comes first gets NotBegun, or OutcomeUnknown where its group is being carried out. `place` returns, for these two,
    where `work` asks. `patience` is how many seconds after its announcement a request is waited for at most.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Request]], Sequence[Result | BaseException]],
        place: Callable[[], str],
        *,
        limit: int = 256,
        patience: float = 0.0,
    ) -> None:
        self._work = work
        self._place = place
        self._limit = limit
        self._patience = patience
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._announced: dict[int, float] = {}  # by thread: until when it is waited for
        self._waiting: list[_Ticket[Request, Result]] = []
        self._led = False

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Inside, this thread is going to `run` a request, unless something comes in between."""
        with self._lock:
            self._announced[threading.get_ident()] = time.monotonic() + self._patience
        try:
            yield
        finally:
            with self._lock:
                self._arrive()

    def run(self, request: Request) -> Result:
        with self._lock:
            self._arrive()
            if deadline.is_over():
                raise _not_begun(self._place())
            ticket: _Ticket[Request, Result] = _Ticket(request, threading.Event() if self._led else None)
            self._waiting.append(ticket)
            self._led = True
        if ticket.turn is not None:
            self._await_turn(ticket, ticket.turn)
        while not ticket.answered and not self._lead(ticket):
            assert ticket.turn is not None
            self._await_turn(ticket, ticket.turn)
        if ticket.failure is not None:
            raise ticket.failure
        return ticket.result  # type: ignore[return-value]

    def _await_turn(self, ticket: _Ticket[Request, Result], turn: threading.Event) -> None:
        """Return when the ticket is answered or has to lead. NotBegun, OutcomeUnknown."""
        if deadline.wait(turn):
            return
        with self._lock:
            if turn.is_set():
                return
            if ticket not in self._waiting:
                raise _outcome_unknown(self._place())
            self._waiting.remove(ticket)
        raise _not_begun(self._place())

    def _arrive(self) -> None:
        if self._announced.pop(threading.get_ident(), None) is not None:
            self._arrival.notify_all()

    def _await_announced(self) -> None:
        """As long as they outnumber those who wait: what a group gains then is worth it. Only those that are announced by now
        count: otherwise there might always be another one."""
        awaited = self._announced.copy()
        while len(self._waiting) < self._limit:
            now = time.monotonic()
            awaited = {thread: until for thread, until in awaited.items() if self._announced.get(thread) == until > now}
            if len(awaited) <= len(self._waiting):
                return
            self._arrival.wait(min(awaited.values()) - now)

    def _lead(self, leader: _Ticket[Request, Result]) -> bool:
        """Carry a group out; False where somebody else leads it, who has more time left."""
        with self._lock:
            self._await_announced()
            group = self._waiting[: self._limit]
            latest = _latest(group)
            if latest.deadline > leader.deadline + _SLACK_SECONDS:
                leader.turn = threading.Event()
                latest.wake()
                return False
            del self._waiting[: self._limit]
        answers: list[tuple[_Ticket[Request, Result], Result | BaseException]]
        try:
            answers = list(zip(group, self._work([ticket.request for ticket in group]), strict=True))
        except BaseException as failure:
            answers = [(group[0], failure), *((ticket, _twin(failure)) for ticket in group[1:])]
        finally:
            self._pass_on()
        for ticket, outcome in answers:
            ticket.answer(outcome)
        return True

    def _pass_on(self) -> None:
        with self._lock:
            self._led = bool(self._waiting)
            if self._waiting:
                _latest(self._waiting[: self._limit]).wake()


def _latest(group: Sequence[_Ticket[Request, Result]]) -> _Ticket[Request, Result]:
    """The first of those with the most time left."""
    latest = group[0]
    for ticket in group:
        if ticket.deadline > latest.deadline:
            latest = ticket
    return latest


def _not_begun(place: str) -> NotBegun:
    return NotBegun(
        f"{place} does not answer: the time of the call is over, and earlier requests still wait for an answer",
        details=f"{_REMEDY}; nothing of this request was done",
    )


def _outcome_unknown(place: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{place} does not answer: the time of the call is over, and whether the request was carried out is not known",
        details=f"{_REMEDY}; what was written for this call is released later",
    )


def _twin(failure: BaseException) -> BaseException:
    """The same failure as an object of its own: one that several threads raise would mix up their tracebacks."""
    twin = type(failure).__new__(type(failure), *failure.args)
    twin.__dict__.update(failure.__dict__)
    twin.__cause__, twin.__context__ = failure.__cause__, failure.__context__
    twin.__suppress_context__ = failure.__suppress_context__
    return twin.with_traceback(failure.__traceback__)
