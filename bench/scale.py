"""svc-controllers in a large cluster, on each datastore: memory, full rounds, processor, leaks, host endpoints, new leaders."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.measurement import Figure, Goal, Missing, Sample, at_most
from bench.memory import rss_mib
from bench.options import Options
from bench.server_counts import processor_seconds
from harness.controllers import Process
from harness.large_cluster import LargeCluster
from harness.large_site import LargeSite, await_condition, etcd_site, orch_site

PERIOD_SECONDS = 150  # between full rounds: long enough for a rest between two of them
REST_SECONDS = 60.0
RESTS = 3  # at most, until one is without a full round
GRACE_SECONDS = 30
WHOLE = 1000  # nodes: goals do not apply to smaller clusters
LABELLED = 10  # nodes whose label changes


def run(options: Options) -> Iterator[Figure]:
    for opened in (etcd_site, orch_site):
        size = LargeCluster(options.scale_nodes, options.scale_pods // options.scale_nodes)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, _or_missing():
            with opened(Path(folder), size, RECONCILER_PERIOD=f"{PERIOD_SECONDS}s") as site:
                yield from _Measured(site, f"cluster made in {time.monotonic() - began:.0f} s").figures()


@contextmanager
def _or_missing() -> Iterator[None]:
    try:
        yield
    except pytest.skip.Exception as what:
        raise Missing(str(what)) from None


class _Measured:
    """The figures of one cluster."""

    def __init__(self, site: LargeSite, note: str) -> None:
        self._site = site
        self._note = note

    def figures(self) -> Iterator[Figure]:
        began = time.time()
        leader = self._site.start()
        self._site.await_settled(leader)
        yield self._figure("fill", "s", leader.filled_at() - began, note=self._note)
        yield self._figure("rss", "MiB", rss_mib(leader.pid), at_most(200), note=_tables(leader))
        yield from self._rest_and_round(leader)
        yield self._figure("rss_peak", "MiB", rss_mib(leader.pid, "VmHWM"), at_most(200))
        yield from self._leaders(leader)

    def _rest_and_round(self, process: Process) -> Iterator[Figure]:
        for _ in range(RESTS):
            before, used, began = process.rounds(), processor_seconds(process.pid), time.monotonic()
            time.sleep(REST_SECONDS)
            share = 100 * (processor_seconds(process.pid) - used) / (time.monotonic() - began)
            ended = sum(map(len, process.rounds().values())) - sum(map(len, before.values()))
            if not ended:
                break
        yield self._figure("rest", "% of a processor", share, at_most(2), note=f"{ended} rounds in this time")
        lists = self._site.lists()
        latest = self._site.await_round(process, process.rounds())
        asked = self._site.lists() - lists
        note = ", ".join(f"{name} {seconds:.2f}" for name, seconds in sorted(latest.items()))
        yield self._figure("round", "s", max(latest.values()), at_most(5), note=note)
        note = ", ".join(f"{number} of {what}" for what, number in asked.items())
        yield self._figure("round_lists", "requests", asked.total(), at_most(0), note=note)

    def _leaders(self, leader: Process) -> Iterator[Figure]:
        second = self._waiting(leader)
        yield self._timed("leader_after_kill", at_most(20), lambda: _replace(leader.kill, second))
        yield from self._work(second)
        third = self._waiting(second)
        yield self._timed("leader_after_end", at_most(3), lambda: _replace(second.terminate, third))

    def _waiting(self, leader: Process) -> Process:
        """Start a process that waits for the lead, with its tables filled."""
        process = self._site.start()
        self._site.await_tables(process, leader)
        return process

    def _work(self, leader: Process) -> Iterator[Figure]:
        self._site.await_settled(leader)
        note = f"grace period of {GRACE_SECONDS} s"
        yield self._timed("leak_free", at_most(GRACE_SECONDS + 60), partial(self._site.leak, GRACE_SECONDS), note)
        yield self._timed("host_endpoints", at_most(30), self._site.make_host_endpoints)
        seconds = [_seconds(partial(self._site.label, node)) for node in range(min(LABELLED, self._site.size.nodes))]
        yield self._figure("label", "s", 0, at_most(2), samples=Sample.of(seconds), note="of node to host endpoint")
        yield self._figure("rss_host_endpoints", "MiB", rss_mib(leader.pid), at_most(200), note=_tables(leader))

    def _timed(self, name: str, goal: Goal, action: Callable[[], None], note: str = "") -> Figure:
        return self._figure(name, "s", _seconds(action), goal, note)

    def _figure(
        self, name: str, unit: str, value: float, goal: Goal | None = None, note: str = "", samples: Sample | None = None
    ) -> Figure:
        size = self._site.size
        goal = goal if size.nodes >= WHOLE else None
        return Figure(f"scale_{self._site.kind}_{name}", unit, samples or Sample(value), size.pods, goal=goal, note=note)


def _replace(end: Callable[[], object], other: Process) -> None:
    end()
    await_condition(lambda: "this process leads" in other.text)


def _tables(process: Process) -> str:
    return "; ".join(f"{rows} {what}" for what, rows in process.tables().items())


def _seconds(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began
