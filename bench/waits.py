"""The cost of waits whose condition already holds: a ready readiness gate, and the status file of the policy."""

import statistics
from collections.abc import Iterator

from bench.measurement import Figure, Sample, at_most
from bench.options import Options
from bench.phases import phases
from bench.testbed import Plugin, Pod, Stage
from harness.gate_server import serving, status

ARGS = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
GOALS = {"gates": 5.0, "policy": 1.0}  # milliseconds


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage, serving(status(200), inside=stage.node.netns) as gate:
        (stage.directory / "k8s default%2Fweb-0 eth0").touch()
        plugins = {
            "plain": stage.svc_plugin(),
            "gates": stage.svc_plugin(readiness_gates=[gate.url]),
            "policy": stage.svc_plugin(policy_setup_timeout_seconds=30, endpoint_status_dir=str(stage.directory)),
        }
        yield from _figures(stage, plugins, options)


def _figures(stage: Stage, plugins: dict[str, Plugin], options: Options) -> Iterator[Figure]:
    (pod,) = stage.pods(1)
    pod.args = ARGS
    whole: dict[str, list[float]] = {name: [] for name in plugins}
    inside: dict[str, list[float]] = {name: [] for name in GOALS}
    for number in range(options.rounds + options.warm_up):
        for name, plugin in plugins.items():
            ms, phase = _one(stage, plugin, pod, name)
            if number >= options.warm_up:
                whole[name].append(ms)
                inside.get(name, []).append(phase)
    for name, goal in GOALS.items():
        added_cost = statistics.median(whole[name]) - statistics.median(whole["plain"])
        note = f"an ADD by exec is {added_cost:+.3f} ms dearer than one that waits for nothing"
        yield Figure(f"{name}_open", "ms", Sample.of(inside[name]), options.rounds, goal=at_most(goal), note=note)


def _one(stage: Stage, plugin: Plugin, pod: Pod, name: str) -> tuple[float, float]:
    outcome = stage.execute(plugin, "ADD", pod)
    stage.execute(plugin, "DEL", pod)
    return outcome.ms, phases(outcome).get(name, 0.0)
