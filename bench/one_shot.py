"""ADD and DEL without an agent, on each datastore: the executable starts Python, and this process does the call."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench.cluster import etcd_server, node_stage
from bench.measurement import Figure, Missing, Sample, at_most
from bench.options import VERSIONS, Options
from bench.sequential import AFTER_DELETION
from bench.testbed import Plugin, Pod, Stage

MOST_ROUNDS = 20  # these calls take a hundred times as long as those with an agent
GOALS = {"embedded": 60, "etcd": 150}  # milliseconds of an ADD
IMPORTS = 5


def run(options: Options) -> Iterator[Figure]:
    rounds, missing = min(options.rounds, MOST_ROUNDS), list[str]()
    with ExitStack() as stack:
        stage = stack.enter_context(node_stage())
        plugins = dict(_plugins(stage, stack, missing))
        pods = dict(zip(plugins, stage.pods(len(plugins)), strict=True))
        times = _measured(stage, plugins, pods, rounds)
    bare, imports = _python_ms("pass"), _python_ms("import svc.cni.oneshot")
    note = f"Python starts in {bare:.0f} ms, with the imports of a call in {imports:.0f} ms"
    for (name, verb), values in times.items():
        goal = at_most(GOALS[name]) if verb == "ADD" and name in GOALS else None
        yield Figure(
            f"one_shot_{name}_{verb.lower()}", "ms", Sample.of(values), rounds, then=goal, note=note, versions=VERSIONS
        )
    if missing:
        raise Missing("; ".join(missing))


def _plugins(stage: Stage, stack: ExitStack, missing: list[str]) -> Iterator[tuple[str, Plugin]]:
    yield "embedded", stage.svc_plugin()
    try:
        yield "etcd", stack.enter_context(etcd_server(stage))[0].plugin
    except Missing as what:
        missing.append(f"etcd: {what}")


def _measured(
    stage: Stage, plugins: dict[str, Plugin], pods: dict[str, Pod], rounds: int
) -> dict[tuple[str, str], list[float]]:
    for name, plugin in plugins.items():  # with the agent, so that the first block is there
        for verb in ("ADD", "DEL"):
            stage.execute(plugin, verb, pods[name])
    stage.node.stop_agent()
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for name, plugin in plugins.items():
            for verb in ("ADD", "DEL"):
                ms = stage.execute(plugin, verb, pods[name]).ms
                time.sleep(AFTER_DELETION)
                if number:  # the first fills caches
                    times.setdefault((name, verb), []).append(ms)
    return times


def _python_ms(code: str) -> float:
    """Return the time of a new Python process that does this."""
    times = []
    for _ in range(IMPORTS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", code], check=True)
        times.append((time.perf_counter() - began) * 1000)
    return Sample.of(times).p50
