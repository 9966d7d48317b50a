"""What describes a metric: name, type, labels, unit and meaning. Imported only when metrics are written as text."""

from collections.abc import Iterable
from typing import Final

from svc.values import dataclass

COUNTER, GAUGE, HISTOGRAM, SUMMARY = "counter", "gauge", "histogram", "summary"
PROCESS: Final = "process_"
PREFIX: Final = "svc_"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. A summary has a sum and a number, without quantiles."""

    name: str
    type: str
    labels: tuple[str, ...]
    unit: str
    help: str

    @property
    def full_name(self) -> str:
        """The name that is served. Those of the process have the usual prefix."""
        return self.name if self.name.startswith(PROCESS) else PREFIX + self.name

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples, without prefix."""
        parts = {HISTOGRAM: ("_bucket", "_sum", "_count"), SUMMARY: ("_sum", "_count")}.get(self.type, ("",))
        return tuple(self.name + part for part in parts)


OF_STORES: Final = (
    Family(
        "store_up",
        GAUGE,
        ("store",),
        "1 or 0",
        "Whether every open datastore of this kind has answered the last request of each operation.",
    ),
    Family(
        "store_requests_total",
        COUNTER,
        ("store", "op", "outcome"),
        "requests",
        "Requests to a datastore; a `conflict` is a write that another writer has preceded.",
    ),
    Family("store_request_seconds", HISTOGRAM, ("store", "op"), "seconds", "Time of a request that the datastore has served."),
)
"""Metrics of the sessions with datastores."""

OF_PROCESS: Final = (
    Family("process_cpu_seconds_total", COUNTER, (), "seconds", "Processor time of the process, user and system."),
    Family("process_open_fds", GAUGE, (), "descriptors", "Open file descriptors."),
    Family("process_max_fds", GAUGE, (), "descriptors", "Limit of open file descriptors."),
    Family("process_virtual_memory_bytes", GAUGE, (), "bytes", "Virtual memory."),
    Family("process_resident_memory_bytes", GAUGE, (), "bytes", "Resident memory."),
    Family("process_start_time_seconds", GAUGE, (), "seconds", "Start of the process, as Unix time."),
    Family("process_threads", GAUGE, (), "threads", "Threads of the process."),
)
"""Metrics that each program has."""


def by_sample(families: Iterable[Family]) -> dict[str, Family]:
    """Return the family of each sample's name."""
    return {sample: family for family in families for sample in family.samples}
