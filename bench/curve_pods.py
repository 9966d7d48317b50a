"""ADD and DEL as functions of the pods on the node: svc on one node, ptp on another, and the kernel's share on both.

The ADDs of the floor program do only the kernel's work. It grows with the interfaces of a node, for every plugin. A third node
keeps one pod of svc. Its calls alternate with the others, so the growth does not depend on the moments of the machine.
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
GOAL_PODS = 2000


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
        """Add pods until there are so many, and forget the times."""
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
    with Stage.open() as one, Stage.open() as other, Stage.open() as third:
        floor = Plugin("kernel alone", programs.build_floor(one.directory), {})
        ptp = other.ptp()
        sides = [Side(stage, stage.svc_plugin(), floor) for stage in (one, third)] + ([Side(other, ptp, floor)] if ptp else [])
        for present in options.curve_pods:
            for side in sides:
                side.fill(1 if side.stage is third else present)
            for number in range(options.curve_rounds + WARM_UP):
                for side in sides if number % 2 else reversed(sides):
                    side.cycle()
            for verb in ("ADD", "DEL"):
                yield from _figures(verb, sides, options)
            yield _growth(sides[0], sides[1], options)


def _figures(verb: str, sides: list[Side], options: Options) -> Iterator[Figure]:
    ours, _, *peers = sides
    parameters = {"pods": ours.present}
    yield Figure(
        f"pods_{verb.lower()}", "ms", _sample(ours.whole[verb]), options.curve_rounds,
        peer=_sample(peers[0].whole[verb]) if peers else None, peer_name="ptp + host-local", note=programs.require_ptp(),
        versions=VERSIONS, parameters=parameters,
    )  # fmt: skip
    kernel = _sample(ours.kernel[verb])
    yield Figure(f"pods_{verb.lower()}_kernel", "ms", kernel, options.curve_rounds, parameters=parameters)


def _growth(full: Side, empty: Side, options: Options) -> Figure:
    """Return an ADD without the kernel's work on the full node, beside one on the node with one pod."""
    own = [_sample(side.whole["ADD"]).p50 - _sample(side.kernel["ADD"]).p50 for side in (full, empty)]
    goal = at_most(1.05) if full.present >= GOAL_PODS else None
    return Figure(
        "pods_add_own", "ms", Sample(own[0]), options.curve_rounds, peer=Sample(own[1]), peer_name="svc with 1 pod", then=goal,
        note="medians of ADDs, minus those of the kernel's work", parameters={"pods": full.present},
    )  # fmt: skip


def _sample(values: list[float]) -> Sample:
    return Sample.of(values[WARM_UP:])
