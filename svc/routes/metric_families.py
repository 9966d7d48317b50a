"""The table of the metrics of svc-routes. Imported only when metrics are written as text.

`python tests/reference.py` writes this table to docs/reference/metrics.md.
"""

from typing import Final

from svc.metrics.families import COUNTER, GAUGE, HISTOGRAM, OF_PROCESS, OF_STORES, Family

FAMILIES: Final = (
    Family("routes_state", GAUGE, ("state",), "1", "What the program does: off, waiting, idle or working."),
    Family("routes", GAUGE, ("kind",), "routes", "Own routes in the kernel, by the kind of their way."),
    Family("routes_without_way", GAUGE, ("reason",), "networks", "Networks that have no route, by the reason."),
    Family("routes_failures_total", COUNTER, ("errno",), "routes", "Routes that the kernel has refused, by the error."),
    Family("routes_foreign", GAUGE, (), "networks", "Networks to which another program has a route."),
    Family("routes_unreachable_nodes", GAUGE, (), "nodes", "Nodes of which at least one network has no route."),
    Family("routes_held_deletions", GAUGE, (), "routes", "Routes that are not wanted, and kept because they are too many."),
    Family("routes_problems", GAUGE, (), "problems", "Problems of devices, NAT, tunnels and the datastore."),
    Family("routes_seconds", HISTOGRAM, (), "seconds", "Time from a change in the datastore to its route in the kernel."),
    Family("build_info", GAUGE, ("version", "python"), "1", "Version of svc, and of Python."),
    *OF_STORES,
    *OF_PROCESS,
)
