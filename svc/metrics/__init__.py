"""Metrics of a process: sums, histograms of durations, and the requests of each datastore session. Readers compute rates.

A call changes elements of dictionaries and lists, and formats nothing. Gauges have no value here: the agent computes them when
the metrics are read (`collectors`). `svc.agent.metric_families` describes every metric. The other modules of this package serve
the metrics of any program.
"""

import threading
import weakref
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Final

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]  # a name without prefix, except those of the process

SECONDS: Final = (0.00025, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0, 90.0)
REQUESTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Upper bounds of the buckets: of durations, and of the requests of a batch."""

WITHOUT_LABELS: Final = ("package_changes_total", "traces_dropped_total")

GET, LIST, WRITE = range(3)
_OPERATIONS: Final = ("get", "list", "write")
_DOWN_SECONDS: Final = 120.0  # after which a failure does not count as the present state; the agent probes every 30 s


def _histogram(bounds: Sequence[float]) -> list[float]:
    """Return an empty histogram: the number of values of each bucket, of those above all bounds, and the sum of the values."""
    return [0] * (len(bounds) + 1) + [0.0]


class StoreMeter:
    """Numbers of one datastore session: its requests, and the batches of address management on it.

    The caller of `ended` or `batch` holds a lock: one thread at a time may call it for an operation. The other methods may be
    called by any thread, because they count rare events.
    """

    __slots__ = ("_batches", "_conflicts", "_errors", "_failed_at", "_times", "ipam_conflicts")

    def __init__(self) -> None:
        self.ipam_conflicts = 0
        self._failed_at = [0.0] * len(_OPERATIONS)  # monotonic time; 0 if the last request was answered
        self._times = tuple(_histogram(SECONDS) for _ in _OPERATIONS)
        self._conflicts = [0] * len(_OPERATIONS)
        self._errors = [0] * len(_OPERATIONS)
        self._batches = _histogram(REQUESTS)

    @property
    def is_up(self) -> bool:
        """Whether the last request of each operation was answered. A failure of long ago does not matter."""
        since = monotonic() - _DOWN_SECONDS
        return all(moment < since or not moment for moment in self._failed_at)

    @property
    def has_served(self) -> bool:
        """Whether any request was served."""
        return any(number for times in self._times for number in times[:-1])

    def ended(self, operation: int, began: float) -> None:
        """Count a request that was served, and began at this time of `time.perf_counter`."""
        seconds = perf_counter() - began
        times = self._times[operation]
        times[bisect_left(SECONDS, seconds)] += 1
        times[-1] += seconds
        self._failed_at[operation] = 0.0

    def failed(self, operation: int, *, is_up: bool = False) -> None:
        """Count a request that failed; `is_up` if the datastore answered with a refusal."""
        self._errors[operation] += 1
        self._failed_at[operation] = 0.0 if is_up else monotonic()

    def conflicted(self, operation: int = WRITE) -> None:
        """Count a request that was not applied, because another writer had changed a key."""
        self._failed_at[operation] = 0.0
        self._conflicts[operation] += 1

    def batch(self, requests: int) -> None:
        """Count a batch of requests for addresses. One thread at a time may call it."""
        self._batches[bisect_left(REQUESTS, requests)] += 1
        self._batches[-1] += requests

    def add(self, other: "StoreMeter") -> None:
        """Add the numbers of another session, which has ended."""
        for mine, its in zip((*self._times, self._batches), (*other._times, other._batches), strict=True):
            for number, value in enumerate(its):
                mine[number] += value
        for operation in range(len(_OPERATIONS)):
            self._conflicts[operation] += other._conflicts[operation]
            self._errors[operation] += other._errors[operation]
        self.ipam_conflicts += other.ipam_conflicts

    def samples(self, store: str) -> Iterator[Sample]:
        """Yield the requests. An operation without requests has no sample."""
        for operation, name in enumerate(_OPERATIONS):
            served, conflicts, errors = sum(self._times[operation][:-1]), self._conflicts[operation], self._errors[operation]
            if served or conflicts or errors:
                labels = ("store", store), ("op", name)
                for outcome, number in (("ok", served), ("conflict", conflicts), ("error", errors)):
                    if outcome != "conflict" or operation == WRITE:
                        yield "store_requests_total", (*labels, ("outcome", outcome)), number
                yield from _samples("store_request_seconds", labels, self._times[operation], SECONDS)

    def ipam_samples(self) -> Iterator[Sample]:
        """Yield the conflicts and the batches of address management."""
        yield "ipam_conflicts_total", (), self.ipam_conflicts
        yield from _samples("ipam_batch_requests", (), self._batches, REQUESTS)


class Metrics:
    """Metrics for any thread. A counter without labels is 0 until its first event, so that an alert sees the increase.

    `collectors` return the samples of gauges when the metrics are read.
    """

    def __init__(self) -> None:
        self.collectors: list[Callable[[], Iterable[Sample]]] = []
        self._lock = threading.Lock()
        self._sums: Counter[tuple[str, Labels]] = Counter({(name, ()): 0 for name in WITHOUT_LABELS})
        self._queue = _histogram(SECONDS)
        self._calls: dict[tuple[str, int], list[float]] = defaultdict(lambda: _histogram(SECONDS))  # by verb, whether failed
        self._errors: Counter[int] = Counter()
        self._phases: dict[str, dict[str, list[float]]] = defaultdict(dict)  # milliseconds and number, by verb and phase
        self._stores: dict[str, StoreMeter] = {}  # of sessions that have ended, by kind
        self._open: list[tuple[str, weakref.ref[object], StoreMeter]] = []

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter of rare events."""
        key = name, tuple(labels.items())
        with self._lock:
            self._sums[key] += amount  # type: ignore[assignment]  # seconds are not whole numbers

    def queued(self, seconds: float) -> None:
        """Count a call that has waited for a worker."""
        with self._lock:
            self._queue[bisect_left(SECONDS, seconds)] += 1
            self._queue[-1] += seconds

    def call_ended(self, verb: str, code: int, seconds: float, phases: Mapping[str, float]) -> None:
        """Count an answered call with its error code, 0 if it succeeded, and the milliseconds of its phases."""
        with self._lock:
            times = self._calls[verb, code != 0]
            times[bisect_left(SECONDS, seconds)] += 1
            times[-1] += seconds
            if code:
                self._errors[code] += 1
            sums = self._phases[verb]
            for name, milliseconds in phases.items():
                total = sums.get(name)
                if total is None:
                    sums[name] = [milliseconds, 1]
                else:
                    total[0] += milliseconds
                    total[1] += 1

    def add_store(self, kind: str, session: object, meter: StoreMeter) -> None:
        """Count the requests of a datastore session, until the session is deleted."""
        with self._lock:
            self._fold()
            self._stores.setdefault(kind, StoreMeter())
            self._open.append((kind, weakref.ref(session), meter))

    def read(self) -> dict[tuple[str, Labels], float]:
        """Return all samples by name and labels. Those of one name follow each other; buckets are in ascending order."""
        with self._lock:
            found = [*self._samples()]
        for collect in self.collectors:
            found += collect()
        return {(name, labels): value for name, labels, value in found}

    def _samples(self) -> Iterator[Sample]:
        for (verb, failed), times in sorted(self._calls.items()):
            labels = ("verb", verb), ("outcome", "error" if failed else "ok")
            yield "calls_total", labels, sum(times[:-1])
            yield from _samples("call_duration_seconds", labels, times, SECONDS)
        for verb, phases in sorted(self._phases.items()):
            for phase, (milliseconds, number) in phases.items():
                labels = ("verb", verb), ("phase", phase)
                yield "call_phase_seconds_sum", labels, milliseconds / 1000
                yield "call_phase_seconds_count", labels, number
        yield from _samples("queue_seconds", (), self._queue, SECONDS)
        yield from (("errors_total", (("code", str(code)),), number) for code, number in sorted(self._errors.items()))
        yield from ((name, labels, value) for (name, labels), value in sorted(self._sums.items()))
        yield from self._store_samples()

    def _store_samples(self) -> Iterator[Sample]:
        self._fold()
        together = StoreMeter()
        for kind, ended in self._stores.items():
            sessions = [meter for own, _, meter in self._open if own == kind]
            total = StoreMeter()
            for meter in (ended, *sessions):
                total.add(meter)
            if sessions:
                yield "store_up", (("store", kind),), int(all(meter.is_up for meter in sessions))
            yield from total.samples(kind)
            together.add(total)
        yield from together.ipam_samples()

    def _fold(self) -> None:
        """Keep the numbers of sessions that have ended. The caller holds the lock."""
        for kind, session, meter in self._open:
            if session() is None:
                self._stores[kind].add(meter)
        self._open = [each for each in self._open if each[1]() is not None]


def _samples(name: str, labels: Labels, histogram: Sequence[float], bounds: Sequence[float]) -> Iterator[Sample]:
    total: float = 0
    for bound, number in zip((*map(repr, bounds), "+Inf"), histogram, strict=False):
        total += number
        yield f"{name}_bucket", (*labels, ("le", bound)), total
    yield f"{name}_sum", labels, histogram[-1]
    yield f"{name}_count", labels, total
