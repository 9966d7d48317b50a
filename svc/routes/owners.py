"""The thread that reads which nodes disputed blocks themselves name, so that a slow datastore delays no route."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from svc._core.cidr import Cidr
from svc.datastore.api import Backend
from svc.model.errors import SvcError, reason_of
from svc.model.keys import BlockKey
from svc.retry import Backoff
from svc.routes.inputs import owner_of

AGAIN_SECONDS: Final = 10.0  # before owners that are known are read again
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0
_JOIN_SECONDS: Final = 5.0

log = logging.getLogger("svc.routes")


class OwnerReader:
    """Owners by block; empty for a block that names no node. `changed` is called when they have changed. Thread-safe."""

    def __init__(self, backend: Backend, changed: Callable[[], None]) -> None:
        self._backend = backend
        self._changed = changed
        self._lock = threading.Lock()
        self._wanted: frozenset[Cidr] = frozenset()
        self._found: dict[Cidr, str] = {}
        self._read_at = 0.0
        self.problem = ""
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies-owners", daemon=True)

    def close(self) -> None:
        """End the thread, unless the datastore lets it wait: it then ends with its read."""
        self._ended.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def note(self, owners: Mapping[Cidr, str]) -> None:
        """Note owners that another one has read."""
        with self._lock:
            self._found |= owners

    def owners(self, blocks: Collection[Cidr]) -> dict[Cidr, str]:
        """Return what is known of these blocks, and have the rest read. All others are forgotten."""
        wanted = frozenset(blocks)
        with self._lock:
            self._wanted = wanted
            self._found = {block: owner for block, owner in self._found.items() if block in wanted}
            is_due = bool(wanted - self._found.keys()) or time.monotonic() - self._read_at >= AGAIN_SECONDS
            found = dict(self._found)
            if wanted and is_due and self._thread.ident is None and not self._ended.is_set():
                self._thread.start()  # few clusters ever have a dispute, and a thread needs memory
        if wanted and is_due:
            self._wake.set()
        return found

    def _run(self) -> None:
        backoff = Backoff(_MIN_BACKOFF, _MAX_BACKOFF)
        delay: float | None = None
        while True:
            self._wake.wait(delay)
            self._wake.clear()
            if self._ended.is_set():
                return
            is_done = self._read_all()
            if is_done:
                backoff.reset()
            delay = None if is_done else backoff.next()

    def _read_all(self) -> bool:
        """Read the owners of all blocks. Those that cannot be read stay as they were. Return whether all were read."""
        problems = [problem for block in sorted(self._wanted) if (problem := self._read(block))]
        if problems and not self.problem:
            log.warning("%s", problems[0])
        self.problem = problems[0] if problems else ""
        self._read_at = time.monotonic()
        return not problems

    def _read(self, block: Cidr) -> str:
        """Return the problem, if there is one."""
        try:
            entry = self._backend.find(BlockKey(block))
            owner = "" if entry is None else owner_of(entry.value)
        except Exception as failure:  # of any kind: the thread must not end
            if not isinstance(failure, SvcError):
                log.warning("an error of svc", exc_info=failure)
            return f"block {block}, which several nodes claim, cannot be read: {reason_of(failure)}"
        with self._lock:
            is_new = block in self._wanted and self._found.get(block) != owner
            if is_new:
                self._found[block] = owner
        if is_new:
            self._changed()
        return ""
