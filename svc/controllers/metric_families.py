"""The table of all metrics of the controllers. Imported only when metrics are written as text.

A controller returns the samples of its own ones from `Controller.families`. `python tests/reference.py` writes this table to
docs/reference/metrics.md.
"""

from typing import Final

from svc.metrics.families import COUNTER, GAUGE, OF_PROCESS, OF_STORES, SUMMARY, Family

FAMILIES: Final = (
    Family("controllers_leads", GAUGE, (), "1 or 0", "Whether this process leads, and may write."),
    Family("controllers_queue_length", GAUGE, ("controller",), "items", "Items that wait, those after a failure included."),
    Family(
        "controllers_settled_total",
        COUNTER,
        ("controller",),
        "items",
        "Items that were compared, and written if they differed.",
    ),
    Family(
        "controllers_failures_total", COUNTER, ("controller",), "attempts", "Attempts at items that failed, and are repeated."
    ),
    Family(
        "controllers_writes_total",
        COUNTER,
        ("controller",),
        "objects",
        "Objects that were created, updated or deleted in the datastore, and services whose status was.",
    ),
    Family(
        "controllers_round_seconds",
        SUMMARY,
        ("controller",),
        "seconds",
        "Time of full rounds, until each differing item was tried.",
    ),
    Family(
        "controllers_condition",
        GAUGE,
        ("condition", "status", "reason"),
        "1",
        "The conditions that this process reports, as in the status of KubeControllersConfiguration.",
    ),
    *(
        Family(name, GAUGE, ("ippool", "node"), unit, meaning)
        for name, unit, meaning in (
            ("ipam_allocations_in_use", "addresses", "Allocated addresses of a pool, by the node of the allocation."),
            ("ipam_allocations_borrowed", "addresses", "Those of them in blocks of other nodes, or of none."),
            ("ipam_blocks", "blocks", "Blocks of a pool, by the node that has the affinity."),
            ("ipam_allocations_gc_candidates", "addresses", "Addresses that look leaked, and wait for the grace period."),
        )
    ),
    Family(
        "ipam_allocations_gc_reclamations", COUNTER, ("ippool", "node"), "addresses", "Leaked addresses that were released."
    ),
    Family("ipam_ippool_size", GAUGE, ("ippool",), "addresses", "Size of a pool."),
    Family("ipam_ippool_reserved", GAUGE, ("ippool",), "addresses", "Addresses of a pool that are in reservations."),
    Family("ipam_allocations_per_node", GAUGE, ("node",), "addresses", "Allocated addresses of all pools, by node."),
    Family("ipam_allocations_borrowed_per_node", GAUGE, ("node",), "addresses", "Those of them in blocks of other nodes."),
    Family("ipam_blocks_per_node", GAUGE, ("node",), "blocks", "Blocks of all pools, by node."),
    Family("build_info", GAUGE, ("version", "python"), "1", "The version of the running program, and of its Python."),
    *OF_STORES,
    *OF_PROCESS,
)
