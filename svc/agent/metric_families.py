"""The table of all metrics: name, type, labels, unit and meaning. Imported only when metrics are written as text.

`python tests/reference.py` makes docs/reference/metrics.md from this table.
"""

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


FAMILIES: Final = (
    Family("calls_total", COUNTER, ("verb", "outcome"), "calls", "Calls answered, by verb and outcome."),
    Family(
        "call_duration_seconds",
        HISTOGRAM,
        ("verb", "outcome"),
        "seconds",
        "Time of a call in the agent, from the request to the reply, with its time in the queue and its waits.",
    ),
    Family(
        "call_phase_seconds",
        SUMMARY,
        ("verb", "phase"),
        "seconds",
        "Time of each phase of the calls, as in their log lines.",
    ),
    Family("queue_seconds", HISTOGRAM, (), "seconds", "Time that a call has waited for a worker."),
    Family("queue_depth", GAUGE, (), "jobs", "Calls and maintenance jobs that wait for a worker now."),
    Family("calls_in_flight", GAUGE, (), "calls", "Calls accepted and not answered yet: queued, in work, or parked."),
    Family("errors_total", COUNTER, ("code",), "calls", "Calls that failed, by the code of the CNI error."),
    Family(
        "oneshot_calls_total",
        COUNTER,
        (),
        "calls",
        "Calls that this node has served without an agent, since its journal began.",
    ),
    Family(
        "package_changes_total",
        COUNTER,
        (),
        "changes",
        "Times that the installed package was replaced under the running agent: restart it.",
    ),
    Family("gate_waits_total", COUNTER, ("outcome",), "calls", "ADDs that waited for readiness gates, by outcome."),
    Family(
        "policy_waits_total",
        COUNTER,
        ("outcome",),
        "calls",
        "ADDs that waited for their policy, by outcome; after `timeout` the pod started without.",
    ),
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
    Family(
        "ipam_conflicts_total",
        COUNTER,
        (),
        "attempts",
        "Assignments and releases that were planned again, because another node had changed a block or a handle.",
    ),
    Family("ipam_batch_requests", HISTOGRAM, (), "requests", "Requests for addresses that shared one write."),
    Family(
        "ipam_addresses",
        GAUGE,
        ("pool", "state"),
        "addresses",
        "Addresses in the blocks of this node: `allocated`, in `cooldown`, or `free`, reserved ones included.",
    ),
    Family("ipam_blocks", GAUGE, ("pool",), "blocks", "Blocks of this node."),
    Family("ipam_pool_addresses", GAUGE, ("pool",), "addresses", "Addresses of the pool that are not reserved, on all nodes."),
    Family(
        "attachments", GAUGE, ("state",), "attachments", "Attachments in the journal: `waiting`, `adding`, `added`, `deleting`."
    ),
    Family("pending_releases", GAUGE, (), "attachments", "Releases that are pending, because their datastore failed."),
    Family(
        "pending_release_oldest_seconds",
        GAUGE,
        (),
        "seconds",
        "How long the oldest of the pending releases has been pending; 0 if none is.",
    ),
    Family(
        "restored_attachments_total",
        COUNTER,
        ("outcome",),
        "attachments",
        "Live attachments claimed again in a datastore that has lost them, by outcome; a `conflict` means that another handle "
        "holds an address.",
    ),
    Family(
        "reconcile_findings",
        GAUGE,
        ("id",),
        "findings",
        "Contradictions between journal, interfaces and datastore on this node by the ID of `svcctl ipam check --node`; absent "
        "before the first comparison.",
    ),
    Family(
        "token_expiry_seconds",
        GAUGE,
        (),
        "seconds",
        "Time until the first token for the Kubernetes API expires; negative afterwards. Absent if no token names its end.",
    ),
    Family(
        "netlink_errors_total",
        COUNTER,
        ("errno",),
        "errors",
        "Netlink requests that failed a call, by the error of the kernel.",
    ),
    Family(
        "traces_dropped_total",
        COUNTER,
        (),
        "spans",
        "Spans that were dropped, because the receiver of the traces did not take them.",
    ),
    Family("build_info", GAUGE, ("version", "python"), "1", "The version of the running agent, and of its Python."),
    Family("process_cpu_seconds_total", COUNTER, (), "seconds", "Processor time of the agent, user and system."),
    Family("process_open_fds", GAUGE, (), "descriptors", "Open file descriptors."),
    Family("process_max_fds", GAUGE, (), "descriptors", "Limit of open file descriptors."),
    Family("process_virtual_memory_bytes", GAUGE, (), "bytes", "Virtual memory."),
    Family("process_resident_memory_bytes", GAUGE, (), "bytes", "Resident memory."),
    Family("process_start_time_seconds", GAUGE, (), "seconds", "Start of the agent, as Unix time."),
    Family("process_threads", GAUGE, (), "threads", "Threads of the agent."),
)

BY_SAMPLE: Final = {sample: family for family in FAMILIES for sample in family.samples}
