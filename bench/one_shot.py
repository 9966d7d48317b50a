"""Calls without an agent: the executable starts Python, which carries out the call and ends."""

import subprocess
import time
from collections.abc import Iterator, Sequence

from bench.cluster import etcd_server, node_stage
from bench.measurement import Figure, Sample, at_most
from bench.options import VERSIONS, Options
from bench.testbed import Plugin, Stage

GOALS = {"embedded": 60.0, "etcd": 150.0}  # milliseconds of an ADD
_MODULES = {"embedded": "svc.cni.oneshot", "etcd": "svc.cni.oneshot, svc.datastore.etcd.store"}
_AS_A_CALL = "from svc.cni.__main__ import prepare_imports; prepare_imports(); import {}, os; os._exit(0)"
_PYTHON = "the start of Python alone"


def run(options: Options) -> Iterator[Figure]:
    with node_stage() as stage, etcd_server(stage) as (server, _):
        stage.node.stop_agent()
        plugins = {"embedded": stage.svc_plugin(), "etcd": server.plugin}
        for name, plugin in plugins.items():
            yield from _calls(stage, name, plugin, options)
    for name, modules in _MODULES.items():
        note = f"median of the whole process; {_PYTHON} {_median_ms('pass', options.rounds):.1f} ms"
        found = _process_ms(_AS_A_CALL.format(modules), options.rounds)
        yield Figure(f"one_shot_{name}_import", "ms", found, options.rounds, note=note)


def _calls(stage: Stage, name: str, plugin: Plugin, options: Options) -> Iterator[Figure]:
    found: dict[str, list[float]] = {"ADD": [], "DEL": []}
    (pod,) = stage.pods(1)
    for number in range(options.rounds + options.warm_up):
        for verb, times in found.items():
            ms = stage.execute(plugin, verb, pod).ms
            if number >= options.warm_up:
                times.append(ms)
    for verb, times in found.items():
        goal = at_most(GOALS[name]) if verb == "ADD" else None
        yield Figure(f"one_shot_{name}_{verb.lower()}", "ms", Sample.of(times), options.rounds, goal=goal, versions=VERSIONS)


def _process_ms(statement: str, rounds: int) -> Sample:
    return Sample.of([_one(statement) for _ in range(rounds)])


def _median_ms(statement: str, rounds: int) -> float:
    return _process_ms(statement, rounds).p50


def _one(statement: str) -> float:
    from harness.node import BIN

    started = time.perf_counter()
    command: Sequence[str] = (str(BIN / "python"), "-I", "-c", statement)
    subprocess.run(command, check=True)
    return (time.perf_counter() - started) * 1000
