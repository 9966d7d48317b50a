"""Generations: a number for each kind of resource that stays while a watch says that nothing has changed.

While there is no watch, every call gets another number: nobody trusts a cache that nobody keeps up.
"""

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Any

from svc.datastore.api import StoreError
from svc.datastore.orch.client import METADATA_ONLY, Client
from svc.datastore.orch.source import Source, name_of
from svc.datastore.orch.watcher import Follower
from svc.model.errors import SvcError

Json = dict[str, Any]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0

_log = logging.getLogger(__name__)


class Generations:
    """Of one store."""

    def __init__(self, client: Client, source: Callable[[str], Source]) -> None:
        self._client = client
        self._source = source
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._counters: dict[str, _Counter] = {}
        self._closed = False

    def of(self, kind: str) -> int:
        """A kind is watched from the second call on: whoever asks only once has no cache to keep."""
        with self._lock:
            if self._closed:
                raise StoreError(f"the generation of {kind} is not known", details="the store was closed: open it again")
            if kind not in self._asked:
                self._asked.add(kind)
                return 0
            if kind not in self._counters:
                self._counters[kind] = _Counter(self._client, self._source, kind)
            return self._counters[kind].value()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            counters = tuple(self._counters.values())
        for counter in counters:
            counter.close()
        for counter in counters:
            counter.thread.join()


class _Counter:
    """The number of one kind, and the thread that watches."""

    def __init__(self, client: Client, source: Callable[[str], Source], kind: str) -> None:
        self._client = client
        self._source = source
        self._kind = kind
        self._follower = Follower(client)
        self._lock = threading.Lock()
        self._count = 0
        self._live = False
        self._looks: dict[tuple[str, str], Hashable] = {}
        self.thread = threading.Thread(target=self._run, name=f"generation of {kind}", daemon=True)
        self.thread.start()

    def value(self) -> int:
        with self._lock:
            if not self._live:
                self._count += 1
            return self._count

    def close(self) -> None:
        self._follower.close()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._follower.closed.is_set():
            try:
                source = self._source(self._kind)
                for kind, data in self._follower.changes(source, self._revision(source), accept=METADATA_ONLY):
                    pause = _FIRST_PAUSE
                    self._note(source, kind, data)
            except SvcError as error:
                if not self._follower.closed.is_set():
                    _log.info("changes of %s are not seen: %s", self._kind, str(error))
            self._set_live(False)
            self._follower.closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _revision(self, source: Source) -> str:
        """The present one of the whole collection."""
        listing = self._client.get(source.path, limit="1", **source.params)
        return str(listing["metadata"]["resourceVersion"])

    def _note(self, source: Source, kind: str, data: Json) -> None:
        if kind in ("OPENED", "ENDED"):
            self._set_live(kind == "OPENED")
            return
        name, look = name_of(data), source.look(data)
        if kind == "DELETED":
            self._looks.pop(name, None)
        elif self._looks.get(name) == look:
            return
        else:
            self._looks[name] = look
        with self._lock:
            self._count += 1

    def _set_live(self, live: bool) -> None:
        """What was told before does not count any more, either way."""
        with self._lock:
            self._live = live
            self._count += 1
