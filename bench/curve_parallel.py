"""Pods per second as a function of the calls at once."""

import time
from collections.abc import Iterator, Sequence

from bench import programs
from bench.burst import AFTER_ROUND
from bench.idle_wait import wait_until_quiet
from bench.measurement import Figure, Sample
from bench.options import AT_ONCE, VERSIONS, Options
from bench.runtime import wall_ms
from bench.testbed import Plugin, Pod, Stage

ROUNDS = 3


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        plugins = [plugin for plugin in (stage.svc_plugin(), stage.ptp()) if plugin]
        pods = stage.pods(options.burst_pods // 2)
        for plugin in plugins:
            _rates(stage, plugin, pods[:AT_ONCE], AT_ONCE)
        for at_once in options.parallel:
            found: list[list[tuple[float, float]]] = [[] for _ in plugins]
            for _ in range(ROUNDS):
                for rates, plugin in zip(found, plugins, strict=True):
                    rates.append(_rates(stage, plugin, pods, at_once))
            yield from _figures(found, at_once, len(pods))


def _rates(stage: Stage, plugin: Plugin, pods: Sequence[Pod], at_once: int) -> tuple[float, float]:
    """Return the ADDs and the DELs a second."""
    rates = []
    for verb in ("ADD", "DEL"):
        time.sleep(AFTER_ROUND)
        wait_until_quiet()
        rates.append(1000 * len(pods) / wall_ms(stage.execute_all(plugin, verb, pods, at_once)))
    return rates[0], rates[1]


def _figures(found: list[list[tuple[float, float]]], at_once: int, pods: int) -> Iterator[Figure]:
    for number, verb in enumerate(("add", "del")):
        ours, *peer = [Sample.of([rates[number] for rates in side]) for side in found]
        yield Figure(
            f"parallel_{verb}", "pods/s", ours, pods, peer=peer[0] if peer else None, peer_name="ptp + host-local",
            note=programs.require_ptp() or f"median of {ROUNDS} rounds", versions=VERSIONS, parameters={"at_once": at_once},
        )  # fmt: skip
