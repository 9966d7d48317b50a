"""The table of all metrics: name, type, labels, unit and meaning. Imported only when metrics are written as text.

`python tests/reference.py` makes docs/reference/metrics.md from this table.
"""

from typing import Final

from svc.metrics.families import COUNTER, GAUGE, HISTOGRAM, OF_PROCESS, OF_STORES, SUMMARY, Family, by_sample

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
    *OF_STORES,
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
        "spooled_dels", GAUGE, (), "DELs", "DELs that the executable has spooled without an agent, and that are not done yet."
    ),
    Family(
        "spooled_del_oldest_seconds",
        GAUGE,
        (),
        "seconds",
        "How long the oldest of the spooled DELs has waited; 0 if none waits.",
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
    *OF_PROCESS,
)

BY_SAMPLE: Final = by_sample(FAMILIES)
