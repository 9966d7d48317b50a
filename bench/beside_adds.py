"""STATUS and CHECK beside 200 ADDs, which wait for a readiness gate, or all compute at once.

A second caller sends them one after another, as a runtime and its monitoring do. The figures are times in the agent, the time
in the queue included.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle

from bench.measurement import Figure, Sample, at_most
from bench.options import AT_ONCE, Options
from bench.phases import phases
from bench.runtime import Outcome, Runtime
from bench.testbed import Failed, Plugin, Pod, Stage, require_success
from harness.gate_server import serving, status
from svc.admin.agent_client import ask

PRESENT = 100  # pods whose CHECKs are measured
CALLS = 500  # of each verb beside ADDs that wait
VERBS = "STATUS", "CHECK"
LIMIT_SECONDS = 30.0

Found = dict[str, list[Outcome]]


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage, serving(status(503), inside=stage.node.netns) as gate, ThreadPoolExecutor(1) as adding:
        plugin, present = stage.svc_plugin(cniVersion="1.1.0"), stage.pods(PRESENT)
        stage.execute_all(plugin, "ADD", present, AT_ONCE)
        gated = stage.svc_plugin(cniVersion="1.1.0", readiness_gates=[gate.url])
        pods = stage.pods(options.burst_pods)
        waiting = adding.submit(stage.execute_all, gated, "ADD", pods, len(pods))
        _await_parked(stage, len(pods))
        yield from _figures("waiting", _ask(stage, plugin, present, lambda number: number < CALLS))
        gate.behaviour = status(200)
        waiting.result()
        yield from _figures("computing", _during_bursts(stage, plugin, present, adding, options))


def _during_bursts(stage: Stage, plugin: Plugin, present: Sequence[Pod], adding: ThreadPoolExecutor, options: Options) -> Found:
    found: Found = {verb: [] for verb in VERBS}
    for _ in range(options.burst_rounds):
        pods = stage.pods(options.burst_pods)
        burst: Future[list[Outcome]] = adding.submit(stage.execute_all, plugin, "ADD", pods, AT_ONCE)
        during = _ask(stage, plugin, present, lambda _, burst=burst: not burst.done())  # type: ignore[misc]
        burst.result()
        stage.execute_all(plugin, "DEL", pods, AT_ONCE)
        for verb in VERBS:
            found[verb] += during[verb]
    return found


def _ask(stage: Stage, plugin: Plugin, present: Sequence[Pod], goes_on: Callable[[int], bool]) -> Found:
    """Return the outcomes of calls in turns, while `goes_on` of their number is true."""
    found: Found = {verb: [] for verb in VERBS}
    with Runtime(stage.runtime.program, stage.node.netns.path) as caller:
        for number, pod in enumerate(cycle(present)):
            if not goes_on(number):
                return found
            found["STATUS"].append(caller.one(plugin.call("STATUS")))
            found["CHECK"].append(caller.one(plugin.call("CHECK", pod)))
    return found


def _await_parked(stage: Stage, number: int) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while len(ask(stage.node.state_dir, stage.node.socket, "state")["parked"]) < number:
        if time.monotonic() > until:
            raise Failed(f"{number} ADDs do not wait for the gate after {LIMIT_SECONDS:g} s")
        time.sleep(0.05)


def _figures(adds: str, found: Found) -> Iterator[Figure]:
    for verb, outcomes in found.items():
        for outcome in outcomes:
            require_success(f"{verb} beside ADDs", outcome)
        inside = sorted(map(_inside_ms, outcomes))
        note = f"median {Sample.of(inside).p50:.2f} ms; by exec {Sample.of([each.ms for each in outcomes]).p50:.2f} ms"
        p99 = inside[min(len(inside) - 1, len(inside) * 99 // 100)]
        yield Figure(f"{verb.lower()}_beside_{adds}_adds_p99", "ms", Sample(p99), len(outcomes), goal=at_most(5), note=note)


def _inside_ms(outcome: Outcome) -> float:
    found = phases(outcome)
    return found["queue"] + found["total"]
