"""The effect of existing pods on the time of a call: a full and an almost empty node, side by side.

The floor program measures the kernel's share on the same two nodes.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench import programs
from bench.measurement import Figure, Sample, at_most
from bench.options import AT_ONCE, Options
from bench.phases import medians
from bench.runtime import Outcome
from bench.sequential import AFTER_DELETION
from bench.testbed import Plugin, Pod, Stage

PRESENT = 1  # pods on the empty node


@dataclass
class Side:
    """A node with so many pods, and its times by verb."""

    stage: Stage
    present: int
    ours: dict[str, list[Outcome]] = field(default_factory=lambda: {"ADD": [], "DEL": []})
    kernel: dict[str, list[float]] = field(default_factory=lambda: {"ADD": [], "DEL": []})

    def fill(self) -> None:
        self.stage.execute_all(self.stage.svc_plugin(), "ADD", self.stage.pods(self.present), AT_ONCE)

    def cycle(self, floor: Plugin, pods: tuple[Pod, Pod]) -> None:
        for verb in ("ADD", "DEL"):
            self.ours[verb].append(self.stage.execute(self.stage.svc_plugin(), verb, pods[0]))
            time.sleep(AFTER_DELETION)
            outcome = self.stage.execute(floor, verb, pods[1])
            self.kernel[verb].append(float(outcome.stdout.split()[0]) / 1000)
            time.sleep(AFTER_DELETION)


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as one, Stage.open() as other:
        sides = [Side(one, options.density_pods), Side(other, PRESENT)]
        floor = Plugin("kernel alone", programs.build_floor(one.directory), {})
        rounds = options.rounds + options.warm_up
        pods = [list(zip(side.stage.pods(rounds), side.stage.pods(rounds), strict=True)) for side in sides]
        for side in sides:
            side.fill()
        for number in range(rounds):
            for side, own in zip(*((sides, pods) if number % 2 else (sides[::-1], pods[::-1])), strict=True):
                side.cycle(floor, own[number])
    for verb in ("ADD", "DEL"):
        yield from _figures(verb, options, *sides)


def _figures(verb: str, options: Options, full: Side, empty: Side) -> Iterator[Figure]:
    goal, then = (at_most(1.2), at_most(1.05)) if verb == "ADD" else (None, None)
    full_node, empty_node = (side.ours[verb][options.warm_up :] for side in (full, empty))
    ours, peer = (Sample.of([outcome.ms for outcome in found]) for found in (full_node, empty_node))
    yield Figure(
        f"{verb.lower()}_at_{full.present}", "ms", ours, options.rounds, peer=peer, peer_name=f"svc with {empty.present} pod",
        goal=goal, then=then,
        note=f"phases at {full.present}: {medians(full_node)}; at {empty.present}: {medians(empty_node)}",
    )  # fmt: skip
    ours, peer = (Sample.of(side.kernel[verb][options.warm_up :]) for side in (full, empty))
    yield Figure(
        f"{verb.lower()}_at_{full.present}_kernel", "ms", ours, options.rounds, peer=peer,
        peer_name=f"kernel with {empty.present} pod", note="kernel work alone, by the floor program",
    )  # fmt: skip
