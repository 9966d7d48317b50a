"""A watch that lasts: one query of the datastore, followed in a thread of its own."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from svc.datastore.api import Backend, Event, Watch
from svc.model.errors import SvcError, reason_of
from svc.model.keys import Key, Query
from svc.retry import Backoff

_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0  # of a watch that the datastore refuses
_JOIN_SECONDS: Final = 5.0

log = logging.getLogger("svc.routes")


class Follower:
    """A watch of one query in a thread of its own, opened again if the datastore refuses it, or after any other error.

    `take` gets each event, `listed` is called after each complete listing. `what` names the objects for messages."""

    def __init__(
        self,
        backend: Backend,
        query: Query,
        what: str,
        take: Callable[[Event], None],
        listed: Callable[[], None],
        known: Iterable[Key] = (),
    ) -> None:
        self._backend = backend
        self._query = query
        self._what = what
        self._take = take
        self._listed = listed
        self._closed = threading.Event()
        self._watch: Watch | None = None
        self._known: set[Key] = set(known)
        self._seen: set[Key] | None = None  # of the first listing of a watch; None after it
        self._failed_since: float | None = None
        self._failure = ""
        self.is_complete = False
        self._thread = threading.Thread(target=self._run, name=f"copies-{type(query).__name__}", daemon=True)

    @property
    def interrupted_since(self) -> float | None:
        """Since when changes may be missing (monotonic time); None while they are reported as they come."""
        watch = self._watch
        since = None if watch is None else watch.interrupted_since
        return self._failed_since if since is None else since

    @property
    def problem(self) -> str:
        """Return a sentence about what is not known, with the reason; empty while everything is."""
        if self.is_complete and self.interrupted_since is None:
            return ""
        watch = self._watch
        cause = self._failure or ("" if watch is None else watch.failure)
        if self.is_complete:
            return f"changes of {self._what} are not known, and nothing is deleted: {cause or 'the datastore does not answer'}"
        return f"{self._what} are not read completely yet: {cause or 'the datastore has not answered yet'}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the watch. The thread may call this itself."""
        self._closed.set()
        watch = self._watch
        if watch is not None:
            watch.close()

    def join(self) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(_MIN_BACKOFF, _MAX_BACKOFF)
        while not self._closed.is_set():
            try:
                self._follow(backoff)
            except SvcError as failure:
                self._note_failure(f"the datastore refuses a watch: {failure}")
            except Exception as failure:  # an error of svc: without the watch, changes would be missed silently
                self._note_failure(f"an error of svc, {type(failure).__name__}: {reason_of(failure)}", failure)
                if self._watch is not None:
                    self._watch.close()
            self._closed.wait(backoff.next())

    def _note_failure(self, text: str, unexpected: Exception | None = None) -> None:
        if self._closed.is_set():
            return
        if self._failure != text:
            log.warning("%s are not followed, and will be read again: %s", self._what, text, exc_info=unexpected)
        self._failure = text
        if self._failed_since is None:
            self._failed_since = time.monotonic()

    def _follow(self, backoff: Backoff) -> None:
        """Take the events of one watch until it ends. Raise SvcError if the datastore refuses it."""
        self._seen = set()
        self._watch = self._backend.watch(self._query, self._end_listing)
        if self._closed.is_set():
            self._watch.close()
        for event in self._watch:
            self._note(event)
            self._take(event)
            if self._failed_since is None:
                backoff.reset()

    def _note(self, event: Event) -> None:
        if event.entry is None:
            self._known.discard(event.key)
            return
        self._known.add(event.key)
        if self._seen is not None:
            self._seen.add(event.key)

    def _end_listing(self) -> None:
        """Report what an earlier watch knew and this one has not found as deleted."""
        if self._seen is not None:
            for key in self._known - self._seen:
                self._take(Event(key, None))
            self._known, self._seen = self._seen, None
        self._failed_since, self._failure = None, ""
        self.is_complete = True
        self._listed()
