"""Shared parts of the watches of all stores: the reconnecting loop, the events of a query, and the keys reported so far."""

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from svc.datastore.api import Entry, Event, Watch
from svc.model.errors import SvcError
from svc.model.keys import Key
from svc.retry import Backoff

MIN_BACKOFF = 0.1  # seconds before a stream is opened again

Step = TypeVar("Step")  # of a watch: a list of the present objects, the opening of a stream, or changes
AnyWatch = TypeVar("AnyWatch", bound=Watch)

Listing = Callable[[], tuple[int, Sequence[Entry]]]
"""Returns the number of the last transaction, and the present entries at it."""

_log = logging.getLogger(__name__)


class Reconnecting(Generic[Step]):
    """Watch that reopens its stream until `close`. One thread iterates over `steps`; any thread may close it."""

    raises_refusals = False  # whether to raise an error that a retry cannot resolve, instead of retrying it like any other

    def __init__(self, what: str, max_backoff: float) -> None:
        """Set the name of the watch for the log, and the maximum back-off in seconds."""
        self._what = what
        self._max_backoff = max_backoff
        self._lock = threading.Lock()
        self._close_stream: Callable[[], None] | None = None
        self._closed = threading.Event()
        self.failure = ""  # of the last attempt; empty once a server has answered since

    @property
    def is_closed(self) -> bool:
        """Return whether `close` was called."""
        return self._closed.is_set()

    def steps(self) -> Generator[Step | None, None, None]:
        """Yield the steps of each attempt, then None when it ends or fails. Before the next step, changes may be missed."""
        backoff, interrupted = Backoff(MIN_BACKOFF, self._max_backoff), False
        while not self._closed.is_set():
            try:
                for step in self._attempt():
                    if self.is_contact(step):  # other steps come before the server has answered
                        if interrupted:
                            _log.info("the watch of %s continues", self._what)
                        interrupted, self.failure = False, ""
                        backoff.reset()
                    yield step
            except SvcError as failure:
                self._report(failure, interrupted=interrupted)
                interrupted = True
            yield None
            if not self._closed.is_set():
                delay = backoff.next()
                self._before_retry(delay)
                self._closed.wait(delay)

    def is_change(self, step: Step) -> bool:  # noqa: ARG002 by default, every step is one
        """Return whether a step means that a resource may have changed."""
        return True

    def list_again(self) -> None:
        """List the present objects in the next attempt. The iterating thread calls this between two attempts."""

    def is_contact(self, step: Step) -> bool:  # noqa: ARG002 by default, every step is one
        """Return whether a step shows that the server answers."""
        return True

    def close(self) -> None:
        """End the iteration."""
        with self._lock:
            self._closed.set()
            if self._close_stream is not None:
                self._close_stream()

    def _attempt(self) -> Iterator[Step]:
        """Open a stream and yield its changes. Raise SvcError if it breaks."""
        raise NotImplementedError

    def _is_refusal(self, failure: SvcError) -> bool:
        """Return whether a retry cannot resolve this failure."""
        raise NotImplementedError

    def _before_retry(self, seconds: float) -> None:
        """Prepare the attempt that follows after this delay."""

    @contextmanager
    def _closing(self, close: Callable[[], None]) -> Iterator[None]:
        """Have the `close` of this watch call the one of a stream while the block runs."""
        with self._lock:
            self._close_stream = close
            if self._closed.is_set():
                close()
        try:
            yield
        finally:
            with self._lock:
                self._close_stream = None

    def _report(self, failure: SvcError, *, interrupted: bool) -> None:
        """Log the first failure of an outage, or raise a refusal. Log text only, because the traceback references sockets."""
        if self._closed.is_set():
            return
        self.failure = str(failure)
        if self.raises_refusals and self._is_refusal(failure):
            raise failure
        if not interrupted:
            _log.warning("the watch of %s is interrupted and will be opened again: %s", self._what, str(failure))


class EventStream(Watch):
    """Events of a query, derived from the steps of a watch.

    `listed` is called after the last event of each complete listing, in the thread that iterates. After an interruption of
    `longest_gap` seconds the watch lists the present objects, instead of reporting what it has missed: only a listing shows
    when everything was reported.
    """

    longest_gap = math.inf

    def __init__(
        self,
        watch: Reconnecting[Step],
        events: Callable[[Step], Iterable[Event]],
        ends_listing: Callable[[Step], bool],
        listed: Callable[[], None] | None,
    ) -> None:
        self._watch: Reconnecting[Any] = watch
        self._events = _events_of(self._noted(watch), events, ends_listing, listed)

    def _noted(self, watch: Reconnecting[Step]) -> Iterator[Step]:
        """Yield the steps of a watch, and note since when it is interrupted. Its reader ends that by taking the next step."""
        for step in watch.steps():
            if step is not None:
                yield step
                if watch.is_contact(step):
                    self.interrupted_since, self.failure = None, ""
                continue
            self.failure = watch.failure
            now = time.monotonic()
            since = self.interrupted_since = now if self.interrupted_since is None else self.interrupted_since
            if now - since >= self.longest_gap:
                watch.list_again()

    def __next__(self) -> Event:
        if self._watch.is_closed:
            raise StopIteration
        return next(self._events)

    def close(self) -> None:
        """End the iteration. The iterating thread releases the stream; if no thread is iterating, this thread does."""
        self._watch.close()
        with suppress(ValueError):  # raised if another thread is iterating
            self._events.close()


def _events_of(
    steps: Iterator[Step],
    events: Callable[[Step], Iterable[Event]],
    ends_listing: Callable[[Step], bool],
    listed: Callable[[], None] | None,
) -> Generator[Event, None, None]:
    for step in steps:
        yield from events(step)
        if listed is not None and ends_listing(step):
            listed()


class PresentKeys:
    """Keys that a watch has reported as present, by the stored object that they were read from."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Sequence[Key]] = {}
        self._before: dict[Hashable, Sequence[Key]] = {}  # known before a listing that has not ended

    def listed(self, objects: Iterable[tuple[Hashable, Sequence[Entry]]]) -> list[Event]:
        """Return the events of a new listing: every present entry, then the deleted keys."""
        self.begin_listing()
        return self.page(objects) + self.end_listing()

    def begin_listing(self) -> None:
        """Begin a listing in pages. A listing that was interrupted is forgotten."""
        self._before |= self._known
        self._known = {}

    def page(self, objects: Iterable[tuple[Hashable, Sequence[Entry]]]) -> list[Event]:
        """Return the events of a page: its present entries."""
        return [Event(entry.key, entry) for name, found in objects for entry in self._remember(name, found)]

    def end_listing(self) -> list[Event]:
        """Return the events of the keys that are no longer present."""
        before, self._before = self._before, {}
        present = {key for keys in self._known.values() for key in keys}
        gone = dict.fromkeys(key for keys in before.values() for key in keys if key not in present)
        return [Event(key, None) for key in gone]

    def changed(self, name: Hashable, found: Sequence[Entry]) -> list[Event]:
        """Return the events of a change of one object, which now has these entries."""
        before = self._known.pop(name, ())
        present = {entry.key for entry in self._remember(name, found)}
        gone = [Event(key, None) for key in before if key not in present]
        return gone + [Event(entry.key, entry) for entry in found]

    def _remember(self, name: Hashable, found: Sequence[Entry]) -> Sequence[Entry]:
        if found:
            self._known[name] = tuple(entry.key for entry in found)  # needs less memory than a list
        return found


class OpenWatches(Generic[AnyWatch]):
    """Weak references to the watches of one store: a watch that its caller drops is removed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: weakref.WeakSet[AnyWatch] = weakref.WeakSet()

    def __bool__(self) -> bool:
        """Return whether the store has an open watch."""
        return bool(self._watches)

    def __iter__(self) -> Iterator[AnyWatch]:
        with self._lock:
            return iter(tuple(self._watches))

    def add(self, watch: AnyWatch) -> AnyWatch:
        """Register the watch, so that `close` closes it. Return it."""
        with self._lock:
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """Close all watches."""
        for watch in self:
            watch.close()
