"""Many concurrent calls: pods per second for ADD, time for DEL, and concurrent STATUS calls."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench import programs
from bench.idle_wait import wait_until_quiet
from bench.measurement import Figure, Goal, Sample, at_least, at_most, percentile
from bench.options import AT_ONCE, VERSIONS, Options
from bench.phases import inside_ms
from bench.runtime import wall_ms
from bench.testbed import Plugin, Pod, Stage, require_success

AFTER_ROUND = 0.2  # seconds; the kernel completes deferred work of a round before the other side's round
STATUS_EVERY = 4  # ADDs


@dataclass
class Side:
    """A competitor with its pods and its times, in milliseconds per round and per call."""

    plugin: Plugin
    pods: list[Pod]
    rounds: dict[str, list[float]] = field(default_factory=lambda: {"ADD": [], "DEL": []})
    calls: dict[str, list[float]] = field(default_factory=lambda: {"ADD": [], "DEL": []})

    def seconds(self, verb: str) -> float:
        """Return the median time of a round, because slow phases of the machine do not affect both sides equally."""
        return statistics.median(self.rounds[verb]) / 1000


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        plugins = [plugin for plugin in (stage.svc_plugin(), stage.ptp()) if plugin]
        _warm_up(stage, plugins)
        sides = [Side(plugin, stage.pods(options.burst_pods)) for plugin in plugins]
        for number in range(options.burst_rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                _round(stage, side)
        status = _status_during_adds(stage, options)
    yield from _figures(sides, options)
    yield status


def _warm_up(stage: Stage, plugins: list[Plugin]) -> None:
    for plugin in plugins:
        pods = stage.pods(AT_ONCE)
        for verb in ("ADD", "DEL"):
            stage.execute_all(plugin, verb, pods, AT_ONCE)


def _round(stage: Stage, side: Side) -> None:
    """Add all pods, and delete all, so that each side meets the same number of interfaces on the node."""
    for verb in ("ADD", "DEL"):
        time.sleep(AFTER_ROUND)
        wait_until_quiet()
        outcomes = stage.execute_all(side.plugin, verb, side.pods, AT_ONCE)
        side.rounds[verb].append(wall_ms(outcomes))
        side.calls[verb] += [outcome.ms for outcome in outcomes]


def _figures(sides: list[Side], options: Options) -> Iterator[Figure]:
    ours, peer = sides[0], sides[1] if len(sides) > 1 else None
    pods = options.burst_pods
    rounds = f"median of {options.burst_rounds} rounds"

    def figure(name: str, unit: str, ours: Sample, peer: Sample | None, goal: Goal | None, then: Goal | None) -> Figure:
        return Figure(
            name, unit, ours, pods, peer=peer, peer_name="ptp + host-local", goal=goal, then=then,
            note=programs.require_ptp() or rounds, versions=VERSIONS,
        )  # fmt: skip

    speeds = [Sample(pods / side.seconds("ADD")) for side in sides]
    yield figure("burst_add", "pods/s", speeds[0], speeds[1] if peer else None, at_least(3), at_least(6))
    times = [Sample(side.seconds("DEL") * 1000) for side in sides]
    yield figure("burst_del", "ms in all", times[0], times[1] if peer else None, at_most(0.5), at_most(0.2))
    tail, middle = percentile(ours.calls["ADD"], 99), Sample.of(ours.calls["ADD"]).p50
    note = f"99 % of the calls: {tail:.1f} ms, median {middle:.1f} ms"
    yield Figure("burst_add_tail", "x", Sample(tail / middle), len(ours.calls["ADD"]), then=at_most(3), note=note)
    for verb in ("ADD", "DEL"):
        calls = Sample.of(ours.calls[verb])
        yield figure(
            f"burst_{verb.lower()}_call", "ms", calls, Sample.of(peer.calls[verb]) if peer else None, None, None
        )  # fmt: skip


def _status_during_adds(stage: Stage, options: Options) -> Figure:
    """Return the times in the agent of STATUS calls among the ADDs of a burst."""
    plugin = stage.svc_plugin(cniVersion="1.1.0")
    pods = stage.pods(options.burst_pods)
    calls = []
    for number, pod in enumerate(pods):
        calls.append(plugin.call("ADD", pod))
        if number % STATUS_EVERY == 0:
            calls.append(plugin.call("STATUS"))
    outcomes = stage.runtime.run(calls, AT_ONCE)
    for outcome in outcomes:
        require_success("a call of a burst", outcome)
    times = [
        inside_ms(outcome) for outcome, call in zip(outcomes, calls, strict=True) if call.environment["CNI_COMMAND"] == "STATUS"
    ]
    stage.execute_all(plugin, "DEL", pods, AT_ONCE)
    return Figure("burst_status_inside", "ms", Sample.of(times), len(times), then=at_most(1), note="among the ADDs of a burst")
