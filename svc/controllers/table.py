"""Tables in memory that follow objects: a short row for each object of a collection or a query, kept current by a watch."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Generic, TypeVar

from svc.datastore.api import Backend, Entry, Event, Watch
from svc.datastore.orch.client import Client
from svc.datastore.orch.watch import BEGUN, DELETED, LISTED, OPENED, PAGE, PagedWatch
from svc.heap import return_free_memory
from svc.model.errors import SvcError
from svc.model.keys import Query
from svc.retry import Backoff

Json = dict[str, Any]
K = TypeVar("K", bound=Hashable)
Row = TypeVar("Row")
Fail = Callable[[str], None]  # is called with the reason if a thread ends because of a bug

GAP_SECONDS = 15.0  # of an interruption after which the objects are listed again
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 30.0  # seconds before a query is watched again

log = logging.getLogger("svc.controllers")


class Table(ABC, Generic[K, Row]):
    """Rows by key, and the thread that follows the objects. Any thread may read.

    A row is a hint: it may be older than the object. So a writer reads the object again.
    """

    def __init__(self, what: str, fail: Fail) -> None:
        self._what = what
        self._fail = fail
        self._rows: dict[K, Row] = {}
        self._listing: dict[K, Row] | None = None  # rows of a listing that has not ended
        self._filled = False
        self._interrupted_since: float | None = None
        self._began = 0.0  # when the listing began
        self._lock = threading.Lock()
        self._listeners: list[Callable[[Collection[K]], None]] = []
        self._thread = threading.Thread(target=self._run, name=f"watch-{what}", daemon=True)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_filled(self) -> bool:
        """Whether all objects were listed once. Until then, a missing row means nothing."""
        return self._filled

    @property
    def lag(self) -> float:
        """The seconds for which changes may be missing; 0 while the watch reports them as they come."""
        since = self._interrupted_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def what(self) -> str:
        """The objects, for messages."""
        return self._what

    def get(self, key: K) -> Row | None:
        """Return the row of a key, if the table has one."""
        return self._rows.get(key)

    def snapshot(self) -> Mapping[K, Row]:
        """Return a copy of all rows."""
        with self._lock:
            return dict(self._rows)

    def on_change(self, listener: Callable[[Collection[K]], None]) -> None:
        """Have a listener called with the keys whose rows may have changed, in the thread of the table. Call before `start`.

        It is called with all present and former keys after each listing.
        """
        self._listeners.append(listener)

    def start(self) -> None:
        self._thread.start()

    @property
    def trouble(self) -> str:
        """What is wrong with the thread; empty if it works."""
        return "" if self._thread.is_alive() else f"the watch of {self._what} has ended"

    @abstractmethod
    def stop(self) -> None:
        """End the watch."""

    @abstractmethod
    def _follow(self) -> None:
        """Follow the objects until `stop`, with the methods below."""

    def _begin_listing(self) -> None:
        self._began, self._listing = time.monotonic(), {}

    def _list(self, key: K, row: Row | None) -> None:
        """Note an object of a listing; None if it was deleted or the table leaves it out."""
        assert self._listing is not None
        if row is None:
            self._listing.pop(key, None)
        else:
            self._listing[key] = row

    def _end_listing(self) -> None:
        listed, self._listing = self._listing or {}, None
        with self._lock:
            before, self._rows = self._rows, listed
            self._filled = True
        log.debug("table of %s: %d rows after %.1f s", self._what, len(listed), time.monotonic() - self._began)
        return_free_memory()  # of the pages
        self._tell(before.keys() | listed.keys())

    def _note(self, key: K, row: Row | None) -> None:
        """Note a changed object; None if it was deleted or the table leaves it out."""
        with self._lock:
            before = self._rows.get(key)
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row
        if before != row:
            self._tell((key,))

    def _note_interruption(self) -> None:
        if self._interrupted_since is None:
            self._interrupted_since = time.monotonic()

    def _tell(self, keys: Collection[K]) -> None:
        for listener in self._listeners:
            listener(keys)

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as bug:  # otherwise the controllers would decide by rows that are not kept current
            log.exception("the watch of %s has failed", self._what)
            self._fail(f"the watch of {self._what}: {bug!r}")


class ApiTable(Table[K, Row]):
    """Rows of a collection of the Kubernetes API. `read` returns the key of an object, and its row, None for no row."""

    def __init__(self, client: Client, path: str, read: Callable[[Json], tuple[K, Row | None]], fail: Fail) -> None:
        super().__init__(path, fail)
        self._read = read
        self._watch = PagedWatch(client, path)

    @property
    def setbacks(self) -> int:
        """The number of lists that were older than what this table had seen."""
        return self._watch.setbacks

    def stop(self) -> None:
        self._watch.close()

    def _follow(self) -> None:
        for step in self._watch.steps():
            if step is None:
                self._note_interruption()
                if self.lag >= GAP_SECONDS:  # a stream does not say when it has reported all that was missed
                    self._watch.list_again()
                continue
            kind, data = step
            if kind == BEGUN:
                self._begin_listing()
            elif kind == PAGE:
                for each in data:
                    self._list(*self._read(each))
                data.clear()  # the page is not needed while the next one is read
            elif kind == LISTED:
                self._end_listing()
            elif kind == DELETED:
                self._note(self._read(data)[0], None)
            elif kind != OPENED:
                self._note(*self._read(data))
            if self._watch.is_contact(step):  # once the rows show it
                self._interrupted_since = None


class StoreTable(Table[Any, Row]):
    """Rows of a query of the datastore, by its keys. `read` returns the row of an entry; None for no row.

    A document that cannot be decoded has no row.
    """

    def __init__(self, store: Backend, query: Query, read: Callable[[Entry[Any]], Row | None], fail: Fail, what: str) -> None:
        super().__init__(what, fail)
        self._store = store
        self._query = query
        self._read = read
        self._stopping = threading.Event()
        self._events: Watch | None = None

    def stop(self) -> None:
        self._stopping.set()
        if self._events is not None:
            self._events.close()

    @property
    def lag(self) -> float:
        since = None if self._events is None else self._events.interrupted_since
        return max(super().lag, 0.0 if since is None else time.monotonic() - since)

    def _follow(self) -> None:
        backoff, interrupted = Backoff(_MIN_BACKOFF, _MAX_BACKOFF), False
        while not self._stopping.is_set():
            try:
                for event in self._begun():
                    interrupted = False
                    backoff.reset()
                    self._take(event)
            except SvcError as failure:
                self._note_interruption()
                if not interrupted and not self._stopping.is_set():
                    log.warning("%s cannot be read, and are tried again: %s", self._what, failure)
                interrupted = True
                self._stopping.wait(backoff.next())

    def _begun(self) -> Watch:
        self._begin_listing()
        watch = self._events = self._store.watch(self._query, self._listed)
        watch.longest_gap = GAP_SECONDS
        if self._stopping.is_set():
            watch.close()
        return watch

    def _take(self, event: Event) -> None:
        row = None if event.entry is None else self._read(event.entry)
        if self._listing is None:
            self._note(event.key, row)
        else:
            self._list(event.key, row)

    def _listed(self) -> None:
        if self._listing is None:  # the watch has reported what it lists again as changes
            self._tell(self.snapshot().keys())
        else:
            self._end_listing()
        self._interrupted_since = None
