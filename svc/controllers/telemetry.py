"""Metrics of the controllers, computed when they are read. Nothing here sends a request."""

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import svc
from svc.controllers.controller import Controller, Shared
from svc.metrics import Labels, Sample, StoreMeter
from svc.metrics.process import process_samples, start_time

_BUILD: Labels = (("version", svc.__version__), ("python", platform.python_version()))


class Telemetry:
    """The metrics of one process. `meters` are those of its sessions, by the name of the store."""

    def __init__(self, shared: Shared, parts: Sequence[Controller[Any]], meters: Mapping[str, StoreMeter]) -> None:
        self._shared = shared
        self._parts = parts
        self._meters = meters
        self._started = start_time()

    def text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        from svc.controllers.metric_families import FAMILIES  # only if metrics are served
        from svc.metrics.exposition import Exposition

        return Exposition(FAMILIES).text({(name, labels): value for name, labels, value in self.samples()})

    def samples(self) -> Iterator[Sample]:
        """Yield the present values."""
        yield "controllers_leads", (), int(self._shared.election.leads)
        yield from self._of_parts()
        for each in self._shared.conditions.all():
            labels = ("condition", each.kind), ("status", each.status), ("reason", each.reason)
            yield "controllers_condition", labels, 1
        yield "build_info", _BUILD, 1
        for store, meter in self._meters.items():
            yield "store_up", (("store", store),), int(meter.is_up)
            yield from meter.samples(store)
        yield from process_samples()
        yield "process_start_time_seconds", (), self._started

    def _of_parts(self) -> Iterator[Sample]:
        """Yield the numbers of the parts. The parts of one controller are added up."""
        for name, number in _NUMBERS.items():
            sums: Counter[str] = Counter()
            for part in self._parts:
                sums[part.name] += number(part)  # type: ignore[assignment]  # seconds are not whole numbers
            yield from ((name, (("controller", controller),), value) for controller, value in sorted(sums.items()))
        for part in self._parts:
            yield from part.families()


_NUMBERS: dict[str, Callable[[Controller[Any]], float]] = {
    "controllers_queue_length": lambda part: part.waiting,
    "controllers_settled_total": lambda part: part.tally.settled,
    "controllers_failures_total": lambda part: part.tally.failed,
    "controllers_writes_total": lambda part: part.tally.written,
    "controllers_round_seconds_sum": lambda part: round(part.tally.round_seconds, 6),
    "controllers_round_seconds_count": lambda part: part.tally.rounds,
}
