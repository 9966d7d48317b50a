"""Backends that record, delay, split or interfere with the calls of a real backend."""

import random
import threading
import time
from collections.abc import Callable, Sequence

from harness.ipam import TIMEOUT_SECONDS
from svc.datastore.api import (
    Backend,
    Check,
    Create,
    Entries,
    Entry,
    Found,
    PartialWrite,
    Position,
    StoreError,
    Update,
    Watch,
    Write,
    found_by,
    require_checks,
)
from svc.ipam.service import IpamService
from svc.model.ipam import Affinity
from svc.model.keys import Key, Query
from svc.model.kv_codec import Codec
from svc.names import DEFAULT

_POLL = 0.001


class Through(Backend):
    """A backend that passes every call on. Subclasses change one method. `calls` counts the calls of each method."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.calls = {"get": 0, "list": 0, "write": 0}

    @property
    def atomic(self) -> bool:
        return self.inner.atomic

    @property
    def requires_node(self) -> bool:
        return self.inner.requires_node

    @property
    def place(self) -> str:
        return self.inner.place

    def get(self, key: Key) -> Entry:
        self.calls["get"] += 1
        return self.inner.get(key)

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        return [found_by(self.get, key) for key in keys]

    def list(self, query: Query) -> Entries:
        self.calls["list"] += 1
        return self.inner.list(query)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        self.calls["write"] += 1
        return self.inner.write(writes, durable=durable)

    def check_writable(self) -> None:
        self.inner.check_writable()

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return self.inner.generations(kinds)

    def position(self) -> Position:
        return self.inner.position()

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> Watch:
        return self.inner.watch(query, listed)

    def is_current(self) -> bool:
        return self.inner.is_current()

    def close(self) -> None:
        self.inner.close()


class Recording(Through):
    """A backend that records each write in words: `create block`, `update affinity pending`, ..."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.written: list[list[str]] = []

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        entries = super().write(writes, durable=durable)
        self.written.append([_in_words(write) for write in writes])
        return entries


class Reading(Through):
    """A backend that records the keys and queries of each read."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.read: list[Key | Query] = []

    def get(self, key: Key) -> Entry:
        self.read.append(key)
        return super().get(key)

    def list(self, query: Query) -> Entries:
        self.read.append(query)
        return super().list(query)


class NonAtomic(Through):
    """A backend that cannot write several keys at once. The wrapped backend gets each write alone."""

    atomic = False

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        _require_storable(writes)
        require_checks(self.inner.find, writes)
        done: list[Entry | None] = []
        for write in writes:
            if isinstance(write, Check):
                done.append(None)
                continue
            try:
                done.extend(super().write([write], durable=durable))
            except StoreError as cause:
                if len(writes) == 1:
                    raise
                raise PartialWrite(done, cause) from cause
        return done


class Slow(Through):
    """A backend whose calls take random short times, so that other threads run between them."""

    def __init__(self, inner: Backend, longest: float) -> None:
        super().__init__(inner)
        self._longest = longest
        self._random = random.Random(1)

    def get(self, key: Key) -> Entry:
        self._wait()
        return super().get(key)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        self._wait()
        return super().write(writes, durable=durable)

    def _wait(self) -> None:
        time.sleep(self._random.random() * self._longest)


class Interfering(Through):
    """A backend that calls a function once, just before the n-th write (from 1)."""

    def __init__(self, inner: Backend, before: int, deed: Callable[[], object]) -> None:
        super().__init__(inner)
        self._before = before
        self._deed = deed

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        if self.calls["write"] + 1 == self._before:
            self._deed()
        return super().write(writes, durable=durable)


class Blockable(Through):
    """A backend that blocks all writes until `open` is called."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.reached = threading.Event()
        self._gate = threading.Event()

    def open(self) -> None:
        self._gate.set()

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        self.reached.set()
        assert self._gate.wait(TIMEOUT_SECONDS)
        return super().write(writes, durable=durable)


def wait_until_queued(ipam: IpamService, count: int) -> None:
    """Wait until this many requests are queued behind the running one."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(ipam._batcher._waiting) < count:
        assert time.monotonic() < deadline, "the requests did not arrive in time"
        time.sleep(_POLL)


def _in_words(write: Write) -> str:
    what = type(write.key).__name__.removesuffix("Key").lower()
    state = f" {write.value.state}" if isinstance(write, Create | Update) and isinstance(write.value, Affinity) else ""
    return f"{type(write).__name__.lower()} {what}{state}"


def _require_storable(writes: Sequence[Write]) -> None:
    """Raise the error of a value that cannot be stored, before the first write, as every store does."""
    codec = Codec(DEFAULT)
    for write in writes:
        codec.path(write.key).encode()
        if isinstance(write, Create | Update):
            codec.encode(write.value)
