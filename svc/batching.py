"""Batches of requests (group commit): requests that wait at the same time are executed together.

The first caller leads. It takes all waiting requests, runs the work once for the batch, and distributes the results. Requests
that arrive during the work form the next batch. A caller of that batch leads it, so that a caller leads only one batch.

No caller waits past the deadline of its call. Among the waiting callers, the one with the latest deadline leads, so that the
deadline of one request does not end other requests.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from svc import deadline
from svc.datastore.api import OutcomeUnknown, StoreError

Request = TypeVar("Request")
Result = TypeVar("Result")

_REMEDY = "see whether it runs, is reached from here, and keeps up with the calls"
_SLACK_SECONDS = 1.0  # deadlines that differ by less do not change the leader


class NotBegun(StoreError):
    """Failure because the deadline passed before the request was in a batch. The request has no effect."""


class _Ticket(Generic[Request, Result]):
    """Request of one caller, which waits for `turn` until it has a result or has to lead. A first leader has no `turn`."""

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
    """Batcher of requests. Thread-safe.

    `work` gets 1 to `limit` requests, and returns one outcome for each, in order. `run` raises an outcome that is an
    exception in its caller, and an exception of `work` in all callers. `place` returns the server of `work`, for errors.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Request]], Sequence[Result | BaseException]],
        place: Callable[[], str],
        *,
        limit: int = 256,
    ) -> None:
        self._work = work
        self._place = place
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: list[_Ticket[Request, Result]] = []
        self._led = False

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being executed, or requests wait."""
        return self._led

    def run(self, request: Request) -> Result:
        """Return the result of a request, or raise its failure. Block until then; the caller may lead a batch.

        At its deadline, a caller that does not lead raises NotBegun, or OutcomeUnknown if its batch is being executed.
        """
        with self._lock:
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
        """Wait for a result or for the lead. At the deadline raise NotBegun, or OutcomeUnknown if the batch has begun."""
        if deadline.wait(turn):
            return
        with self._lock:
            if turn.is_set():
                return
            if ticket not in self._waiting:
                raise OutcomeUnknown(
                    f"{self._place()} does not answer: the time of the call is over, "
                    "and whether the request was carried out is not known",
                    details=f"{_REMEDY}; what was written for this call is released later",
                )
            self._waiting.remove(ticket)
        raise _not_begun(self._place())

    def _lead(self, leader: _Ticket[Request, Result]) -> bool:
        """Execute a batch and return True. Return False if a caller with a later deadline has to lead it."""
        with self._lock:
            batch = self._waiting[: self._limit]
            latest = _latest(batch)
            if latest.deadline > leader.deadline + _SLACK_SECONDS:
                leader.turn = threading.Event()
                latest.wake()
                return False
            del self._waiting[: self._limit]
        answers: list[tuple[_Ticket[Request, Result], Result | BaseException]]
        try:
            answers = list(zip(batch, self._work([ticket.request for ticket in batch]), strict=True))
        except BaseException as failure:
            answers = [(batch[0], failure), *((ticket, _twin(failure)) for ticket in batch[1:])]
        finally:
            with self._lock:
                self._led = bool(self._waiting)
                if self._waiting:
                    _latest(self._waiting[: self._limit]).wake()
        for ticket, outcome in answers:
            ticket.answer(outcome)
        return True


def _latest(batch: Sequence[_Ticket[Request, Result]]) -> _Ticket[Request, Result]:
    return max(batch, key=lambda ticket: ticket.deadline)


def _not_begun(place: str) -> NotBegun:
    return NotBegun(
        f"{place} does not answer: the time of the call is over, and earlier requests still wait for an answer",
        details=f"{_REMEDY}; nothing of this request was done",
    )


def _twin(failure: BaseException) -> BaseException:
    """Copy a failure, because threads that raise the same object would mix up their tracebacks."""
    twin = type(failure).__new__(type(failure), *failure.args)
    twin.__dict__.update(failure.__dict__)
    twin.__cause__, twin.__context__ = failure.__cause__, failure.__context__
    twin.__suppress_context__ = failure.__suppress_context__
    return twin.with_traceback(failure.__traceback__)
