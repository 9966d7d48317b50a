"""Writes to datastores that a run sends only while it may write."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from svc.datastore.api import Backend, Entry, Write
from svc.datastore.orch.client import Client
from svc.move.snapshot import KeepsHistory

Permit = Callable[[], AbstractContextManager[None]]
"""Return a block for one write, with the time that the run has for it. It raises Stopped if the run may not write."""


class PermittedBackend:
    """A datastore, with `permit` before each write."""

    update = Backend.update

    def __init__(self, inner: Backend, permit: Permit) -> None:
        self._inner = inner
        self._permit = permit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        """Write as the datastore does."""
        with self._permit():
            return self._inner.write(writes, durable=durable)


class PermittedHistory(PermittedBackend):
    """The same for a datastore whose documents can be read at one revision."""

    def history(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield what the datastore yields."""
        assert isinstance(self._inner, KeepsHistory)
        return self._inner.history()


class PermittedClient:
    """A session with an API server, with `permit` before each patch."""

    def __init__(self, inner: Client, permit: Permit) -> None:
        self._inner = inner
        self._permit = permit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def patch(self, path: str, body: Any, content_type: str, **params: str) -> Any:
        """Patch as the session does."""
        with self._permit():
            return self._inner.patch(path, body, content_type, **params)
