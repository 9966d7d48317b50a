"""STATUS and CHECK: the time inside the agent, from its log line, and that of the whole call."""

from collections.abc import Iterator

from bench.measurement import Figure, Sample, at_most
from bench.options import Options
from bench.phases import inside_ms
from bench.testbed import Plugin, Stage, require_success


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage:
        for plugin, family in (
            (stage.svc_plugin(cniVersion="1.1.0"), ""),
            (stage.svc_plugin(cniVersion="1.1.0", dual=True), "_dual"),
        ):
            yield from _figures(stage, plugin, family, options)


def _figures(stage: Stage, plugin: Plugin, family: str, options: Options) -> Iterator[Figure]:
    (pod,) = stage.pods(1)
    stage.execute(plugin, "ADD", pod)
    for verb, call in (("STATUS", plugin.call("STATUS")), ("CHECK", plugin.call("CHECK", pod))):
        inside, whole = list[float](), list[float]()
        for _ in range(options.rounds + options.warm_up):
            outcome = stage.runtime.one(call)
            require_success(f"{plugin.name} {verb}", outcome)
            inside.append(inside_ms(outcome))
            whole.append(outcome.ms)
        sample = Sample.of(inside[options.warm_up :])
        note = f"{Sample.of(whole[options.warm_up :]).p50:.3f} ms by exec"
        yield Figure(f"{verb.lower()}{family}_inside", "ms", sample, options.rounds, goal=at_most(1), note=note)
    stage.execute(plugin, "DEL", pod)
