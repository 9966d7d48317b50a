"""ADD and DEL by a driver in Python, as many benchmarks have one. `subprocess.run` adds its own time to each call."""

import subprocess
import time
from collections.abc import Iterator

from bench import programs
from bench.measurement import Figure, Sample
from bench.options import VERSIONS, Options
from bench.sequential import AFTER_DELETION
from bench.testbed import Failed, Plugin, Pod, Stage
from harness.enter_netns import entered


def run(options: Options) -> Iterator[Figure]:
    with Stage.open() as stage, entered(stage.node.netns):
        plugins = {"svc": stage.svc_plugin()} | ({"ptp": ptp} if (ptp := stage.ptp()) else {})
        times: dict[tuple[str, str], list[float]] = {}
        pods = dict(zip(plugins, stage.pods(len(plugins)), strict=True))
        for number in range(options.rounds + options.warm_up):
            for name, plugin in plugins.items():
                for verb in ("ADD", "DEL"):
                    ms = _call(plugin, verb, pods[name])
                    time.sleep(AFTER_DELETION)
                    if number >= options.warm_up:
                        times.setdefault((name, verb), []).append(ms)
    for verb in ("ADD", "DEL"):
        peer = Sample.of(times["ptp", verb]) if ("ptp", verb) in times else None
        yield Figure(
            f"{verb.lower()}_python_driver", "ms", Sample.of(times["svc", verb]), options.rounds, peer=peer,
            peer_name="ptp + host-local, IPv4", note=programs.require_ptp(), versions=VERSIONS,
        )  # fmt: skip


def _call(plugin: Plugin, verb: str, pod: Pod) -> float:
    call = plugin.call(verb, pod)
    began = time.perf_counter()
    done = subprocess.run([call.program], env=dict(call.environment), input=call.stdin, capture_output=True, check=False)
    ms = (time.perf_counter() - began) * 1000
    if done.returncode:
        raise Failed(f"{plugin.name} {verb}: status {done.returncode}: {done.stdout.decode(errors='replace')}")
    return ms
