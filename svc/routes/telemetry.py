"""Numbers of svc-routes: counted in the main thread, read by the thread that serves them."""

import errno
import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

import svc
from svc._core.cidr import Cidr
from svc.metrics import SECONDS, Labels, Sample, StoreMeter
from svc.metrics.process import process_samples, start_time
from svc.routes.applied import Applied
from svc.routes.report import OFF, STATES, Report
from svc.routes.wanted import Blackhole, Direct, Way

_BUILD: Final[Labels] = (("version", svc.__version__), ("python", platform.python_version()))
_KINDS: Final = ("direct", "tunnel", "blackhole")


class Telemetry:
    """The metrics. `report` is the last one of the program."""

    def __init__(self, store: str, meter: StoreMeter) -> None:
        self._store = store
        self._meter = meter
        self._started = start_time()
        self._seconds = [0] * (len(SECONDS) + 1)
        self._sum = 0.0
        self._failures: Counter[str] = Counter()
        self.report = Report(OFF)

    def applied(self, applied: Applied, tried: Mapping[Cidr, Way], seconds: float | None) -> None:
        """Count the outcome of a batch, and the time since the change that caused it, if one did."""
        self._failures.update(
            errno.errorcode.get(failure.errno, "other") for network, failure in applied.failures.items() if network in tried
        )
        if seconds is not None:
            self._seconds[bisect_left(SECONDS, seconds)] += 1
            self._sum += seconds

    def text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        from svc.metrics.exposition import Exposition
        from svc.routes.metric_families import FAMILIES  # only if metrics are served

        return Exposition(FAMILIES).text({(name, labels): value for name, labels, value in self.samples()})

    def samples(self) -> Iterator[Sample]:
        """Yield the present values."""
        yield from (("routes_state", (("state", state),), int(state == self.report.state)) for state in STATES)
        yield from self._of_routes()
        yield from (("routes_failures_total", (("errno", name),), number) for name, number in sorted(self._failures.items()))
        yield from self._of_seconds()
        yield "build_info", _BUILD, 1
        yield "store_up", (("store", self._store),), int(self._meter.is_up)
        yield from self._meter.samples(self._store)
        yield from process_samples()
        yield "process_start_time_seconds", (), self._started

    def _of_routes(self) -> Iterator[Sample]:
        report = self.report
        kinds = Counter(map(_kind, report.applied.routes.values()))
        yield from (("routes", (("kind", kind),), kinds[kind]) for kind in _KINDS)
        without = Counter(reason for _, reason, _ in report.missing())
        for reason, number in sorted(without.items(), key=lambda item: item[0].name):
            yield "routes_without_way", (("reason", reason.name),), number
        yield "routes_foreign", (), len(report.applied.foreign)
        yield "routes_unreachable_nodes", (), len({row.node for row, _, _ in report.missing()})
        yield "routes_held_deletions", (), report.held
        yield "routes_problems", (), len(report.problems)

    def _of_seconds(self) -> Iterator[Sample]:
        totals = list(accumulate(self._seconds))
        for bound, total in zip((*map(repr, SECONDS), "+Inf"), totals, strict=True):
            yield "routes_seconds_bucket", (("le", bound),), total
        yield "routes_seconds_sum", (), self._sum
        yield "routes_seconds_count", (), totals[-1]


def _kind(way: Way) -> str:
    return "blackhole" if isinstance(way, Blackhole) else "direct" if isinstance(way, Direct) else "tunnel"
