"""Watches: what is present, then every change, over lost connections and expired revisions."""

import logging
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any

from svc.datastore.api import Entry, Event
from svc.datastore.orch.client import ApiError, Client, Unreachable
from svc.datastore.orch.source import Source, name_of, revision_of
from svc.datastore.orch.stream import Stream
from svc.model.keys import Key

Json = dict[str, Any]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_GONE = 410  # the revision is too old to watch on from
_REFUSED = (401, 403, 404)  # asking again would not help

_log = logging.getLogger(__name__)


class Follower:
    """A watch of one collection that is kept up until it is closed. One thread uses it; any may close it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self.closed = threading.Event()

    def changes(self, source: Source, revision: str, *, accept: str = "application/json") -> Iterator[tuple[str, Json]]:
        """Type and object of each change after a revision; ends when it is closed or the revision has expired.

        StoreError when the server refuses or cannot be reached; Unreachable also when it breaks off before any change."""
        while not self.closed.is_set():
            stream = self._client.watch(source.path, revision, accept=accept, **source.params)
            try:
                if not self._hold(stream):
                    return
                yield "OPENED", {}
                for kind, data in stream:
                    if kind == "ERROR":
                        if data.get("code") != _GONE:
                            _log.warning("watch of %s: %s", source.path, data.get("message"))
                        return
                    revision = revision_of(data)
                    if kind != "BOOKMARK":
                        yield kind, data
            finally:
                self._hold(None)
                stream.release()
            yield "ENDED", {}

    def close(self) -> None:
        with self._lock:
            self.closed.set()
            if self._stream is not None:
                self._stream.close()

    def _hold(self, stream: Stream | None) -> bool:
        """False when it has been closed meanwhile."""
        with self._lock:
            self._stream = stream
            return not self.closed.is_set()


class Watcher:
    """The events of a query, as `svc.datastore.api.Watch` says. An outage is waited for; a refusal raises StoreError."""

    def __init__(self, client: Client, source: Source, wanted: Callable[[Key], bool]) -> None:
        self._client = client
        self._source = source
        self._wanted = wanted
        self._follower = Follower(client)
        self._known: dict[tuple[str, str], list[Key]] = {}  # by object
        self._events = self._run()

    def __iter__(self) -> "Watcher":
        return self

    def __next__(self) -> Event:
        if self._follower.closed.is_set():
            raise StopIteration
        return next(self._events)

    def close(self) -> None:
        """Where a thread is waiting for the next event, that one cleans up; else this one does."""
        self._follower.close()
        with suppress(ValueError):
            self._events.close()

    def _run(self) -> Generator[Event, None, None]:
        pause = _FIRST_PAUSE
        while not self._follower.closed.is_set():
            try:
                listing = self._client.list(self._source.path, **self._source.params)
                yield from self._listed(listing.items)
                for kind, data in self._follower.changes(self._source, listing.revision):
                    pause = _FIRST_PAUSE
                    yield from self._told(kind, data)
            except (Unreachable, ApiError) as error:
                if self._follower.closed.is_set():
                    return
                if isinstance(error, ApiError) and error.status in _REFUSED:
                    raise
                _log.warning("watch of %s is broken: %s", self._source.path, str(error))  # its frames hold sockets
            self._follower.closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _listed(self, items: Sequence[Json]) -> Iterator[Event]:
        before, self._known = self._known, {}
        found = [entry for data in items for entry in self._remembered(data)]
        present = {entry.key for entry in found}
        yield from (Event(key, None) for keys in before.values() for key in keys if key not in present)
        yield from (Event(entry.key, entry) for entry in found)

    def _told(self, kind: str, data: Json) -> Iterator[Event]:
        if kind in ("OPENED", "ENDED"):
            return
        before = self._known.pop(name_of(data), [])
        found = [] if kind == "DELETED" else self._remembered(data)
        present = {entry.key for entry in found}
        yield from (Event(key, None) for key in before if key not in present)
        yield from (Event(entry.key, entry) for entry in found)

    def _remembered(self, data: Json) -> list[Entry]:
        found = [entry for entry in self._source.entries([data]) if self._wanted(entry.key)]
        if found:
            self._known[name_of(data)] = [entry.key for entry in found]
        return found


class Watchers:
    """Those of one store that somebody still holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[Watcher] = weakref.WeakSet()

    def add(self, watcher: Watcher) -> Watcher:
        with self._lock:
            self._held.add(watcher)
        return watcher

    def close(self) -> None:
        with self._lock:
            held = tuple(self._held)
        for watcher in held:
            watcher.close()
