"""Watches that go on when connections break, servers restart and history is compacted.

A watcher lists what is there and follows from the next revision on. After a broken connection it follows from where it was;
when etcd has compacted that away, it lists again and tells what is gone.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable

from svc.datastore.api import Entries, Event, StoreError
from svc.datastore.etcd.link import Compacted, Link, Stream, Unanswered
from svc.datastore.etcd.messages import Message, WatchCreateRequest
from svc.datastore.etcd.outage import Outage
from svc.model.keys import Key
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Listing:
    """What was there at one revision."""

    revision: int
    entries: Entries


Reading = Callable[[Message], Event | None]
"""The event that a KeyValue means; None when it is none of the query."""


class Watcher:
    """An iterator over events. One thread iterates; any thread may close. Reads over the network as it is iterated."""

    def __init__(self, link: Link, span: tuple[bytes, bytes], listing: Callable[[], Listing], read: Reading) -> None:
        self._link = link
        self._span = span
        self._listing = listing
        self._read = read
        self._next = 0  # the revision to go on from; 0 when everything has to be listed
        self._known: dict[Key, None] = {}  # a set that keeps its order
        self._told: deque[Event] = deque()
        self._stream: Stream | None = None
        self._outage = Outage(link, span[0].decode())
        self._closing = threading.Lock()
        self._closed = threading.Event()

    def __iter__(self) -> "Watcher":
        return self

    def __next__(self) -> Event:
        while not self._closed.is_set():
            if self._told:
                return self._told.popleft()
            self._advance()
        raise StopIteration

    def close(self) -> None:
        with self._closing:
            self._closed.set()
            if self._stream is not None:
                self._stream.cancel()

    def _advance(self) -> None:
        """One step towards the next event; StoreError when etcd refuses to go on."""
        try:
            if self._next:
                self._take(self._opened().receive())
            else:
                self._list()
        except Compacted:
            self._stream, self._next = None, 0
        except Unanswered as failure:
            self._stream = None
            self._outage.wait(failure, self._closed)
        except StoreError:
            if not self._closed.is_set():
                raise

    def _opened(self) -> Stream:
        with self._closing:
            if self._stream is None:
                key, end = self._span
                create = WatchCreateRequest(key=key, range_end=end, start_revision=self._next, progress_notify=True)
                self._stream = self._link.watch(create)
            if self._closed.is_set():
                self._stream.cancel()
            return self._stream

    def _list(self) -> None:
        listing = self._listing()
        present = {entry.key: None for entry in listing.entries}
        self._told.extend(Event(key, None) for key in self._known if key not in present)
        self._told.extend(Event(entry.key, entry) for entry in listing.entries)
        self._known = present
        self._next = listing.revision + 1

    def _take(self, answer: Message) -> None:
        self._outage.over()
        for change in answer.events:
            event = self._read(change.kv)
            if event is not None:
                self._tell(event)
        if answer.events:
            self._next = answer.events[-1].kv.mod_revision + 1
        elif not answer.created:  # a sign of progress
            self._next = max(self._next, answer.header.revision + 1)

    def _tell(self, event: Event) -> None:
        if event.entry is None:
            self._known.pop(event.key, None)
        else:
            self._known[event.key] = None
        self._told.append(event)


class Watchers:
    """Those of one store. A watcher that nobody holds any more is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Watcher] = weakref.WeakSet()

    def add(self, watcher: Watcher) -> Watcher:
        with self._lock:
            self._all.add(watcher)
        return watcher

    def close(self) -> None:
        with self._lock:
            watchers = tuple(self._all)
        for watcher in watchers:
            watcher.close()
