"""The memory of the tables of svc-controllers: fill one table after the other in this process, and print a JSON line for each.

`bench.scale` executes this module in a process of its own: memory of an earlier measurement would count as well.
"""

import argparse
import gc
import json
import re
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

from svc.controllers.main import ARENAS
from svc.controllers.tables import Tables
from svc.datastore.open import open_backend, open_client
from svc.heap import limit_arenas
from svc.names import DEFAULT

TABLES = ("kube_nodes", "pods", "pools", "nodes", "blocks", "handles", "affinities", "host_endpoints", "endpoints")

_POLL = 0.05
_KEPT: list[Tables] = []  # tables stay filled until the end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--etcd", default="", help="endpoints (default: the API server is the datastore)")
    parser.add_argument("--trace", action="store_true", help="measure allocated bytes, and not the memory of the process")
    arguments = parser.parse_args()
    limit_arenas(ARENAS)
    api = {"kubeconfig": arguments.kubeconfig}
    place = {"kind": "etcdv3", "etcd_endpoints": arguments.etcd} if arguments.etcd else {"kind": "orch", **api}
    store, client = open_backend(place, Path(), DEFAULT), open_client(api)
    client.get("/version")  # and everything is imported
    if arguments.trace:
        tracemalloc.start()
    _show("start", 0, 0.0, arguments.trace)
    for name in TABLES:
        if name in ("nodes", "endpoints") and not arguments.etcd:
            continue
        rows, seconds = _fill(Tables(client, store, sys.exit), name)
        _show(name, rows, seconds, arguments.trace)


def _fill(tables: Tables, name: str) -> tuple[int, float]:
    """Return the rows of a table, and the seconds until it was filled."""
    _KEPT.append(tables)
    getattr(tables, name)
    began = time.monotonic()
    tables.start()
    while not all(table.is_filled for table in tables._made):
        time.sleep(_POLL)
    return sum(map(len, tables._made)), time.monotonic() - began


def _show(name: str, rows: int, seconds: float, traced: bool) -> None:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    found: dict[str, Any] = {"table": name, "rows": rows, "seconds": round(seconds, 2)}
    for field in ("VmRSS", "VmHWM"):
        match = re.search(rf"{field}:\s+(\d+) kB", status)
        assert match
        found[field] = round(int(match[1]) / 1024, 1)
    if traced:
        found["bytes"] = tracemalloc.get_traced_memory()[0]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
