"""Changes in memory over a datastore, for a plan that is not carried out."""

import itertools
import threading
from collections.abc import Callable, Sequence

from svc.datastore.api import (
    Backend,
    Check,
    Conflict,
    Create,
    Delete,
    Entries,
    Entry,
    Found,
    NotFound,
    Position,
    Update,
    Watch,
    Write,
    found_by,
)
from svc.model.keys import Key, Query, V
from svc.model.kv_codec import Codec, matches
from svc.names import Names


class Overlay(Backend):
    """A session whose writes stay in memory. Reads show them over the entries of `inner`, which does not change."""

    atomic = True

    def __init__(self, inner: Backend, names: Names) -> None:
        self._inner = inner
        self._codec = Codec(names)
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._written: dict[Key, tuple[bytes, str] | None] = {}  # document and revision; None for a deleted key

    @property
    def requires_node(self) -> bool:
        return self._inner.requires_node

    @property
    def place(self) -> str:
        return self._inner.place

    def get(self, key: Key[V]) -> Entry[V]:
        with self._lock:
            if key not in self._written:
                return self._inner.get(key)
            written = self._written[key]
        if written is None:
            raise NotFound(key)
        return Entry(key, self._codec.decode(key, written[0]), written[1])

    def get_all(self, keys: Sequence[Key[V]]) -> Sequence[Found[V]]:
        return [found_by(self.get, key) for key in keys]

    def list(self, query: Query[V]) -> Entries[V]:
        stored = self._inner.list(query)
        with self._lock:
            changed = [key for key in self._written if matches(query, key)]
        present = {entry.key: entry for entry in stored if entry.key not in changed}
        present |= {key: entry for key in changed if (entry := self.find(key)) is not None}
        return Entries((present[key] for key in sorted(present, key=self._codec.path)), stored.skipped)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:  # noqa: ARG002
        with self._lock:
            for write in writes:
                self._require_current(write)
            return [self._apply(write) for write in writes]

    def check_writable(self) -> None:
        self._inner.check_writable()

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return self._inner.generations(kinds)

    def position(self) -> Position:
        return self._inner.position()

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> Watch:
        return self._inner.watch(query, listed)

    def close(self) -> None:
        self._inner.close()

    def _require_current(self, write: Write) -> None:
        """Raise Conflict or NotFound if the write would fail now."""
        present = self.find(write.key)
        if isinstance(write, Create):
            if present is not None:
                raise Conflict(write.key)
        elif present is None:
            raise Conflict(write.key) if isinstance(write, Check) else NotFound(write.key)
        elif write.revision not in (None, present.revision):
            raise Conflict(write.key)

    def _apply(self, write: Write) -> Entry | None:
        if isinstance(write, Check):
            return None
        if isinstance(write, Delete):
            self._written[write.key] = None
            return None
        assert isinstance(write, Create | Update)
        revision = f"planned-{next(self._numbers)}"
        self._written[write.key] = self._codec.encode(write.value), revision
        return Entry(write.key, write.value, revision)
