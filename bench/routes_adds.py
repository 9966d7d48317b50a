"""ADDs of the agent with and without svc-routes on the node, in turns.

Two nodes with equal agents take turns in the order A B B A and then B A A B, so that neither drift nor order favours one.
On one of them is svc-routes with the routes of the cluster. In the second half it is on the other node: a difference between
the two nodes counts once for it and once against it.
"""

import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.measurement import Figure, Sample, at_most
from bench.options import VERSIONS, Options
from bench.routes_process import RoutesProcess
from bench.routes_site import RoutedSite, connect, etcd_site, folder
from bench.sequential import AFTER_DELETION
from bench.testbed import Stage
from harness.enter_netns import entered
from harness.port_forward import PortForward
from svc.names import DEFAULT

QUADS, QUICK_QUADS = 1200, 20  # of ADDs, in each half
PODS, WARM_UP = 8, 16
TRIM = 0.2  # of the differences at each end, which the machine has made
RESAMPLES = 1000
ORDERS = ((True, False, False, True), (False, True, True, False))

Pair = tuple[float, float]
"""Milliseconds beside svc-routes and alone."""


def run(options: Options) -> Iterator[Figure]:
    quads = QUADS if options.rounds >= 60 else QUICK_QUADS
    with ExitStack() as stack:
        site = stack.enter_context(etcd_site(stack.enter_context(folder())))
        first, second = (_Side(site, stack) for _ in range(2))
        halves = []
        for beside, alone in ((first, second), (second, first)):
            with beside.routed():
                halves.append(_pairs(beside, alone, quads))
    yield _figure(halves)


class _Side:
    """A node with its agent, and perhaps with svc-routes."""

    def __init__(self, site: RoutedSite, stack: ExitStack) -> None:
        self._site = site
        self._stage = stack.enter_context(Stage.open())
        self._folder: Path = stack.enter_context(folder())
        netns = self._stage.node.netns
        connect(netns)
        stack.callback(PortForward(netns, site.site.port).close)
        self._plugin, self._pods = self._stage.svc_plugin(), self._stage.pods(PODS)
        self._calls = 0

    @contextmanager
    def routed(self) -> Iterator[None]:
        """Have svc-routes on the node, with its routes. Nothing of it remains."""
        netns = self._stage.node.netns
        with entered(netns):
            process = RoutesProcess(self._folder, self._site.site)
        try:
            process.await_reasons("DIRECT", "OWN")
            process.await_settled()
            yield
        finally:
            process.end()
            netns.run("ip", "route", "flush", "proto", str(DEFAULT.route_protocol))
            netns.run("nft", "flush", "ruleset")

    def add(self) -> float:
        """Return the milliseconds of an ADD, whose pod is deleted again."""
        pod = self._pods[self._calls % len(self._pods)]
        self._calls += 1
        milliseconds = self._stage.execute(self._plugin, "ADD", pod).ms
        self._stage.execute(self._plugin, "DEL", pod)
        time.sleep(AFTER_DELETION)
        return milliseconds


def _pairs(beside: _Side, alone: _Side, quads: int) -> list[Pair]:
    """Return two pairs of each four ADDs: the first two of them, and the last two."""
    for _ in range(WARM_UP):
        beside.add()
        alone.add()
    pairs: list[Pair] = []
    for number in range(quads):
        times: dict[bool, list[float]] = {True: [], False: []}
        for is_beside in ORDERS[number % len(ORDERS)]:
            times[is_beside].append((beside if is_beside else alone).add())
        pairs += zip(times[True], times[False], strict=True)
    return pairs


def _figure(halves: Sequence[Sequence[Pair]]) -> Figure:
    dice = random.Random(len(halves[0]))
    differences = [[math.log(beside / alone) for beside, alone in half] for half in halves]
    chosen = sorted(_change([dice.choices(half, k=len(half)) for half in differences]) for _ in range(RESAMPLES))
    low, high = (chosen[RESAMPLES * part // 1000] for part in (25, 975))
    beside, alone = (statistics.median(pair[side] for half in halves for pair in half) for side in (0, 1))
    note = f"{beside:.3f} ms beside {alone:.3f} ms; 95 % interval {low:.2f} to {high:.2f} %"
    change, number = Sample(_change(differences)), 2 * sum(map(len, halves))
    return Figure("routes_add_change", "%", change, number, goal=at_most(1), note=note, versions=VERSIONS)


def _change(halves: Sequence[Sequence[float]]) -> float:
    """Return by how many percent ADDs change: the mean of both halves, each with its trimmed mean."""
    return 100 * math.expm1(statistics.fmean(map(_trimmed_mean, halves)))


def _trimmed_mean(values: Sequence[float]) -> float:
    cut = int(TRIM * len(values))
    return statistics.fmean(sorted(values)[cut : len(values) - cut])
