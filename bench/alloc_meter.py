"""Meters of the phases of an allocation: around the datastore, around the batches, and around the codecs."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from harness.backend_wrappers import Through
from svc.datastore.api import Backend, Entries, Entry, Found, Write
from svc.ipam.service import IpamService
from svc.model.custom_resources import CustomResourceCodec
from svc.model.keys import Key, Query, V
from svc.model.kv_codec import Codec

_CODECS: tuple[tuple[type, str, str], ...] = (
    (Codec, "encode", "encode"),
    (Codec, "decode", "decode"),
    (CustomResourceCodec, "encode", "encode"),
    (CustomResourceCodec, "decode", "decode"),
)


class _OfThread:
    """The sums of one thread, in microseconds, its single times, and its counts."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}


class Meter:
    """Times and counts of all threads. Thread-safe: each thread has its own."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._threads: list[_OfThread] = []

    @property
    def _own(self) -> _OfThread:
        found: _OfThread | None = getattr(self._local, "found", None)
        if found is None:
            found = self._local.found = _OfThread()
            self._threads.append(found)
        return found

    def note(self, name: str, us: float) -> None:
        self._own.times.setdefault(name, []).append(us)

    def count(self, name: str, number: int = 1) -> None:
        self._own.counts[name] += number

    def run(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the result of a call, and add its time."""
        began = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            self._own.sums[name] += (time.perf_counter() - began) * 1e6

    def clear(self) -> None:
        for thread in self._threads:
            thread.__init__()  # type: ignore[misc]

    def times(self, name: str) -> list[float]:
        return [value for thread in self._threads for value in thread.times.get(name, ())]

    def counts(self) -> Counter[str]:
        return sum((thread.counts for thread in self._threads), Counter())

    def phases(self) -> dict[str, float]:
        """Return the microseconds of each phase in all calls; together they are the calls."""
        sums: dict[str, float] = defaultdict(float)
        for thread in self._threads:
            for name, us in thread.sums.items():
                sums[name] += us
        whole = sum(self.times("assign")) + sum(self.times("release"))
        reads, writes, batches = sums["read"] + sums["early read"], sums["write"], sums["batch"]
        return {
            "waiting for a batch, and entering it": max(0.0, whole - batches - sums["early read"]),
            "choice and plan": batches - sums["read"] - writes,
            "decoding": sums["decode"],
            "reads of the datastore": max(0.0, reads - sums["decode"]),
            "encoding": sums["encode"],
            "writes of the datastore": writes - sums["encode"],
        }


class MeteredBackend(Through):
    """A session whose reads and writes are timed. Reads within a batch count apart from those that precede it."""

    def __init__(self, inner: Backend, meter: Meter) -> None:
        super().__init__(inner)
        self.meter = inner.meter
        self.meter_of_calls = meter
        self.leader = threading.local()

    def get(self, key: Key) -> Entry:
        found: Entry = self._read(self.inner.get, key)
        return found

    def find(self, key: Key[V]) -> Entry[V] | None:
        found: Entry[V] | None = self._read(self.inner.find, key)
        return found

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        found: Sequence[Found] = self._read(self.inner.get_all, keys)
        return found

    def list(self, query: Query) -> Entries:
        found: Entries = self._read(self.inner.list, query)
        return found

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        self.meter_of_calls.count("writes")
        self.meter_of_calls.count("written keys", len(writes))
        found: Sequence[Entry | None] = self.meter_of_calls.run("write", self.inner.write, writes, durable=durable)
        return found

    def _read(self, call: Callable[..., Any], what: object) -> Any:
        self.meter_of_calls.count("reads")
        name = "read" if getattr(self.leader, "leads", False) else "early read"
        return self.meter_of_calls.run(name, call, what)


class MeteredIpam(IpamService):
    """Address management whose batches are timed."""

    def __init__(self, backend: MeteredBackend, node: str, meter: Meter) -> None:
        super().__init__(backend, node)
        self.node = node
        self._metered, self._of_calls = backend, meter

    def _execute(self, calls: Sequence[Any]) -> list[Any]:
        self._of_calls.count("batches")
        self._metered.leader.leads = True
        conflicts = self._metered.meter.ipam_conflicts
        try:
            found: list[Any] = self._of_calls.run("batch", super()._execute, calls)
        finally:
            self._metered.leader.leads = False
        self._of_calls.count("conflicts", self._metered.meter.ipam_conflicts - conflicts)
        return found


@contextmanager
def codecs_metered(meter: Meter) -> Iterator[None]:
    """Time what turns values into documents and back, in this process."""
    before = []
    for owner, name, phase in _CODECS:
        method = getattr(owner, name)
        before.append((owner, name, method))
        setattr(owner, name, _metered(meter, phase, method))
    try:
        yield
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


def _metered(meter: Meter, phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return meter.run(phase, method, *arguments, **options)

    return call
