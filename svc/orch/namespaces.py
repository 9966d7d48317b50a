"""Labels of namespaces, and those of their annotations that are read: remembered from a watch, for as long as it is open;
asked for otherwise.

What is remembered may be a moment old: it is good enough to choose a pool by, and not to refuse anything.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from svc.combine import Combiner
from svc.datastore.api import StoreError
from svc.model.wishes import OF_NAMESPACES
from svc.orch.info import Namespace

Json = dict[str, Any]

PATH = "/api/v1/namespaces"

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 60.0

_log = logging.getLogger(__name__)


Changes = Callable[[], Iterator[tuple[str, Json]]]


class Namespaces:
    """Of one API server; from any thread.

    `ask` reads one. `changes` tells all as they are, then ("OPENED", {}), then every change (`DELETED`, or another word),
    until the end or a StoreError. `place` returns where the server is, for errors.
    """

    def __init__(self, ask: Callable[[str], Json], changes: Changes, place: Callable[[], str]) -> None:
        self._ask = ask
        self._place = place
        self._changes = changes
        self._lock = threading.Lock()
        self._known: dict[str, Namespace] = {}
        self._live = False
        self._readers: dict[str, Combiner[None, Namespace]] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def get(self, name: str) -> Namespace:
        """From memory where it is kept up; else as `read`."""
        self._begin()
        with self._lock:
            known = self._known.get(name) if self._live else None
        return self.read(name) if known is None else known

    def read(self, name: str) -> Namespace:
        """As they are now; calls that wait at the same time share one reading. Errors as `ask` raises them."""
        with self._lock:
            reader = self._readers.setdefault(name, Combiner(lambda waiting: self._read(name, waiting), self._place))
        return reader.run(None)

    def close(self) -> None:
        """After whoever makes the changes was told to end."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _read(self, name: str, waiting: Sequence[None]) -> list[Namespace]:
        return [_namespace(self._ask(name))] * len(waiting)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                thread = threading.Thread(target=self._run, name="namespaces", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            try:
                for kind, data in self._changes():
                    self._note(kind, data)
                    pause = _FIRST_PAUSE
            except StoreError as failure:
                if not self._closed.is_set():
                    _log.info("namespaces are not watched, but asked for one by one: %s", failure)
            self._forget()
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _note(self, kind: str, data: Json) -> None:
        with self._lock:
            if kind in ("OPENED", "ENDED"):
                self._live = kind == "OPENED"
            elif kind == "DELETED":
                self._known.pop(data["metadata"]["name"], None)
            else:
                self._known[data["metadata"]["name"]] = _namespace(data)

    def _forget(self) -> None:
        with self._lock:
            self._live = False
            self._known.clear()


def _namespace(data: Json) -> Namespace:
    """No more than is needed: a namespace may have annotations of 256 KB."""
    metadata = data["metadata"]
    notes = metadata.get("annotations") or {}
    kept = {note: text for note, text in notes.items() if note.rpartition("/")[2] in OF_NAMESPACES}
    return Namespace(metadata.get("labels") or {}, kept)
