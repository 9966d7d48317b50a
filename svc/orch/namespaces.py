"""Cache of namespaces: their labels, and the annotations that svc reads.

The cache is valid while its watch is open; otherwise the API server is read. Cached data may be slightly old. It is used to
choose a pool, but not to refuse a request.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from svc.batching import Batcher
from svc.datastore.watching import Reconnecting
from svc.model.annotations import OF_NAMESPACES
from svc.orch.pod_info import Namespace

Json = dict[str, Any]

PATH = "/api/v1/namespaces"


class NamespaceCache:
    """The namespaces of one API server, for any thread.

    `ask` reads one namespace. `watch` yields ("LISTED", all of them), then ("OPENED", {}), then each event (`DELETED`, or
    another type). `place` returns the server's location for errors.
    """

    def __init__(self, ask: Callable[[str], Json], watch: Reconnecting[tuple[str, Any]], place: Callable[[], str]) -> None:
        self._ask = ask
        self._place = place
        self._watch = watch
        self._lock = threading.Lock()
        self._known: dict[str, Namespace] = {}
        self._live = False
        self._readers: dict[str, Batcher[None, Namespace]] = {}
        self._thread: threading.Thread | None = None

    def get(self, name: str) -> Namespace:
        """Return the namespace from the cache if its watch is open, else from the API server. Raise the errors of `ask`."""
        self._begin()
        with self._lock:
            known = self._known.get(name) if self._live else None
        return self.read(name) if known is None else known

    def read(self, name: str) -> Namespace:
        """Read the namespace from the API server. Concurrent calls share one read. Raise the errors of `ask`."""
        with self._lock:
            reader = self._readers.setdefault(name, Batcher(lambda waiting: self._read(name, waiting), self._place))
        return reader.run(None)

    def close(self) -> None:
        """End the watch and its thread."""
        self._watch.close()
        if self._thread is not None:
            self._thread.join()

    def _read(self, name: str, waiting: Sequence[None]) -> list[Namespace]:
        return [_namespace(self._ask(name))] * len(waiting)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._watch.is_closed:
                thread = threading.Thread(target=self._run, name="namespaces", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        for step in self._watch.steps():
            with self._lock:
                self._live = step is not None and (self._live or step[0] == "OPENED")
                if step is not None:
                    self._note(*step)

    def _note(self, kind: str, data: Any) -> None:
        if kind == "LISTED":
            self._known = {each["metadata"]["name"]: _namespace(each) for each in data}
        elif kind == "DELETED":
            self._known.pop(data["metadata"]["name"], None)
        elif kind != "OPENED":
            self._known[data["metadata"]["name"]] = _namespace(data)


def _namespace(data: Json) -> Namespace:
    """Return only what svc needs, because a namespace may have 256 KB of annotations."""
    metadata = data["metadata"]
    notes = metadata.get("annotations") or {}
    kept = {note: text for note, text in notes.items() if note.rpartition("/")[2] in OF_NAMESPACES}
    return Namespace(metadata.get("labels") or {}, kept)
