"""Changes handed from the thread that commits them to the threads that watch, through bounded queues.

1. Every change carries the number of its transaction. A watcher lists what is present first, and drops from its queue what
   that listing had already seen: so nothing is missed and nothing is told out of order, and no lock is held while listing.
2. A watcher that lags more than `LIMIT` changes behind loses its queue and lists again; it is told of keys gone meanwhile.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from svc.datastore.api import Entry, Event
from svc.datastore.watching import OpenWatches, PresentKeys
from svc.model.keys import Key

LIMIT = 1024  # changes a watcher may lag behind


class Change(Protocol):
    """A committed change."""

    @property
    def key(self) -> Key: ...
    @property
    def number(self) -> int:
        """Of its transaction; grows."""

    def entry(self) -> Entry | None:
        """Made afresh for every watcher; None when the key is gone."""


Listing = Callable[[], tuple[int, Sequence[Entry]]]
"""What is present, and the number of the last transaction that it shows."""


class Watcher:
    """An iterator over events. One thread iterates; any thread may close."""

    def __init__(self, listing: Listing, wanted: Callable[[Key], bool]) -> None:
        self._listing = listing
        self._wanted = wanted
        self._changes: deque[Change] = deque()
        self._listed: deque[Event] = deque()
        self._present = PresentKeys()
        self._horizon = 0
        self._stale = True
        self._closed = False
        self._news = threading.Condition()

    def __iter__(self) -> "Watcher":
        return self

    def __next__(self) -> Event:
        while not self._closed:
            if self._listed:
                return self._listed.popleft()
            if self._stale:
                self._list()
            elif (event := self._await_event()) is not None:
                return event
        raise StopIteration

    def feed(self, changes: Sequence[Change]) -> None:
        """Queues what is wanted. Called in the order of the transactions."""
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
            self._stale = False  # before listing: what is committed from here on is queued
        try:
            self._horizon, entries = self._listing()
        except BaseException:
            self._stale = True
            raise
        self._listed.extend(self._present.listed((entry.key, (entry,)) for entry in entries))

    def _await_event(self) -> Event | None:
        """None when there is something else to do: list again, or stop."""
        with self._news:
            self._news.wait_for(lambda: self._changes or self._stale or self._closed)
            if self._stale or self._closed:
                return None
            change = self._changes.popleft()
        if change.number <= self._horizon:
            return None
        entry = change.entry()
        return next(iter(self._present.changed(change.key, () if entry is None else (entry,))), None)


class Feed(OpenWatches[Watcher]):
    """The watchers of one store."""

    def publish(self, changes: Sequence[Change]) -> None:
        """Queue the changes of a transaction for every watcher."""
        for watcher in self:
            watcher.feed(changes)
