"""Generations of a remote store: a number for each kind of resource, which a watch on its own thread maintains."""

import threading
from collections.abc import Callable
from typing import Any

from svc.datastore.watching import Reconnecting


class Generations:
    """Generations of all kinds. Thread-safe. `watch` returns a new watch of a kind."""

    def __init__(self, watch: Callable[[str], Reconnecting[Any]]) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._counters: dict[str, _Counter | None] = {}  # None for a kind that was asked for once
        self._closed = False

    def current(self, kind: str) -> int:
        """Return the generation of a kind. The watch starts at the second call: a caller that asks once keeps no cache."""
        counter = self._counters.get(kind)
        return counter.current() if counter is not None else self._begin(kind)

    def close(self) -> None:
        """End the watches and their threads."""
        with self._lock:
            self._closed = True
            counters = tuple(filter(None, self._counters.values()))
        for counter in counters:
            counter.close()
        for counter in counters:
            counter.thread.join()

    def _begin(self, kind: str) -> int:
        with self._lock:
            if kind not in self._counters or self._closed:
                self._counters.setdefault(kind)
                return 0
            counter = self._counters[kind] = self._counters[kind] or _Counter(kind, self._watch(kind))
            return counter.current()


class _Counter:
    """Generation of one kind. While its watch is closed, each call returns a new number, so that no cache is trusted."""

    def __init__(self, kind: str, watch: Reconnecting[Any]) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._number = 1
        self._is_watched = False
        self.close = watch.close
        self.thread = threading.Thread(target=self._run, name=f"watch-{kind}", daemon=True)
        self.thread.start()

    def current(self) -> int:
        with self._lock:
            if not self._is_watched:
                self._number += 1
            return self._number

    def _run(self) -> None:
        try:
            for step in self._watch.steps():
                if step is None or self._watch.is_change(step):
                    self._note(is_watched=step is not None)
        finally:
            self._note(is_watched=False)

    def _note(self, *, is_watched: bool) -> None:
        with self._lock:
            self._is_watched = is_watched
            self._number += 1
