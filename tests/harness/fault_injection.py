"""A datastore and a journal whose calls fail on demand. They can wrap any Backend.

A call can be refused, fail after it was applied, or fail together with all later calls.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeVar

from svc.attach.journal import Journal
from svc.attach.record import Record
from svc.datastore.api import Backend, Entries, Entry, Found, Position, StoreError, Watch, Write
from svc.model.keys import Key, Query

Answer = TypeVar("Answer")


class Kind(Enum):
    """The treatment of a call. Test ids contain the names."""

    REFUSED = "refused"  # not applied, and fails
    REPLY_LOST = "reply lost"  # applied, and fails
    OUTAGE = "outage"  # not applied, and fails with all later calls
    KILLED = "killed"  # not applied, and the process ends
    KILLED_AFTER = "killed after"  # applied, and the process ends


@dataclass(frozen=True)
class Fault:
    """The fate of the `number`-th call (from 1) of these methods, or of any method."""

    kind: Kind
    number: int
    calls: frozenset[str] = frozenset()


class Faults:
    """The choice of the call that fails. Any thread and several objects can share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._count = 0
        self.struck = False

    def arm(self, kind: Kind, number: int = 1, *calls: str) -> None:
        """Choose the call that fails, and start to count."""
        with self._lock:
            self._fault, self._count, self.struck = Fault(kind, number, frozenset(calls)), 0, False

    def heal(self) -> None:
        with self._lock:
            self._fault = None

    def carry_out(self, call: str, do: Callable[[], Answer]) -> Answer:
        kind = self._strike(call)
        if kind in (Kind.REFUSED, Kind.OUTAGE):
            raise StoreError(f"ordered fault: {call} is refused", details="the test wants it so")
        if kind is Kind.KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            answer = do()
        finally:
            if kind is Kind.KILLED_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)
        if kind is Kind.REPLY_LOST:
            raise StoreError(f"ordered fault: the reply of {call} is lost", details="the test wants it so")
        return answer

    def _strike(self, call: str) -> Kind | None:
        with self._lock:
            fault = self._fault
            if fault is None or (fault.calls and call not in fault.calls):
                return None
            self._count += 1
            if self._count != fault.number and not (fault.kind is Kind.OUTAGE and self._count > fault.number):
                return None
            self.struck = True
            return fault.kind


class FaultyBackend(Backend):
    """A backend with faults. Calls have the names of their methods. `close` never fails, so that tests can clean up."""

    def __init__(self, inner: Backend, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    @property
    def atomic(self) -> bool:
        return self._inner.atomic

    @property
    def requires_node(self) -> bool:
        return self._inner.requires_node

    @property
    def place(self) -> str:
        return self._inner.place

    def get(self, key: Key) -> Entry:
        return self._faults.carry_out("get", lambda: self._inner.get(key))

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        return self._faults.carry_out("get", lambda: self._inner.get_all(keys))

    def list(self, query: Query) -> Entries:
        return self._faults.carry_out("list", lambda: self._inner.list(query))

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        return self._faults.carry_out("write", lambda: self._inner.write(writes, durable=durable))

    def check_writable(self) -> None:
        self._inner.check_writable()

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return self._faults.carry_out("generations", lambda: self._inner.generations(kinds))

    def position(self) -> Position:
        return self._inner.position()

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> Watch:
        return self._faults.carry_out("watch", lambda: self._inner.watch(query, listed))

    def is_current(self) -> bool:
        return self._inner.is_current()

    def close(self) -> None:
        self._inner.close()


class FaultyJournal(Journal):
    """A journal with faults. The calls are `begin`, `update`, `remove`, and `read` for all methods that read."""

    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path)
        self._faults = faults

    def begin(self, record: Record, *, after: Record | None = None, durable: bool = False) -> None:
        self._faults.carry_out("begin", lambda: super(FaultyJournal, self).begin(record, after=after, durable=durable))

    def update(self, record: Record, *, durable: bool = False, keeps_settings: bool = False) -> None:
        update = partial(super().update, record, durable=durable, keeps_settings=keeps_settings)
        self._faults.carry_out("update", update)

    def remove(self, record: Record) -> None:
        self._faults.carry_out("remove", lambda: super(FaultyJournal, self).remove(record))

    def _records(self, where: str, parameters: Sequence[str]) -> list[Record]:
        return self._faults.carry_out("read", lambda: super(FaultyJournal, self)._records(where, parameters))
