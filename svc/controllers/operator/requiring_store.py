"""Datastore session that looks before each write whether it is still to be written."""

from collections.abc import Callable, Sequence
from typing import Any

from svc.datastore.api import Backend, Entry, Write


class RequiringStore:
    """Session that calls `require` before each write. What that raises stops the write."""

    update = Backend.update

    def __init__(self, inner: Backend, require: Callable[[], None]) -> None:
        self._inner = inner
        self._require = require

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner session."""
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        """Apply the writes."""
        self._require()
        return self._inner.write(writes, durable=durable)
