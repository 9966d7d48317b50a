"""ADD, an allocation, and the choice of pools, as functions of the number of pools.

The nodes of all numbers run side by side, and the calls go from one to the next, so that a slow moment of the machine slows
all. Each pool selects nodes of another zone, the last one those of this node; so every selector is evaluated once, until pools
or labels change.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.curve_blocks import cycles
from bench.ipam_load import LAST_ZONE, elapsed_us, furnish_node_store
from bench.measurement import Figure, Goal, Sample, at_most
from bench.options import VERSIONS, Options
from bench.sequential import AFTER_DELETION
from bench.testbed import Stage
from harness.datastores import EmbeddedSite
from harness.node import Node
from svc.ipam.pools import read_pools
from svc.ipam.service import IpamService

WARM_UP = 2
GOAL_POOLS = 500  # and 10,000 blocks


class EmptyNode(Node):
    """A node without the usual pools."""

    def apply_pools(self) -> None:
        return


@dataclass
class Side:
    """A node with so many pools, and its times in microseconds by name."""

    pools: int
    stage: Stage
    times: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.times.setdefault(name, []).append(value)


def run(options: Options) -> Iterator[Figure]:
    with ExitStack() as stack:
        sides = [stack.enter_context(_side(number, options)) for number in options.pools]
        for number in range(options.curve_rounds + WARM_UP):
            for side in sides if number % 2 else reversed(sides):
                _call(side)
        for side in sides:
            _measure_here(side, options)
    for side in sides:
        yield from _figures(side, sides[0], options)


@contextmanager
def _side(pools: int, options: Options) -> Iterator[Side]:
    with Stage.open(EmptyNode) as stage:
        furnish_node_store(stage.node.state_dir, pools, options.blocks_of_pool)
        yield Side(pools, stage)


def _call(side: Side) -> None:
    (pod,) = side.stage.pods(1)
    for verb in ("ADD", "DEL"):
        side.note(verb, side.stage.execute(side.stage.svc_plugin(), verb, pod).ms * 1000)
        time.sleep(AFTER_DELETION)


def _measure_here(side: Side, options: Options) -> None:
    """Measure parts of the work in this process, on the same store."""
    with closing(EmbeddedSite(Path(side.stage.node.state_dir)).open()) as store:
        assigned, _ = cycles(IpamService(store, os.uname().nodename.lower()), options.curve_rounds + WARM_UP)
        side.times["assign"] = assigned
        pools = read_pools(store)
        for _ in range(options.curve_rounds + WARM_UP):
            began = time.perf_counter()
            selected = pools.selected(4, {"zone": LAST_ZONE})
            side.note("match", elapsed_us(began))
            assert len(selected) == 1


def _figures(side: Side, first: Side, options: Options) -> Iterator[Figure]:
    for name, values in side.times.items():
        judged = name == "ADD" and side is not first
        goal: Goal | None = at_most(1.05) if judged and side.pools >= GOAL_POOLS else None
        yield Figure(
            f"pools_{name.lower()}", "us", Sample.of(values[WARM_UP:]), options.curve_rounds,
            peer=Sample.of(first.times[name][WARM_UP:]) if judged else None,
            peer_name=f"svc with {first.pools} pool" if judged else "", then=goal, versions=VERSIONS,
            parameters={"pools": side.pools, "blocks": side.pools * options.blocks_of_pool},
        )  # fmt: skip
