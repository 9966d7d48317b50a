"""A controller: one thread that makes items of the datastore what they should be, and tries failed items again for ever."""

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from svc.controllers.conditions import Conditions
from svc.controllers.configuration import Live
from svc.controllers.dispute_limit import DisputeLimit
from svc.controllers.guarded_store import CountedStore
from svc.controllers.retry_queue import RetryQueue
from svc.controllers.table import Table
from svc.controllers.tables import Tables
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client
from svc.leader.election import Election, NotLeading
from svc.metrics import Sample
from svc.model.errors import SvcError
from svc.names import Names
from svc.values import dataclass, field, replace

Item = TypeVar("Item", bound=Hashable)

_POLL_SECONDS = 1.0  # maximum time until the thread sees that this process leads no longer
_REPEAT_SECONDS = 60.0  # between two warnings of different items for one reason, such as a locked datastore

STUCK_SECONDS = 600.0  # after which one item or one comparison of all counts as stuck; its requests have deadlines

log = logging.getLogger("svc.controllers")


class Unsettled(Exception):
    """The failure to settle an item because of its content. The message says what is wrong."""


@dataclass(slots=True)
class Tally:
    """Numbers of a controller since its start: settled and failed attempts, its full rounds with their time, and its writes."""

    settled: int = 0
    failed: int = 0
    rounds: int = 0
    round_seconds: float = 0.0
    written: int = 0

    def count_written(self, number: int) -> None:
        """Count objects that were written."""
        self.written += number


@dataclass(frozen=True, slots=True)
class Shared:
    """What the controllers of a process share. `store` refuses writes unless the process leads and the datastore is ready.

    `fail` is called with the reason if a thread ends because of a bug. The `tally` is that of one part, see `for_part`.
    """

    client: Client
    store: Backend
    tables: Tables
    names: Names
    election: Election
    live: Live
    conditions: Conditions
    fail: Callable[[str], None]
    tally: Tally = field(default_factory=Tally)

    def for_part(self) -> "Shared":
        """Return the same with a tally of its own, which counts the writes of its session."""
        tally = Tally()
        return replace(self, tally=tally, store=CountedStore(self.store, tally.count_written))


class Controller(ABC, Generic[Item]):
    """One controller. `start` starts its thread, `stop` ends it. It writes only while this process leads.

    Listeners of the tables `add` the items that may differ. A full round begins with the lead, then after each
    period of the configuration.
    """

    name: str

    def __init__(self, shared: Shared, tables: Sequence[Table[Any, Any]]) -> None:
        self.shared = shared
        self._tables = tables
        self._changed = threading.Condition()  # guards the queue
        self._queue: RetryQueue[Item] = RetryQueue()
        self._disputes: DisputeLimit[Item] = DisputeLimit()
        self._round_began = -math.inf
        self._open_round: float | None = None  # when the round began whose items are not all tried
        self._work: tuple[float, str] | None = None  # since when this thread works, and on what
        self._warned: tuple[Item | None, str, float] = None, "", 0.0  # the last warning: its item, the reason, and when
        self.tally = shared.tally
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @abstractmethod
    def round_items(self) -> Iterable[Item]:
        """Return the items of a full round: those that differ as far as the tables show. Send no request."""

    @abstractmethod
    def settle(self, item: Item) -> None:
        """Read what the item depends on, and write the difference. Raise Unsettled, NotLeading, SvcError."""

    def shown(self, item: Item) -> str:
        """Return the name of an item for the log."""
        return str(item)

    def families(self) -> Iterable[Sample]:
        """Return the samples of the metrics that only this controller has. `metric_families.py` describes each family."""
        return ()

    @property
    def round_seconds(self) -> float:
        """The seconds between full rounds."""
        return self.shared.live.now.round_seconds(self.name)

    def start(self) -> None:
        self._thread.start()

    def add(self, items: Iterable[Item]) -> None:
        """Put items into the queue. Any thread may call this. Do nothing before all tables are filled: a round follows then."""
        if not self.is_ready:
            return
        with self._changed:
            now, size = time.monotonic(), len(self._queue)
            for item in items:
                self._queue.add(item, now)
            if len(self._queue) > size:
                self._changed.notify_all()

    def begin_round(self) -> None:
        """Begin a full round now."""
        with self._changed:
            self._round_began = -math.inf
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin no further item."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def await_writes(self, seconds: float) -> bool:
        """Wait after `stop` until no write is in flight. Return False if one still is after this time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether the tables show everything, and the configuration is known."""
        return self.shared.live.is_known and all(table.is_filled for table in self._tables)

    @property
    def waiting(self) -> int:
        """The number of items in the queue."""
        return len(self._queue)

    @property
    def trouble(self) -> str:
        """What is wrong with the thread; empty if it works."""
        if not self._thread.is_alive():
            return f"controller {self.name} has ended"
        work = self._work
        seconds = time.monotonic() - work[0] if work else 0.0
        return f"controller {self.name} has worked on {work[1]} for {seconds:.0f} s" if work and seconds > STUCK_SECONDS else ""

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                item = self._next()
                if item is not None:
                    self._attempt(item)
        except Exception as bug:  # otherwise the process would lead on, and this controller would write nothing
            log.exception("controller %s has failed", self.name)
            self.shared.fail(f"controller {self.name}: {bug!r}")

    def _next(self) -> Item | None:
        """Return an item that is due. Wait at most _POLL_SECONDS for one, and return None then."""
        now = time.monotonic()
        if self.shared.election.leads and self.is_ready and now >= self._round_began + self.round_seconds:
            self._round_began = self._open_round = now
            self._work = now, "a full round"
            self._forget_disputes(now)
            self.add(self.round_items())
            self._work = None
        with self._changed:
            if self.shared.election.leads and (item := self._queue.take(time.monotonic())) is not None:
                return item
            self._end_round()
            self._changed.wait(_POLL_SECONDS)
            return None

    def _end_round(self) -> None:
        """Count the round that is open, because no item is due any more. Its failed items may still wait."""
        if self._open_round is not None:
            seconds = time.monotonic() - self._open_round
            log.debug("controller %s: a full round of %s took %.2f s", self.name, type(self).__name__, seconds)
            self.tally.rounds += 1
            self.tally.round_seconds += seconds
            self._open_round = None

    def _attempt(self, item: Item) -> None:
        """Settle an item. After a failure, put it back."""
        reason: Exception
        written = self.tally.written
        self._work = time.monotonic(), self.shown(item)
        try:
            self.settle(item)
        except NotLeading:
            with self._changed:
                self._queue.add(item, time.monotonic())
            return
        except (SvcError, Unsettled) as failure:
            reason = failure
        else:
            self.tally.settled += 1
            with self._changed:
                has_failed = self._queue.done(item)
            if has_failed:
                log.info("controller %s: %s is up to date after failures", self.name, self.shown(item))
            if self.tally.written > written:
                self._limit_dispute(item, time.monotonic())
            return
        finally:
            self._work = None
        self.tally.failed += 1
        with self._changed:
            delay = self._queue.failed(item, time.monotonic())
        lines = reason.as_text().splitlines() if isinstance(reason, SvcError) else [str(reason)]
        text = "; ".join(line.strip() for line in lines)
        level = logging.DEBUG if self._is_repeated(item, text) else logging.WARNING
        log.log(level, "controller %s: %s is tried again in %.0f s: %s", self.name, self.shown(item), delay, text)

    def _limit_dispute(self, item: Item, now: float) -> None:
        """Let an item pause that was written very often of late, because another program changes it each time."""
        if pause := self._disputes.written(item, now):
            with self._changed:
                self._queue.hold(item, now + pause)
            text = f"it has changed very often: changes are followed only after {pause:.0f} s. Does another program write it?"
            level = logging.DEBUG if self._is_repeated(item, text) else logging.WARNING
            log.log(level, "controller %s: %s: %s", self.name, self.shown(item), text)

    def _forget_disputes(self, now: float) -> None:
        self._disputes.forget_before(now)
        with self._changed:
            self._queue.forget_held(now)

    def _is_repeated(self, item: Item, reason: str) -> bool:
        """Return whether the log has just warned of another item for this reason. Thousands of items may share one."""
        now = time.monotonic()
        warned, known, since = self._warned
        if reason == known and item != warned and now - since < _REPEAT_SECONDS:
            return True
        self._warned = item, reason, now
        return False
