"""Bounded queues of changes, from the thread that commits to the threads that watch.

1. Every change has the number of its transaction. A watcher lists the present entries first. It then drops the queued changes
   that the listing already shows. It thus misses no change, keeps their order, and holds no lock while it lists.
2. The queue of a watcher that lags more than `LIMIT` changes is cleared. The watcher then lists again, and also reports the
   keys that were deleted since.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from svc.datastore.api import Entry, Event, Watch
from svc.datastore.watching import Listing, PresentKeys
from svc.model.keys import Key
from svc.values import dataclass

LIMIT = 1024  # changes in the queue of a watcher


@dataclass(frozen=True, slots=True)
class Change:
    """Committed change. `number` is that of its transaction. `entry` returns a new entry, None if the key was deleted."""

    key: Key
    number: int
    entry: Callable[[], Entry | None]


class Watcher(Watch):
    """Watch of an embedded store."""

    def __init__(self, listing: Listing, wanted: Callable[[Key], bool], listed: Callable[[], None] | None = None) -> None:
        self._listing = listing
        self._wanted = wanted
        self._on_listed = listed
        self._is_listing = False  # until the reader has got all events of a listing
        self._changes: deque[Change] = deque()
        self._listed: deque[Event] = deque()
        self._present = PresentKeys()
        self._horizon = 0
        self._stale = True
        self._closed = False
        self._news = threading.Condition()

    def __next__(self) -> Event:
        while not self._closed:
            if self._listed:
                return self._listed.popleft()
            if self._is_listing:
                self._is_listing = False
                if self._on_listed is not None:
                    self._on_listed()
            if self._stale:
                self._list()
            elif (event := self._await_event()) is not None:
                return event
        raise StopIteration

    def feed(self, changes: Sequence[Change]) -> None:
        """Queue the changes that match the query. The caller calls it in the order of the transactions."""
        wanted = [change for change in changes if self._wanted(change.key)]
        if not wanted or self._stale:
            return
        with self._news:
            if len(self._changes) + len(wanted) > LIMIT:
                self._changes.clear()
                self._stale = True
            else:
                self._changes.extend(wanted)
            self._news.notify()

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify()

    def _list(self) -> None:
        with self._news:
            self._stale = False  # before listing, so that changes committed from here on are queued
        try:
            self._horizon, entries = self._listing()
        except BaseException:
            self._stale = True
            raise
        self._is_listing = True
        self._listed.extend(self._present.listed((entry.key, (entry,)) for entry in entries))

    def _await_event(self) -> Event | None:
        """Wait for the next change. Return its event; None if the caller has to list again, stop or wait for another one."""
        with self._news:
            self._news.wait_for(lambda: self._changes or self._stale or self._closed)
            if self._stale or self._closed:
                return None
            change = self._changes.popleft()
        if change.number <= self._horizon:
            return None
        entry = change.entry()
        return next(iter(self._present.changed(change.key, () if entry is None else (entry,))), None)
