"""The load at which the datastore, and not svc, is the bound: pods that come and go on more and more nodes at once.

The servers have a processor of their own, and the nodes have the others. So the processor time of both is measured
separately, and the ceiling of the servers shows although one machine has both. Bare requests of the same kinds follow, without
address management.
"""

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.large_bare import pods_per_second
from bench.large_nodes import Order, Tally, fleet
from bench.large_site import LargeSite
from bench.measurement import Figure, Sample
from bench.options import Options
from harness.large_cluster import planted
from svc.datastore.api import Entry
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.keys import BlockQuery, HandleQuery, Query, ResourceQuery
from svc.model.kv_codec import Codec
from svc.names import DEFAULT

HALF = 16  # pods of each node, half of its block, so that documents have their usual sizes
BUSY = 0.9  # of the servers' processor, from which they are the bound


def limit(site: LargeSite, options: Options) -> Iterator[Figure]:
    """Measure. Yield nothing on a machine with one processor."""
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        return
    most = max(options.large_parallel)
    site.furnish(most)
    with _apart(site.pids, processors):
        yield from _measured(site, options, most)


def _measured(site: LargeSite, options: Options, most: int) -> Iterator[Figure]:
    points = list[_Point]()
    with fleet(site.settings, HALF, most) as workers:
        workers.carry_out(Order(dict.fromkeys(range(most), range(HALF))))
        for nodes in options.large_parallel:
            used = site.processor_seconds()
            done = workers.carry_out(Order(dict.fromkeys(range(nodes), ()), options.large_seconds))
            points.append(_Point.of(nodes, done, site.processor_seconds() - used))
            yield points[-1].figure(site.kind)
    bare = dict[int, float]()
    documents = _documents(site)
    for parallel in options.large_parallel:
        bare[parallel], share = pods_per_second(
            site.settings, documents, parallel, options.large_seconds, site.processor_seconds
        )
        yield _figure(site.kind, "bare", "pods/s", bare[parallel], f"servers {share:.0%} of their processor", parallel)
    yield from _bound(site.kind, points, bare)


@dataclass(frozen=True, slots=True)
class _Point:
    """What so many nodes at once did: pods a second, and the milliseconds of processor time of nodes and servers for a pod."""

    nodes: int
    rate: float
    node_ms: float
    server_ms: float
    server_share: float
    conflicts: float

    @staticmethod
    def of(nodes: int, done: Tally, server_seconds: float) -> "_Point":
        pods = len(done.ms)
        return _Point(
            nodes, pods / done.seconds, 1000 * done.processor_seconds / pods, 1000 * server_seconds / pods,
            server_seconds / done.seconds, done.costs["conflicts"] / pods,
        )  # fmt: skip

    def figure(self, kind: str) -> Figure:
        note = f"processor time for a pod: nodes {self.node_ms:.2f} ms, servers {self.server_ms:.2f} ms"
        note += f"; servers {self.server_share:.0%} of their processor; {self.conflicts:.3f} conflicts a pod"
        return _figure(kind, "rate", "pods/s", self.rate, note, self.nodes)


def _bound(kind: str, points: Sequence[_Point], bare: Mapping[int, float]) -> Iterator[Figure]:
    """Yield the pods that one processor of the servers serves, beside bare requests, and the nodes that ask for as many."""
    server_ms = statistics.median(point.server_ms for point in points)
    node_ms = statistics.median(point.node_ms for point in points)
    served, alone = 1000 / server_ms, points[0].rate
    saturated = next((point.nodes for point in points if point.server_share >= BUSY), None)
    seen = f"reached with {saturated} nodes at once" if saturated else "not reached here: the nodes' processors are the bound"
    note = f"by the servers' processor time of {server_ms:.2f} ms for a pod; {seen}"
    yield Figure(
        f"large_{kind}_bound", "pods/s", Sample(served), len(points), peer=Sample(max(bare.values())),
        peer_name="bare requests", note=note,
    )  # fmt: skip
    note = f"a node alone lets {alone:.0f} pods/s come and go"
    yield Figure(f"large_{kind}_bound_nodes", "nodes", Sample(served / alone), len(points), note=note)
    note = f"{node_ms:.2f} ms of a node for a pod"
    yield Figure(f"large_{kind}_bound_processors", "processors", Sample(node_ms / server_ms), len(points), note=note)


def _figure(kind: str, name: str, unit: str, value: float, note: str, parallel: int) -> Figure:
    return Figure(f"large_{kind}_{name}", unit, Sample(value), 1, note=note, parameters={"at_once": parallel})


def _documents(site: LargeSite) -> dict[str, str]:
    """Return a handle, a block, and with etcd an endpoint, as the datastore has them."""
    queries: dict[str, Query] = {"handle": HandleQuery(), "block": BlockQuery()}
    if site.store.atomic:
        queries["endpoint"] = ResourceQuery(ENDPOINT)
    return {kind: _text(site, next(iter(site.store.list(query)))) for kind, query in queries.items()}


def _text(site: LargeSite, entry: Entry) -> str:
    if site.store.atomic:
        return Codec(DEFAULT).encode(entry.value).decode()
    return json.dumps(planted((entry.key, entry.value))[1])


@contextmanager
def _apart(pids: Iterable[int], processors: set[int]) -> Iterator[None]:
    """Let the servers run on one processor, and this process with its later children on the others."""
    server = {min(processors)}
    try:
        for pid in pids:
            _let_run(pid, server)
        os.sched_setaffinity(0, processors - server)
        yield
    finally:
        os.sched_setaffinity(0, processors)
        for pid in pids:
            _let_run(pid, processors)


def _let_run(pid: int, processors: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended
            os.sched_setaffinity(int(task.name), processors)
