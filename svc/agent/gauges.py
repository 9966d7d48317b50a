"""Gauges of the agent, computed when metrics are read. Nothing here sends a request to a datastore or waits for a server."""

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import svc
from svc import deadline
from svc.agent.queue import AdmissionQueue
from svc.attach import oneshot_calls
from svc.attach.context import Context
from svc.attach.journal import Journal
from svc.attach.record import ADDED, ADDING, DELETING, WAITING
from svc.dataplane.kernel import FAILURES
from svc.datastore.api import StoreError
from svc.metrics import Sample
from svc.metrics.process import process_samples, start_time

_SHARE: Final = 200  # the journal is not read again before this multiple of the time that reading it took
_READ_SECONDS: Final = 0.2  # limit of the wait for another process that locks the journal


class Gauges:
    """The gauges. For one reader at a time; `others` return those that need jobs, if metrics are served."""

    def __init__(self, context: Context, queue: AdmissionQueue, others: Sequence[Callable[[], Iterable[Sample]]] = ()) -> None:
        self._context = context
        self._queue = queue
        self._others = others
        self._attachments = _Attachments(context.journal)
        self._build = (("version", svc.__version__), ("python", platform.python_version()))
        self._started = start_time()

    def samples(self) -> Iterator[Sample]:
        """Yield the present values."""
        yield "queue_depth", (), len(self._queue)
        yield "calls_in_flight", (), self._queue.calls_in_flight()
        yield from self._attachments.samples()
        for samples in self._others:
            yield from samples()
        expiry = self._context.token_expires()
        if expiry is not None:
            yield "token_expiry_seconds", (), round(expiry - time.time(), 3)
        yield from (("netlink_errors_total", (("errno", name),), number) for name, number in sorted(FAILURES.copy().items()))
        yield "build_info", self._build, 1
        yield from process_samples()
        yield "process_start_time_seconds", (), self._started


class _Attachments:
    """Counts of the rows in the journal. They are read again only if that takes a small share of the time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._due = 0.0  # monotonic time
        self._states: Counter[str] = Counter()
        self._oneshot = 0
        self._pending: dict[int, float] = {}  # Unix time since which the release is pending, by generation

    def samples(self) -> Iterator[Sample]:
        with suppress(StoreError), deadline.limit(_READ_SECONDS):  # calls report its errors; the last values stay
            self._read_if_due()
        yield "oneshot_calls_total", (), self._oneshot
        for state in (WAITING, ADDING, ADDED, DELETING):
            yield "attachments", (("state", state),), self._states[state]
        yield "pending_releases", (), len(self._pending)
        oldest = min(self._pending.values(), default=None)
        yield "pending_release_oldest_seconds", (), 0 if oldest is None else max(0, round(time.time() - oldest, 3))

    def _read_if_due(self) -> None:
        began = time.monotonic()
        if began < self._due:
            return
        rows = self._journal.states()
        self._states = Counter(state for _, state, _ in rows)
        seen = time.time()  # for rows of earlier builds
        self._pending = {number: since or self._pending.get(number, seen) for number, state, since in rows if state == DELETING}
        self._oneshot = oneshot_calls.read_number(self._journal)
        now = time.monotonic()
        self._due = now + _SHARE * (now - began)
