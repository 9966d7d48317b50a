"""A node with many attachments: the start of its agent, introspection, and STATUS and CHECK beside a burst of ADDs."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

from bench.measurement import Figure, Sample, at_most
from bench.options import AT_ONCE, VERSIONS, Options
from bench.phases import phases
from bench.runtime import Outcome, Runtime
from bench.soak import KINDS
from bench.testbed import Failed, Plugin, Pod, Stage, require_success
from harness.frames import parse_reply
from svc.admin.agent_client import ask

STARTS = 5
LIMIT_SECONDS = 20.0


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        plugin, pods = stage.svc_plugin(cniVersion="1.1.0"), stage.pods(options.attachments)
        stage.execute_all(plugin, "ADD", pods, AT_ONCE)
        yield from _introspection(stage, options, len(pods))  # before the starts, which forget the calls
        yield from _starts(stage, plugin, len(pods))
        yield from _beside_adds(stage, plugin, pods, options)


def _starts(stage: Stage, plugin: Plugin, present: int) -> Iterator[Figure]:
    """Measure the time from the execution of svc-agent until a STATUS succeeds."""
    times = []
    for _ in range(STARTS):
        stage.node.stop_agent()
        began = time.monotonic()
        stage.node.start_agent(recovered=False)
        _await_status(stage, plugin, began)
        times.append(time.monotonic() - began)
    note = "from its execution until STATUS succeeds"
    yield Figure(f"start_at_{present}", "s", Sample.of(times), STARTS, goal=at_most(1), note=note, versions=VERSIONS)


def _await_status(stage: Stage, plugin: Plugin, began: float) -> None:
    while parse_reply(stage.runtime.one(plugin.direct("STATUS", stage.node.socket)).stdout).status:
        if time.monotonic() - began > LIMIT_SECONDS:
            raise Failed(f"STATUS fails {LIMIT_SECONDS:g} s after the start of the agent")
        time.sleep(0.005)


def _introspection(stage: Stage, options: Options, present: int) -> Iterator[Figure]:
    for kind in KINDS:
        times = []
        for _ in range(options.rounds):
            began = time.perf_counter()
            ask(stage.node.state_dir, stage.node.socket, kind)
            times.append((time.perf_counter() - began) * 1000)
        note = f"longest of {len(times)}: {max(times):.1f} ms"
        yield Figure(f"introspection_{kind}_at_{present}", "ms", Sample.of(times), len(times), goal=at_most(100), note=note)


def _beside_adds(stage: Stage, plugin: Plugin, present: Sequence[Pod], options: Options) -> Iterator[Figure]:
    """Measure STATUS and CHECK during bursts of ADDs: the time in the agent, the time in the queue included.

    A second caller sends them one after another, as a runtime and its monitoring do.
    """
    found: dict[str, list[Outcome]] = {"STATUS": [], "CHECK": []}
    with Runtime(stage.runtime.program, stage.node.netns.path) as caller, ThreadPoolExecutor(1) as adding:
        for _ in range(options.burst_rounds):
            pods = stage.pods(options.burst_pods)
            burst = adding.submit(stage.execute_all, plugin, "ADD", pods, AT_ONCE)
            for pod in cycle(present):
                if burst.done():
                    break
                found["STATUS"].append(caller.one(plugin.call("STATUS")))
                found["CHECK"].append(caller.one(plugin.call("CHECK", pod)))
            burst.result()
            stage.execute_all(plugin, "DEL", pods, AT_ONCE)
    for verb, outcomes in found.items():
        for outcome in outcomes:
            require_success(f"a {verb} during a burst", outcome)
        inside = sorted(map(_inside_ms, outcomes))
        note = f"median {Sample.of(inside).p50:.2f} ms; by exec {Sample.of([each.ms for each in outcomes]).p50:.2f} ms"
        p99 = inside[min(len(inside) - 1, len(inside) * 99 // 100)]
        yield Figure(f"{verb.lower()}_beside_adds_p99", "ms", Sample(p99), len(outcomes), goal=at_most(5), note=note)


def _inside_ms(outcome: Outcome) -> float:
    found = phases(outcome)
    return found["queue"] + found["total"]
