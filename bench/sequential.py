"""One call at a time: ADD and DEL by exec, beside ptp and beside the kernel's own share of the work."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench import programs
from bench.measurement import Figure, Sample, at_most
from bench.options import VERSIONS, Options
from bench.testbed import Plugin, Pod, Stage

TURN = 6  # consecutive calls of one competitor; the first of them finds the caches of the others
AFTER_DELETION = 0.045  # seconds; the kernel works for 20 to 30 ms after it has removed a link


@dataclass
class Times:
    """Milliseconds by competitor."""

    add: dict[str, list[float]] = field(default_factory=dict)
    delete: dict[str, list[float]] = field(default_factory=dict)
    work: dict[str, list[float]] = field(default_factory=dict)  # of the kernel alone, as the floor program measures them
    removed: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, list[float]] = field(default_factory=dict)  # the first ADD of each turn

    def note(self, kind: dict[str, list[float]], name: str, milliseconds: float) -> None:
        kind.setdefault(name, []).append(milliseconds)


class Contest:
    """Rounds in which every competitor has one turn, in random order, because a call after one of svc finds a warm agent."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        floor, null = programs.build_floor(stage.directory), programs.build_null(stage.directory)
        ptp = stage.ptp()
        self.plugins = {
            "ours": stage.svc_plugin(),
            "dual": stage.svc_plugin(dual=True),
            **({"ptp": ptp} if ptp else {}),
            "floor": Plugin("kernel alone", floor, {}, {"FLOOR_FAMILIES": "4"}),
            "floor_dual": Plugin("kernel alone, both families", floor, {}, {"FLOOR_FAMILIES": "46"}),
            "null": Plugin("null program", null, {}),
        }
        self.times = Times()

    def run(self, rounds: int, warm_up: int) -> Times:
        pods = {name: self._stage.pods(TURN) for name in self.plugins}
        for number in range(-warm_up, -(-rounds // TURN)):
            if number == 0:
                self.times = Times()
            names = random.sample(list(self.plugins), len(self.plugins))
            for name in names:
                for pod in pods[name]:
                    self._add(name, pod, first=pod is pods[name][0])
            for name in names:
                for pod in pods[name]:
                    self._delete(name, pod)
        return self.times

    def _add(self, name: str, pod: Pod, *, first: bool) -> None:
        outcome = self._stage.execute(self.plugins[name], "ADD", pod)
        self.times.note(self.times.add, name, outcome.ms)
        if first:
            self.times.note(self.times.first, name, outcome.ms)
        if name.startswith("floor"):
            self.times.note(self.times.work, name, float(outcome.stdout) / 1000)

    def _delete(self, name: str, pod: Pod) -> None:
        if name == "null":
            return
        outcome = self._stage.execute(self.plugins[name], "DEL", pod)
        time.sleep(AFTER_DELETION)
        self.times.note(self.times.delete, name, outcome.ms)
        if name.startswith("floor"):
            self.times.note(self.times.removed, name, float(outcome.stdout.split()[0]) / 1000)


@contextmanager
def contest() -> Iterator[Contest]:
    with Stage.open() as stage:
        yield Contest(stage)


def run(options: Options) -> Iterator[Figure]:
    with contest() as running:
        times = running.run(options.rounds, options.warm_up)
    yield from _against_ptp(times)
    yield from _first_of_turn(times)
    yield from _against_kernel(times)


def _against_ptp(times: Times) -> Iterator[Figure]:
    note = programs.require_ptp()
    for name, family in (("ours", ""), ("dual", "_dual")):
        for verb, found, goal, then in (("add", times.add, 0.3, 0.15), ("del", times.delete, 0.3, 0.08)):
            yield Figure(
                f"{verb}{family}", "ms", Sample.of(found[name]), len(found[name]),
                peer=Sample.of(found["ptp"]) if "ptp" in found else None, peer_name="ptp + host-local, IPv4",
                goal=at_most(goal), then=at_most(then), note=note, versions=VERSIONS,
            )  # fmt: skip


def _first_of_turn(times: Times) -> Iterator[Figure]:
    yield Figure(
        "add_first_of_turn", "ms", Sample.of(times.first["ours"]), len(times.first["ours"]),
        peer=Sample.of(times.first["ptp"]) if "ptp" in times.first else None, peer_name="ptp + host-local, IPv4",
        note="among the calls above: those that come after another competitor's", versions=VERSIONS,
    )  # fmt: skip


def _against_kernel(times: Times) -> Iterator[Figure]:
    null = Sample.of(times.add["null"]).p50
    for name, floor, family in (("ours", "floor", ""), ("dual", "floor_dual", "_dual")):
        work, whole = Sample.of(times.work[floor]).p50, Sample.of(times.add[floor]).p50
        note = f"kernel {work:.3f} ms + exec {null:.3f} ms; a C program that does only that, by exec: {whole:.3f} ms"
        yield Figure(
            f"add{family}_to_kernel", "ms", Sample.of(times.add[name]), len(times.add[name]),
            peer=Sample(work + null), peer_name="kernel work + exec", then=at_most(3), note=note,
        )  # fmt: skip
        removed = Sample.of(times.removed[floor]).p50
        yield Figure(
            f"del{family}_to_kernel", "ms", Sample.of(times.delete[name]), len(times.delete[name]),
            peer=Sample(removed + null), peer_name="kernel work + exec", note=f"kernel {removed:.3f} ms until the link is gone",
        )  # fmt: skip
    yield Figure("exec", "ms", Sample.of(times.add["null"]), len(times.add["null"]), note="a static program that does nothing")
