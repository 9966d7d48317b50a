"""ADDs of the agent with and without svc-routes on the node, in turns."""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.measurement import Figure, Sample, at_most
from bench.options import VERSIONS, Options
from bench.routes_process import RoutesProcess
from bench.routes_site import connect, etcd_site, folder
from bench.sequential import AFTER_DELETION
from bench.testbed import Plugin, Pod, Stage
from harness.enter_netns import entered

PAIRS, TURN = 12, 20  # pairs of turns, ADDs in a turn
WARM_UP = 3
RESAMPLES = 2000

Pair = tuple[list[float], list[float]]


def run(options: Options) -> Iterator[Figure]:
    pairs = PAIRS if options.rounds >= 60 else 3
    with Stage.open() as stage, entered(stage.node.netns), folder() as place, etcd_site(place) as site:
        connect(stage.node.netns)
        plugin, pods = stage.svc_plugin(), stage.pods(TURN)
        found = []
        for number in range(pairs):
            turns = {}
            for is_beside in (number % 2 == 0, number % 2 == 1):
                with _beside(is_beside, lambda: RoutesProcess(place, site.site)):
                    turns[is_beside] = _turn(stage, plugin, pods)
            found.append((turns[True], turns[False]))
    yield _figure(found)


@contextmanager
def _beside(is_beside: bool, start: Callable[[], RoutesProcess]) -> Iterator[None]:
    if not is_beside:
        yield
        return
    process = start()
    try:
        process.await_reasons("DIRECT", "OWN")
        process.await_settled()
        yield
    finally:
        process.end()


def _turn(stage: Stage, plugin: Plugin, pods: list[Pod]) -> list[float]:
    """Return the milliseconds of ADDs, one at a time."""
    milliseconds = []
    for pod in pods[:WARM_UP] + pods:
        milliseconds.append(stage.execute(plugin, "ADD", pod).ms)
        stage.execute(plugin, "DEL", pod)
        time.sleep(AFTER_DELETION)
    return milliseconds[WARM_UP:]


def _figure(pairs: list[Pair]) -> Figure:
    dice = random.Random(len(pairs))
    chosen = sorted(_change(dice.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    low, high = (chosen[RESAMPLES * part // 1000] for part in (25, 975))
    beside, alone = (Sample.of([each for pair in pairs for each in pair[side]]) for side in (0, 1))
    note = f"{beside.p50:.3f} ms beside {alone.p50:.3f} ms; 95 % interval {low:.1f} to {high:.1f} %"
    number, change = 2 * TURN * len(pairs), Sample(_change(pairs))
    return Figure("routes_add_change", "%", change, number, goal=at_most(1), note=note, versions=VERSIONS)


def _change(pairs: list[Pair]) -> float:
    """Return by how many percent the median of ADDs changes, in the middle of all pairs of turns."""
    return statistics.median(100 * (statistics.median(beside) / statistics.median(alone) - 1) for beside, alone in pairs)
