"""ADD and DEL as functions of the pods on the node: svc on one node, ptp on another, and the kernel's share on both.

The ADDs of the floor program do only the kernel's work. It grows with the interfaces of a node, for every plugin.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench import programs
from bench.measurement import Figure, Sample, at_most
from bench.options import AT_ONCE, VERSIONS, Options
from bench.sequential import AFTER_DELETION
from bench.testbed import Plugin, Stage

WARM_UP = 2


@dataclass
class Side:
    """A node with the pods of one plugin, and its times in milliseconds, by verb."""

    stage: Stage
    plugin: Plugin
    floor: Plugin
    present: int = 0
    whole: dict[str, list[float]] = field(default_factory=dict)
    kernel: dict[str, list[float]] = field(default_factory=dict)

    def fill(self, present: int) -> None:
        self.stage.execute_all(self.plugin, "ADD", self.stage.pods(present - self.present), AT_ONCE)
        self.present = present
        self.whole, self.kernel = {"ADD": [], "DEL": []}, {"ADD": [], "DEL": []}

    def cycle(self) -> None:
        pod, other = self.stage.pods(2)
        for verb in ("ADD", "DEL"):
            self.whole[verb].append(self.stage.execute(self.plugin, verb, pod).ms)
            time.sleep(AFTER_DELETION)
            outcome = self.stage.execute(self.floor, verb, other)
            self.kernel[verb].append(float(outcome.stdout.split()[0]) / 1000)
            time.sleep(AFTER_DELETION)


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as one, Stage.open() as other:
        floor = Plugin("kernel alone", programs.build_floor(one.directory), {})
        ptp = other.ptp()
        sides = [Side(one, one.svc_plugin(), floor)] + ([Side(other, ptp, floor)] if ptp else [])
        first: dict[str, float] = {}
        for present in options.curve_pods:
            for side in sides:
                side.fill(present)
            for number in range(options.curve_rounds + WARM_UP):
                for side in sides if number % 2 else reversed(sides):
                    side.cycle()
            for verb in ("ADD", "DEL"):
                yield from _figures(verb, sides, options, first)


def _figures(verb: str, sides: list[Side], options: Options, first: dict[str, float]) -> Iterator[Figure]:
    ours, rounds = sides[0], options.curve_rounds
    whole = [Sample.of(side.whole[verb][WARM_UP:]) for side in sides]
    kernel = Sample.of(ours.kernel[verb][WARM_UP:])
    parameters = {"pods": ours.present}
    yield Figure(
        f"pods_{verb.lower()}", "ms", whole[0], rounds, peer=whole[1] if len(whole) > 1 else None, parameters=parameters,
        peer_name="ptp + host-local", note=programs.require_ptp(), versions=VERSIONS,
    )  # fmt: skip
    yield Figure(f"pods_{verb.lower()}_kernel", "ms", kernel, rounds, parameters=parameters)
    if verb == "ADD":
        own = whole[0].p50 - kernel.p50
        growth = own / first.setdefault(verb, own)
        note = f"ADD without the kernel's work: {own:.2f} ms, with {options.curve_pods[0]} pod {first[verb]:.2f} ms"
        goal = at_most(1.05) if ours.present >= 2000 else None
        yield Figure("pods_add_growth", "x", Sample(growth), rounds, then=goal, note=note, parameters=parameters)
